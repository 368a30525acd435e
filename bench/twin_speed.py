"""``python -m bench.twin_speed``: how fast the simulator is, and where its time goes.

Eight agents share the fitted machine for a day: four that behave as Hermes and four as OpenClaw, with the generator's
own distributions, once straight on the engine and once through the governor. Time is the process's CPU time on one
core; where it goes is told by looking at the stack every few milliseconds of it, which costs next to nothing.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from bench.report import Sheet, machine, markdown, print_sheets
from governor.simulate.deciding import read_policies
from governor.simulate.result import Result
from governor.simulate.simulator import simulate
from serve.twin.machine import load_machine
from serve.twin.trace import Agent, Client, Compaction, Generator, Header, Line, Shared, Trace, assembled

LOOK_S = 0.005
PARTS = {
    "serve/twin/tiers": "cache tiers: match, insert, evict, copies",
    "serve/twin/engine": "engine: queue, admission, decode leaps",
    "governor/schedule": "the gateway's scheduler",
    "governor/budget": "the gateway's KV ledger",
    "governor/simulate": "agents, clients, books of the run",
}
OTHER = "all else"

app = typer.Typer(add_completion=False)


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    governed: bool
    simulated_s: float
    cpu_s: float
    requests: int
    output_tokens: int
    shares: dict[str, float]
    """Of the CPU time, by part."""

    @property
    def ratio(self) -> float:
        """Simulated seconds in a second of CPU time."""
        return self.simulated_s / self.cpu_s


def a_day(hours: float = 24.0, agents: int = 8) -> Trace:
    """The trace: ``agents`` in turn Hermes and OpenClaw."""
    lines: list[Line] = [Header(name=f"{agents} agents for {hours:g} h")]
    for number in range(agents):
        client = (Client.HERMES, Client.OPENCLAW)[number % 2]
        name = f"{client}-{number}"
        lines.append(Agent(name=name, client=client, policy=str(client), compaction=Compaction()))
        lines.append(
            Generator(
                agent=name,
                session="main",
                start_s=30.0 * number,
                until_s=hours * 3600,
                shared=Shared(name=str(client), tokens=12_000),
                carrier_tokens=80 if client is Client.OPENCLAW else 0,
                cap=8192,
            )
        )
    return assembled(lines)


def measure(trace: Trace, machine_name: str, *, governed: bool, seed: int = 0) -> Speed:
    """Play it once."""
    where = load_machine(machine_name)
    policies = read_policies(trace) if governed else None
    looks: Counter[str] = Counter()

    def look(_number: int, frame: FrameType | None) -> None:
        looks[_part(frame)] += 1

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, LOOK_S, LOOK_S)
    began = time.process_time()
    try:
        result: Result = simulate(trace, where, policies, seed)
        cpu_s = time.process_time() - began
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
    total = max(1, looks.total())
    return Speed(
        governed=governed,
        simulated_s=result.ended_s,
        cpu_s=cpu_s,
        requests=len(result.turns),
        output_tokens=sum(row.output_tokens for row in result.turns),
        shares={part: looks[part] / total for part in (*PARTS.values(), OTHER)},
    )


def _part(frame: FrameType | None) -> str:
    """Of the deepest frame that is of a part."""
    while frame is not None:
        path = Path(frame.f_code.co_filename).as_posix()
        for start, part in PARTS.items():
            if f"/{start}" in path:
                return part
        frame = frame.f_back
    return OTHER


def _sheets(speeds: list[Speed]) -> list[Sheet]:
    runs = ["through the governor" if speed.governed else "straight on the engine" for speed in speeds]
    speed_sheet = Sheet(
        title="Speed",
        columns=("run", "simulated h", "CPU s", "times real time", "requests", "ms a request", "tokens written"),
        rows=[
            (
                run,
                f"{speed.simulated_s / 3600:.1f}",
                f"{speed.cpu_s:.1f}",
                f"{speed.ratio:,.0f}",
                f"{speed.requests:,}",
                f"{1000 * speed.cpu_s / max(1, speed.requests):.2f}",
                f"{speed.output_tokens:,}",
            )
            for run, speed in zip(runs, speeds, strict=True)
        ],
    )
    where_sheet = Sheet(
        title="Where the time goes",
        columns=("part", *runs),
        rows=[(part, *(f"{100 * speed.shares[part]:.0f} %" for speed in speeds)) for part in (*PARTS.values(), OTHER)],
    )
    return [speed_sheet, where_sheet]


@app.command()
def main(
    hours: Annotated[float, typer.Option(help="Simulated time.")] = 24.0,
    agents: Annotated[int, typer.Option(help="How many.")] = 8,
    machine_name: Annotated[str, typer.Option("--machine", help="A machine of the twin.")] = "rx7900xtx-tp2",
    output: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
) -> None:
    """Measure the simulator's speed."""
    here = machine("bench.twin_speed")
    trace = a_day(hours, agents)
    sheets = _sheets([measure(trace, machine_name, governed=governed) for governed in (False, True)])
    print_sheets(sheets, here, Console())
    if output is not None:
        output.write_text(markdown(sheets, here), "utf-8")


if __name__ == "__main__":
    app()
