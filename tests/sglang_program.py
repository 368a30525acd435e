"""A stand-in for SGLang's server program: same flags, pages and process titles, with the faults that a test asks for.

``stand_in`` makes an interpreter whose ``-m sglang.launch_server`` is this program, and a profile for it::

    python, profile = stand_in(folder, Faults(exit_code=1, last_words=("torch.OutOfMemoryError: ...",)))
    governor up --profile PROFILE --python PYTHON

``folder`` also holds what it did (``starts``, ``pids``, ``turns``, ``hanging``: how many questions hang at once) and
switches that work while it runs: a file ``hang`` makes all pages but the generating ones silent, ``stuck`` ages its
load snapshot.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from serve.scripted import Knobs, ScriptedEngine
from serve.scripted.connection import Exchange

ROOT = Path(__file__).parent.parent
WORKER = "import signal, sys, time; signal.signal(signal.SIGTERM, {action})\nwhile True: time.sleep(1)"
_FOLDER = "STAND_IN_FOLDER"
_FAULTS = "faults.json"


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    last_words: tuple[str, ...] = ()
    """Written before it exits."""
    exit_code: int | None = None
    """Exit with it instead of serving."""
    failing_starts: int = 1_000_000
    """How many starts do so."""
    on_turn: bool = False
    """Exit at the first turn instead."""
    load_s: float = 0.0
    """Time before it listens, in which it writes a line now and then."""
    shout_bytes: int = 0
    """Written to both outputs before it listens."""
    answer_tokens: int = 20
    tokens_per_s: float = 0.0
    stray: bool = False
    """One more worker, re-parented and in a session of its own."""
    stubborn: bool = False
    """Ignores SIGTERM, and so do its workers: SGLang goes on until its requests end."""


def stand_in(folder: Path, faults: Faults = Faults(), *, plugin: bool = False) -> tuple[Path, Path]:  # noqa: B008
    """The interpreter and the profile's file. It has no plugin, whatever ``plugin`` promises."""
    folder.mkdir(parents=True, exist_ok=True)
    set_faults(folder, faults)
    python = folder / "python"
    python.write_text(
        "#!/bin/sh\n"
        'if [ "$1" != -m ]; then echo 0.5.23; exit; fi\n'
        "shift 2\n"
        'PYTHONPATH="$STAND_IN_ROOT" exec "$STAND_IN_PYTHON" -m tests.sglang_program "$@"\n'
    )
    python.chmod(0o755)
    profile = folder / "stand-in.toml"
    profile.write_text(
        f'base = "sglang-cpu"\n[reporting]\nplugin = {str(plugin).lower()}\n'
        f'[model]\npath = "{folder}/weights"\n[environment]\n'
        f'{_FOLDER} = "{folder}"\nSTAND_IN_ROOT = "{ROOT}"\nSTAND_IN_PYTHON = "{sys.executable}"\n'
    )
    (folder / "weights").mkdir(exist_ok=True)
    (folder / "weights" / "config.json").write_text("{}")
    return python, profile


def environment(folder: Path) -> dict[str, str]:
    """For who starts it without the interpreter."""
    return {_FOLDER: str(folder), "PYTHONPATH": str(ROOT)}


def set_faults(folder: Path, faults: Faults) -> None:
    """For the next start."""
    (folder / _FAULTS).write_bytes(msgspec.json.encode(faults))


