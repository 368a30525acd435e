"""A real SGLang server on the CPU for tests, started by the ``sglang-cpu`` profile: tiny hybrid model, pages of 64,
three tiers, KV events, metrics.

::

    with SglangServer(folder) as server:
        httpx.get(f"{server.url}/v1/models")
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec

from serve.argv import LaunchCommand, Site, sglang_command
from serve.install import InstalledEngine
from serve.launcher import free_port
from serve.profile import Profile, load_profile
from serve.sglang_plugin import SOCKET_VARIABLE
from tests.sglang.engine import PROFILE, installed_engine

READY_LIMIT_S = 600
"""A quiet machine needs 25 s; a busy one ten times that."""
_GRACE_S = 3
"""It would wait seven for requests that there are not."""
_SHOWN_LOG_CHARS = 6000
_NOT_INHERITED = frozenset({"PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONWARNINGS"})
"""Compiled imports are wanted: they are most of a start."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What tests vary; the rest is the profile's. A small pool is full after a few prompts, so that a test can push one
    out of it."""

    context_length: int = 8192
    max_total_tokens: int = 8192
    max_mamba_cache_size: int = 32
    chunked_prefill_size: int = 1024
    tp_size: int = 1
    extra: tuple[str, ...] = ()
    """Further arguments; a flag given twice has its last value."""
    env: Mapping[str, str] = {}
    """Further variables, over all others. ``PYTHONPATH`` is put in front of the engine's own."""

    def applied(self, profile: Profile) -> Profile:
        replace = msgspec.structs.replace
        return replace(
            profile,
            model=replace(profile.model, context_length=self.context_length),
            memory=replace(
                profile.memory,
                max_total_tokens=self.max_total_tokens,
                chunked_prefill_size=self.chunked_prefill_size,
            ),
            mamba=replace(profile.mamba, max_cache_size=self.max_mamba_cache_size),
            parallel=replace(profile.parallel, tp_size=self.tp_size),
        )


class SglangServer:
    """Starts when entered, ends with everything it started when left. ``folder`` keeps the log and, in ``l3``, the
    pages on disk: a second server in the same folder finds them."""

    def __init__(
        self, folder: Path, options: ServerOptions | None = None, engine: InstalledEngine | None = None
    ) -> None:
        self.options = options or ServerOptions()
        self.engine = engine or installed_engine()
        self.profile = self.options.applied(load_profile(PROFILE))
        self.l3 = folder / "l3"
        self.log = folder / "sglang.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # A socket's path may have 107 bytes, which a test's folder has already.
        self._sockets = Path(tempfile.mkdtemp(prefix="sglang-"))
        self.kv_events_endpoint = f"ipc://{self._sockets}/kv-events"
        self.kv_replay_endpoint = f"ipc://{self._sockets}/kv-replay"
        self.plugin_socket = self._sockets / "plugin"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the main process; also the id of the process group."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.pid

    def command(self) -> LaunchCommand:
        """As the governor would start it."""
        site = Site(
            port=self.port,
            python=str(self.engine.python),
            model_path=str(self.engine.model_path),
            l3_folder=self.l3,
            kv_events_endpoint=self.kv_events_endpoint,
            kv_replay_endpoint=self.kv_replay_endpoint,
            environment=self.engine.env,
        )
        return sglang_command(self.profile, site)

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        env = {**inherited, **self.command().env, **self.options.env}
        env[SOCKET_VARIABLE] = str(self.plugin_socket)
        if "PYTHONPATH" in self.options.env:
            env["PYTHONPATH"] = os.pathsep.join((self.options.env["PYTHONPATH"], self.engine.env["PYTHONPATH"]))
        return env

    def start(self) -> None:
        """Returns at once; see :meth:`wait_ready`."""
        self.l3.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [*self.command().argv, *self.options.extra],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def wait_ready(self, limit_s: float = READY_LIMIT_S) -> None:
        """Until it has generated one token. Raises :class:`RuntimeError` with the end of its log."""
        deadline = time.monotonic() + limit_s
        while not self._answers():
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"SGLang ended while it started:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"SGLang is not ready after {limit_s:g} s:\n{self.log_tail()}")
            time.sleep(0.25)

    def stop(self) -> None:
        """End the whole process group. May be repeated."""
        process = self._process
        if process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                deadline = time.monotonic() + _GRACE_S
                while self._group_lives(process) and time.monotonic() < deadline:
                    time.sleep(0.05)
            process.wait()
            self._process = None
        shutil.rmtree(self._sockets, ignore_errors=True)

    def kill(self) -> None:
        """End all of it at once, as no engine ends by itself. It may be started again, at the same addresses."""
        process = self._process
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._process = None

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-_SHOWN_LOG_CHARS:] if self.log.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        one_token = {"input_ids": [100], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        try:
            if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code != 200:
                return False
            answer = httpx.post(f"{self.url}/generate", json=one_token, timeout=60, trust_env=False)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    @staticmethod
    def _group_lives(process: subprocess.Popen[bytes]) -> bool:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def main() -> None:
    """Run one by hand until Ctrl-C. What is not known here is passed on to SGLang."""
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.server")
    parser.add_argument("folder", type=Path, help="for the log and L3")
    parser.add_argument("--tp-size", type=int, default=1)
    known, extra = parser.parse_known_args()
    known.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    began = time.monotonic()
    with SglangServer(known.folder, ServerOptions(tp_size=known.tp_size, extra=tuple(extra))) as server:
        print(f"ready after {time.monotonic() - began:.0f} s: {server.url}", flush=True)
        print(f"KV events at {server.kv_events_endpoint}, log in {server.log}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
