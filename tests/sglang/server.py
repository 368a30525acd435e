"""A real SGLang server on the CPU for tests: tiny hybrid model, pages of 64, three tiers, KV events, metrics.

::

    with SglangServer(folder) as server:
        httpx.get(f"{server.url}/v1/models")
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec
import platformdirs

from serve.launcher import free_port
from serve.sglang_cpu import ENGINE_PATH

_READY_LIMIT_S = 600
"""A quiet machine needs 30 s; a busy one ten times that."""
_END_LIMIT_S = 15
_SHOWN_LOG_CHARS = 6000


class CpuEngine(msgspec.Struct, frozen=True):
    """An installed engine."""

    python: Path
    model: Path


def installed_engine() -> CpuEngine:
    folder = Path(platformdirs.user_cache_dir("agent-governor")) / "engines" / "dev-sglang-cpu"
    return CpuEngine(python=folder / "bin" / "python", model=folder / "models" / "tiny-hybrid")


class ServerFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What tests vary. The small pool is full after a few prompts, so that a test can push one out of it."""

    context_length: int = 8192
    max_total_tokens: int = 8192
    max_running_requests: int = 4
    max_mamba_cache_size: int = 32
    chunked_prefill_size: int = 1024
    tp_size: int = 1
    extra: tuple[str, ...] = ()
    """Further arguments; a flag given twice has its last value."""
    env: Mapping[str, str] = {}


class SglangServer:
    """Starts when entered, ends with everything it started when left. ``folder`` keeps the log and, in ``l3``, the
    pages on disk: a second server in the same folder finds them."""

    def __init__(self, folder: Path, flags: ServerFlags = ServerFlags(), engine: CpuEngine | None = None) -> None:  # noqa: B008 - a frozen value
        self.engine = engine or installed_engine()
        self.flags = flags
        self.l3 = folder / "l3"
        self.log = folder / "sglang.log"
        self.port = free_port()
        self.kv_events_port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the main process; also the id of the process group."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.pid

    def argv(self) -> list[str]:
        flags = self.flags
        named: dict[str, object] = {
            "model-path": self.engine.model,
            "served-model-name": "tiny-hybrid",
            "host": "127.0.0.1",
            "port": self.port,
            "device": "cpu",
            "attention-backend": "torch_native",
            "cuda-graph-backend-decode": "disabled",
            "cuda-graph-backend-prefill": "disabled",
            "tp-size": flags.tp_size,
            "context-length": flags.context_length,
            "max-total-tokens": flags.max_total_tokens,
            "max-running-requests": flags.max_running_requests,
            "max-mamba-cache-size": flags.max_mamba_cache_size,
            "chunked-prefill-size": flags.chunked_prefill_size,
            "page-size": 64,
            "mamba-radix-cache-strategy": "extra_buffer",
            "mamba-track-interval": 64,
            "hicache-ratio": 2,
            "hicache-io-backend": "direct",
            "hicache-mem-layout": "page_first_direct",
            "hicache-write-policy": "write_through",
            "hicache-storage-backend": "file",
            "hicache-storage-prefetch-policy": "wait_complete",
            "kv-events-config": json.dumps(
                {
                    "publisher": "zmq",
                    "endpoint": f"tcp://127.0.0.1:{self.kv_events_port}",
                    "topic": "kv-events",
                }
            ),
            "reasoning-parser": "qwen3",
            "tool-call-parser": "qwen3_coder",
        }
        switches = ("enable-hierarchical-cache", "enable-metrics", "enable-cache-report", "sleep-on-idle")
        given = [text for name, value in named.items() for text in (f"--{name}", str(value))]
        argv = [str(self.engine.python), "-m", "sglang.launch_server", *given, *(f"--{name}" for name in switches)]
        return [*argv, *flags.extra]

    def environment(self) -> dict[str, str]:
        # Compiled imports are kept: they are most of a start.
        dropped = {"PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONWARNINGS"}
        env = {name: value for name, value in os.environ.items() if name not in dropped}
        env |= {
            "PYTHONPATH": str(ENGINE_PATH),
            "PYTHONSAFEPATH": "1",
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(self.l3),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if self.flags.tp_size > 1:
            # SGLang would otherwise demand a NUMA node for each rank.
            cores = sorted(os.sched_getaffinity(0))
            bound = [str(cores[rank % len(cores)]) for rank in range(self.flags.tp_size)]
            env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(bound)
        return env | self.flags.env

    def start(self) -> None:
        """Returns at once; see :meth:`wait_ready`."""
        self.l3.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                self.argv(),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def wait_ready(self, limit_s: float = _READY_LIMIT_S) -> None:
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
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            deadline = time.monotonic() + _END_LIMIT_S
            while self._group_lives() and time.monotonic() < deadline:
                process.poll()
                time.sleep(0.05)
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

    def _group_lives(self) -> bool:
        if self._process is None:
            return False
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def main() -> None:
    """``python -m tests.sglang.server FOLDER [FLAG...]``: run one by hand until Ctrl-C."""
    folder, *extra = sys.argv[1:]
    began = time.monotonic()
    with SglangServer(Path(folder), ServerFlags(extra=tuple(extra))) as server:
        print(f"ready after {time.monotonic() - began:.0f} s: {server.url}", flush=True)
        print(f"KV events at tcp://127.0.0.1:{server.kv_events_port}, log in {server.log}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
