"""``governor demo`` as a program: its figures, and that nothing outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec
import pytest

from governor.demo.figures import Mode
from governor.demo.headless import DemoReport

SPEED = 90
SECONDS = 14
"""Of each mode: 21 minutes of the twin's, ten of them after the long answer has begun."""


async def demo(folder: Path, *arguments: str) -> Process:
    """Its temporary home is in ``folder``."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor", "demo", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of all processes that have to do with a folder. Linux only."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if str(folder) in line:
            found.append(line)
    return found


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def until(folder: Path, *, runs: bool) -> None:
    """The world and the twin are there, or gone."""
    async with asyncio.timeout(30):
        while len(processes_of(folder)) < 2 if runs else processes_of(folder):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_the_figures(tmp_path: Path) -> None:
    program = await demo(tmp_path, "--headless", "--json", "--seconds", f"{SECONDS}", "--speed", f"{SPEED}")
    out, err = await asyncio.wait_for(program.communicate(), 100)
    assert program.returncode == 0, err.decode()
    report = msgspec.json.decode(out, type=DemoReport)
    ungoverned, governed = report.runs
    assert (ungoverned.mode, governed.mode) == (Mode.UNGOVERNED, Mode.GOVERNED)
    stalled, served = ungoverned.of("small"), governed.of("small")
    assert stalled is not None
    assert served is not None
    assert stalled.silent_s is not None
    assert stalled.longest_stall_s == stalled.silent_s > 400, "it stands still behind the 140K that do not fit"
    assert served.longest_stall_s < stalled.longest_stall_s / 2
    assert served.turns > stalled.turns
    assert sum(agent.failed for run in report.runs for agent in run.agents) == 0
    assert not processes_of(tmp_path)
    assert not left_in(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_nothing_outlives_it(tmp_path: Path, number: signal.Signals) -> None:
    program = await demo(tmp_path, "--headless", "--seconds", "600")
    await until(tmp_path, runs=True)
    program.send_signal(number)
    await asyncio.wait_for(program.communicate(), 30)
    await until(tmp_path, runs=False)
    assert not left_in(tmp_path)


async def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    program = await demo(tmp_path, "--headless", "--machine", "no-such-machine")
    _, err = await program.communicate()
    assert program.returncode == 6
    assert b"The demo" in err
    assert not left_in(tmp_path)
    program = await demo(tmp_path)
    _, err = await program.communicate()
    assert program.returncode == 2
    assert b"governor demo --headless --json" in err
