"""The two programs under measurement as child processes, and what the kernel knows of their cost."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import msgspec

from bench.client import BenchFailed
from governor import instance
from governor.settings import Home

MODEL = "scripted"
_START_S = 30.0
_POLL_S = 0.05
_STOP_S = 15.0
_AGENT = "owner"
_POLICY = "[limits]\nconcurrency = 256\nqueue = 256\n"


class Upstream(msgspec.Struct, frozen=True):
    """A scripted engine that runs."""

    url: str
    pid: int


class Gateway(msgspec.Struct, frozen=True):
    """A governor that runs."""

    url: str
    key: str
    pid: int


@contextmanager
def scripted_engine(folder: Path, *, answer_tokens: int, tokens_per_s: float, port: int = 0) -> Iterator[Upstream]:
    """The scripted engine: no prefill, decode at a pace (0: none), nothing remembered. ``port`` 0: any free one."""
    knobs = {
        "model": MODEL,
        "answer_tokens": answer_tokens,
        "decode_tokens_per_s": tokens_per_s,
        "window_tokens": 1 << 20,
        "counting": "chars",
        "remembered_prompts": 0,
        "keep_bodies": "false",
    }
    settings = [f"{name}={value}" for name, value in knobs.items()]
    command = [sys.executable, "-m", "serve.scripted", "--port", str(port), "--set", *settings]
    with spawned(command, folder / "engine.log", capture=True) as child:
        line = child.stdout.readline() if child.stdout is not None else b""
        try:
            url = msgspec.json.decode(line, type=dict[str, str])["url"]
        except (msgspec.MsgspecError, KeyError) as error:
            raise BenchFailed(f"the scripted engine did not start: {tail(folder / 'engine.log')}") from error
        yield Upstream(url, child.pid)


@contextmanager
def gateway(folder: Path, upstream: Upstream, *, command: tuple[str, ...] = ()) -> Iterator[Gateway]:
    """``governor up`` in front of an upstream, with an agent that may run as many turns at once as it likes.

    ``command`` stands before the interpreter's arguments; a profiler, for example.
    """
    home = Home(folder / "home")
    home.policies.mkdir(parents=True)
    (home.policies / f"{_AGENT}.toml").write_text(_POLICY)
    start = (sys.executable, "-m", "governor", "up", "--upstream", upstream.url, "--port", "0", "--home")
    with spawned([*command, *start, str(home.root)], folder / "gateway.log") as child:
        deadline = time.monotonic() + _START_S
        while (note := instance.running_instance(home)) is None or not _is_ready(note.url):
            if child.poll() is not None or time.monotonic() > deadline:
                raise BenchFailed(f"the gateway did not start: {tail(folder / 'gateway.log')}")
            time.sleep(_POLL_S)
        yield Gateway(note.url, home.owner_key.read_text().strip(), note.pid)


@contextmanager
def both(*, answer_tokens: int, tokens_per_s: float) -> Iterator[tuple[Upstream, Gateway]]:
    """Both programs, fresh, in a folder that is removed afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="governor-bench-")))
        engine = scripted_engine(folder, answer_tokens=answer_tokens, tokens_per_s=tokens_per_s)
        upstream = stack.enter_context(engine)
        yield upstream, stack.enter_context(gateway(folder, upstream))


def cpu_seconds(pid: int) -> float:
    """Time on a core of the threads of a process and of those it has started, as far as they live now, to the
    nanosecond. Linux only."""
    tasks = (task for member in _family(pid) for task in Path(f"/proc/{member}/task").glob("*/schedstat"))
    return sum(int((_words(task) or ["0"])[0]) for task in tasks) / 1e9


def resident_mib(pid: int) -> float:
    """Resident memory now, of a process and those it has started."""
    pages = sum(int((_words(Path(f"/proc/{member}/statm")) or ["0", "0"])[1]) for member in _family(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    children = [int(pid) for task in Path(f"/proc/{pid}/task").glob("*/children") for pid in _words(task)]
    return [pid, *(member for each in children for member in _family(each))]


def _words(file: Path) -> list[str]:
    """None where the thread has ended meanwhile."""
    try:
        return file.read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@contextmanager
def spawned(
    command: list[str],
    log: Path,
    *,
    capture: bool = False,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block: asked first, then killed. ``folder``: where it is started."""
    environment = {**environment, "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as sink:
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE if capture else sink,
            stderr=sink,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=folder,
        )
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", trust_env=False).is_success
    except httpx.TransportError:
        return False


def tail(log: Path) -> str:
    """The end of what a program has said."""
    return log.read_text(errors="replace")[-1000:].strip()
