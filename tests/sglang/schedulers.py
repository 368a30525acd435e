"""Stops a server's scheduler processes for a while, as a hang would."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TITLE = b"sglang::scheduler"


@contextmanager
def stopped_schedulers(group: int) -> Iterator[None]:
    """Those of this process group. They run again at the end."""
    found = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _is_scheduler(entry) and os.getpgid(int(entry.name)) == group
    ]
    if not found:
        raise RuntimeError("no scheduler found")
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in found:
            os.kill(pid, signal.SIGCONT)


def _is_scheduler(entry: Path) -> bool:
    try:
        return (entry / "cmdline").read_bytes().startswith(_TITLE)
    except OSError:
        return False
