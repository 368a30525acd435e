"""The twin against the running engine: one plan of several agents' turns, asked of both.

``python -m tests.sglang.agreement`` starts the engine, plays the long plan on it and on the twin, and prints how far
they agree; ``--record FILE`` keeps the engine's figures, ``--recorded FILE`` takes them from there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from serve.twin.machine import load_machine
from tests.sglang.server import SglangServer
from tests.twin.agreement import BOUND, Agreement
from tests.twin.cpu_engine import small
from tests.twin.recording import Recording
from tests.twin.traffic import PLANS, Served, Step, in_order_of, turns_of
from tests.twin.traffic_http import HttpPlay
from tests.twin.traffic_twin import TwinPlay


async def play_on(server: SglangServer, steps: list[Step]) -> list[Served]:
    """The plan on the real engine, which is killed and started again where the plan says so."""

    async def restart() -> None:
        await asyncio.to_thread(server.kill)
        server.start()
        await asyncio.to_thread(server.wait_ready)

    async with HttpPlay(steps, server.url, restart) as play:
        return await play.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.agreement")
    parser.add_argument("--plan", choices=sorted(PLANS), default="long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--machine", default="sglang-cpu", help="of the twin; it gets the test server's small pools")
    parser.add_argument("--record", type=Path, help="keep the engine's figures in this file")
    parser.add_argument("--recorded", type=Path, help="take them from there, with plan and seed")
    asked = parser.parse_args()
    if asked.recorded:
        recording = Recording.read(asked.recorded)
    else:
        steps = PLANS[asked.plan](asked.seed)
        with tempfile.TemporaryDirectory() as folder, SglangServer(Path(folder)) as server:
            served = asyncio.run(play_on(server, steps))
        recording = Recording(
            plan=asked.plan, seed=asked.seed, served=tuple(sorted(served, key=lambda row: row.number))
        )
        if asked.record:
            recording.write(asked.record)
    machine = small(load_machine(asked.machine))
    turns = turns_of(recording.steps)
    agreement = Agreement(turns, recording.served, TwinPlay(recording.steps, machine).run())
    print(agreement.table())
    ordered = Agreement(
        turns, recording.served, TwinPlay(in_order_of(recording.steps, recording.served), machine).run()
    )
    print(f"sent in the engine's order: {ordered.share:.1%} within a page, {ordered.tier_share:.1%} in each tier")
    sys.exit(agreement.share < BOUND)


if __name__ == "__main__":
    main()