class StandIn(ScriptedEngine):
    """The scripted engine with SGLang's own pages."""

    def __init__(self, folder: Path, faults: Faults, *, model: str, window_tokens: int, port: int) -> None:
        knobs = Knobs(
            model=model,
            window_tokens=window_tokens,
            answer_tokens=faults.answer_tokens,
            decode_tokens_per_s=faults.tokens_per_s,
        )
        super().__init__(knobs=knobs, port=port)
        self._folder = folder
        self._faults = faults
        self._hanging = 0
        self._started_at = time.time()

    async def _serve(self, exchange: Exchange) -> None:
        path = exchange.hit.path
        generates = path.startswith("/v1/c") or path == "/v1/messages"
        if generates:
            note(self._folder, "turns", path)
        if generates and self._faults.on_turn:
            say(*self._faults.last_words)
            os._exit(self._faults.exit_code or 1)
        if not generates and (self._folder / "hang").exists():
            self._hanging += 1
            note(self._folder, "hanging", self._hanging)
            try:
                while (self._folder / "hang").exists():  # noqa: ASYNC110 - another process removes it
                    await asyncio.sleep(0.02)
            finally:
                self._hanging -= 1
        match path:
            case "/v1/loads":
                written = self._started_at - 3600 if (self._folder / "stuck").exists() else time.time()
                loads = {"loads": [{"dp_rank": 0, "timestamp": written, "num_running_reqs": self.open_hits - 1}]}
                await exchange.reply(200, msgspec.json.encode(loads))
            case "/generate":
                await exchange.reply(200, b'{"text":"a"}')
            case "/server_info":
                await exchange.reply(200, b'{"version":"0.5.23","max_running_requests":4}')
            case "/health_generate":
                await exchange.reply(200, b"")
            case "/abort_request":
                await exchange.reply(200, b"")
            case _:
                await super()._serve(exchange)


def lines(folder: Path, name: str) -> list[str]:
    """What it has noted."""
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def pids(folder: Path) -> list[int]:
    """Of all its processes so far."""
    return [int(line) for line in lines(folder, "pids")]


def port_of(pid: int) -> int:
    """That a started one was told to listen on."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return int(words[words.index("--port") + 1])


def say(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)


def note(folder: Path, name: str, text: object) -> None:
    with (folder / name).open("a") as file:
        print(text, file=file)


def start_worker(title: str, *, stubborn: bool = False) -> subprocess.Popen[bytes]:
    """A process that titles itself as SGLang's do."""
    program = WORKER.format(action="signal.SIG_IGN" if stubborn else "signal.SIG_DFL")
    return subprocess.Popen([title, "-c", program], executable=sys.executable)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    parser.add_argument("--context-length", type=int)
    asked, _ = parser.parse_known_args()
    folder = Path(os.environ[_FOLDER])
    faults = msgspec.json.decode((folder / _FAULTS).read_bytes(), type=Faults)
    note(folder, "starts", time.monotonic())
    note(folder, "pids", os.getpid())
    for title in ("sglang::scheduler_TP0", "sglang::detokenizer"):
        note(folder, "pids", start_worker(title, stubborn=faults.stubborn).pid)
    if faults.stray:
        start_stray(folder, stubborn=faults.stubborn)
    if faults.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    starts = len((folder / "starts").read_text().splitlines())
    if faults.exit_code is not None and not faults.on_turn and starts <= faults.failing_starts:
        say(*faults.last_words)
        os._exit(faults.exit_code)
    shout(faults.shout_bytes)
    ends = time.monotonic() + faults.load_s
    while time.monotonic() < ends:
        say("loading weights")
        await asyncio.sleep(0.1)
    model, window = asked.served_model_name, asked.context_length
    async with StandIn(folder, faults, model=model, window_tokens=window, port=asked.port):
        say("The server is fired up and ready to roll!")
        await asyncio.Event().wait()


def start_stray(folder: Path, *, stubborn: bool) -> None:
    if os.fork() == 0:
        os.setsid()
        note(folder, "pids", start_worker("sglang::scheduler_TP1", stubborn=stubborn).pid)
        os._exit(0)
    os.wait()


def shout(size: int) -> None:
    """As loading bars and tracebacks do: carriage returns, colours, broken characters, a line without end."""
    if not size:
        return
    os.write(1, b"z" * (size // 4) + b"\n")
    line = b"\xff\xfe\x1b[31mLoading\x1b[0m " + b"x" * 80 + b"\r"
    for number in range(size * 3 // 4 // len(line)):
        os.write(1 + number % 2, line)
    os.write(1, b"\n")


if __name__ == "__main__":
    asyncio.run(main())
