"""Headroom (``headroom-ai`` on PyPI) on the same messages, in an environment and a process of its own."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.client import BenchFailed
from bench.needle_places import Compressed

REQUIREMENT = "headroom-ai==0.42.0"
DEFAULTS: Mapping[str, object] = {"model": "gpt-4o", "model_limit": 128_000}
"""As its page on PyPI calls it. It has no budget: the limit is only what it reckons savings by."""
_WORKER = Path(__file__).with_name("headroom_worker.py")
_HANDLES = "[0-9a-f]{12,24}"


class _Answer(msgspec.Struct):
    messages: list[dict[str, object]]
    cpu_ms: float
    kept: dict[str, str]


class Headroom:
    """A worker that runs."""

    def __init__(self, worker: subprocess.Popen[bytes]) -> None:
        self._worker = worker

    def compress(self, messages: Sequence[bytes], **options: object) -> Compressed:
        """Raises :class:`BenchFailed` when the worker is gone."""
        asked = {"messages": [msgspec.json.decode(raw) for raw in messages], "options": {**DEFAULTS, **options}}
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(msgspec.json.encode(asked) + b"\n")
        self._worker.stdin.flush()
        line = self._worker.stdout.readline()
        if not line:
            raise BenchFailed(f"{REQUIREMENT} ended with {self._worker.wait()}")
        answer = msgspec.json.decode(line, type=_Answer)
        return Compressed(
            messages=[msgspec.json.encode(each) for each in answer.messages],
            archive={name: text.encode() for name, text in answer.kept.items()},
            handles=_HANDLES,
            cpu_ms=answer.cpu_ms,
        )


def installed(cache: Path) -> Path:
    """Its Python, installed on the first call within half a minute. Raises :class:`BenchFailed` when pip cannot."""
    folder = cache / REQUIREMENT
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if not stamp.exists():
        venv.create(folder, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchFailed(f"pip cannot install {REQUIREMENT}: {done.stderr.strip()[-500:]}")
        stamp.touch()
    return python


@contextmanager
def headroom(cache: Path) -> Iterator[Headroom]:
    """A worker, warmed up. It may reach no network, as its offline switch has it, and writes under ``cache`` only."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HEADROOM_", "PYTHON", "VIRTUAL_ENV"))
    }
    environment |= {
        "HEADROOM_OFFLINE": "1",
        "HOME": str(cache / "headroom-home"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    with subprocess.Popen(
        [str(installed(cache)), "-I", str(_WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as worker:
        running = Headroom(worker)
        try:
            running.compress(_WARM_UP)
            yield running
        finally:
            worker.kill()


_WARM_UP = [
    msgspec.json.encode({"role": "user", "content": "Why?"}),
    msgspec.json.encode(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}],
        }
    ),
    msgspec.json.encode({"role": "tool", "tool_call_id": "a", "content": "INFO all is well\n" * 300}),
    msgspec.json.encode({"role": "user", "content": "And now?"}),
]
