"""Client processes: a clean environment and a port to run on, and ends that leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

NOWHERE = "http://127.0.0.1:9"
"""A proxy where nobody listens: whatever a client wants from the internet fails at once instead of after a wait."""


@dataclass(frozen=True)
class Finished:
    """A process that has ended."""

    exit_code: int
    stdout: str
    stderr: str


class ClientTookTooLong(Exception):
    """A client did not end in time; the message holds what it had printed."""


def clean_environment(home: Path, path: Sequence[Path], extra: Mapping[str, str]) -> dict[str, str]:
    """Nothing of the person's own: no provider keys, no settings, no way out of the machine. Makes the folders."""
    scratch = home / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    return {
        "HOME": str(home),
        "PATH": os.pathsep.join([*map(str, path), "/usr/local/bin", "/usr/bin", "/bin"]),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": str(scratch),
        "HTTP_PROXY": NOWHERE,
        "HTTPS_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1,localhost",
        **extra,
    }


async def run(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout_s: float) -> Finished:
    """Run to the end. Raises :class:`ClientTookTooLong` after killing the process and its children.

    Output goes to files, because a child that outlives the client would keep a pipe open.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = await start(command, cwd=cwd, environment=environment, stdout=stdout, stderr=stderr)
        try:
            async with asyncio.timeout(timeout_s):
                code = await process.wait()
        except TimeoutError:
            said = f"{_content(stdout)}\n{_content(stderr)}"[-2000:]
            raise ClientTookTooLong(f"no end after {timeout_s:g} s: {' '.join(command)}\n{said}") from None
        finally:
            kill_group(process.pid)
            await process.wait()
        return Finished(code, _content(stdout), _content(stderr))


async def start(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
) -> asyncio.subprocess.Process:
    """Start a process that leads a group of its own."""
    return await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def kill_group(pid: int) -> None:
    """Kill what is left of a process group. May be repeated safely."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def with_environment(entry: str) -> list[int]:
    """Ids of living processes started with ``NAME=value`` in their environment. Linux only; elsewhere none."""
    wanted = entry.encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
