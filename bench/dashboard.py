"""``python -m bench.dashboard``: what the dashboard costs, in a real terminal of its own: processor time, and bytes
that a slow link would have to carry. Idle, and with 64 agents and 200 events a second, on each screen."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from bench.dashboard_feed import TOKEN
from bench.processes import cpu_seconds, resident_mib
from bench.report import Sheet, figure, machine, print_sheets
from governor.settings import Secret
from tui.app import Dashboard
from tui.client import Address

IDLE_GOAL, BUSY_GOAL = 0.02, 0.10
"""Of one core."""
_SCREENS = ("overview", "agents", "queue", "engine", "log")
_SETTLE_S = 4.0
_ENDS_WITHIN_S = 10.0

app = typer.Typer(add_completion=False)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one screen for a while."""

    screen: str
    size: str
    agents: int
    events_per_s: float
    of_a_core: float
    bytes_per_s: float
    feed_of_a_core: float
    """Of the process that serves it, making its figures up included."""
    resident_mib: float


class Terminal:
    """A program in a terminal; what it writes is counted and thrown away."""

    def __init__(self, command: list[str], width: int, height: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.written = 0
        threading.Thread(target=self._read, daemon=True).start()

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def close(self) -> None:
        self.press("q")
        try:
            self.process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65_536)
            except OSError:
                return
            if not data:
                return
            self.written += len(data)


@contextmanager
def feed(agents: int, per_s: float) -> Iterator[tuple[int, int]]:
    """A made-up governor: its process and its port."""
    command = [sys.executable, "-m", "bench.dashboard_feed", str(agents), str(per_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("the feed has no pipes")
        try:
            yield child.pid, int(child.stdout.readline())
        finally:
            child.stdin.close()


def measured(agents: int, per_s: float, size: tuple[int, int], seconds: float) -> Iterator[Cost]:
    """Each screen in turn, of one dashboard."""
    with feed(agents, per_s) as (feeder, port):
        terminal = Terminal([sys.executable, "-m", "bench.dashboard", "watch", str(port)], *size)
        try:
            time.sleep(_SETTLE_S)
            for number, screen in enumerate(_SCREENS, 1):
                terminal.press(str(number))
                time.sleep(_SETTLE_S / 2)
                before = (cpu_seconds(terminal.process.pid), terminal.written, cpu_seconds(feeder), time.monotonic())
                time.sleep(seconds)
                passed = time.monotonic() - before[3]
                yield Cost(
                    screen=screen,
                    size=f"{size[0]}x{size[1]}",
                    agents=agents,
                    events_per_s=per_s,
                    of_a_core=(cpu_seconds(terminal.process.pid) - before[0]) / passed,
                    bytes_per_s=(terminal.written - before[1]) / passed,
                    feed_of_a_core=(cpu_seconds(feeder) - before[2]) / passed,
                    resident_mib=resident_mib(terminal.process.pid),
                )
        finally:
            terminal.close()


@app.command()
def watch(port: int) -> None:
    """The dashboard itself, on this terminal."""
    address = Address(f"http://127.0.0.1:{port}", Secret(TOKEN))
    Dashboard(lambda: address).run()


@app.command()
def run(
    seconds: Annotated[float, typer.Option(help="To measure each screen for.")] = 10.0,
    width: Annotated[int, typer.Option(help="Of the terminal, in cells.")] = 120,
    height: Annotated[int, typer.Option(help="Of the terminal, in lines.")] = 40,
) -> None:
    """Measure, and print a table. Exit code 1 when a goal is missed."""
    where = machine("bench.dashboard")
    size = (width, height)
    costs = [*measured(4, 0.0, size, seconds), *measured(64, 200.0, size, seconds)]
    print_sheets([_sheet(costs)], where, Console())
    if any(cost.of_a_core > (BUSY_GOAL if cost.events_per_s else IDLE_GOAL) for cost in costs):
        raise SystemExit(1)


def _sheet(costs: list[Cost]) -> Sheet:
    return Sheet(
        title="What the dashboard costs",
        columns=("screen", "terminal", "agents", "events/s", "of a core", "KB/s written", "feed of a core", "MiB"),
        rows=[
            (
                cost.screen,
                cost.size,
                str(cost.agents),
                figure(cost.events_per_s, 0),
                f"{cost.of_a_core:.1%}",
                figure(cost.bytes_per_s / 1000),
                f"{cost.feed_of_a_core:.1%}",
                figure(cost.resident_mib, 0),
            )
            for cost in costs
        ],
        note=f"Goals: {IDLE_GOAL:.0%} of a core idle, {BUSY_GOAL:.0%} with 64 agents and 200 events/s.",
    )


if __name__ == "__main__":
    app()
