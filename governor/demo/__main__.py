"""``python -m governor.demo``: the demo's world as a process of its own, which ends with whoever started it.

Its standard input takes a mode a line, at which the incident starts over in that mode; where it ends, so does this.
Its standard output tells :class:`~governor.demo.pace.Pace`, then again and again
:class:`~governor.demo.figures.RunFigures`, one JSON value a line. Its standard error is for people.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from governor.demo.figures import Mode
from governor.demo.pace import Pace, PacedLoop
from governor.demo.world import World, play
from governor.errors import GovernorError
from governor.settings import Home
from governor.simulate.incident import incident
from serve.errors import ServeError

_TELL_EVERY_S = 0.25
"""On the wall."""
log = logging.getLogger("governor.demo")


async def main(home: Home, machine: str, speed: float, mode: Mode) -> int:
    """Until the standard input ends or a signal comes. Returns an exit code."""
    pace = Pace.now_at(speed)
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: me and me.cancel())
    _tell(pace)
    orders = _orders()
    life, trace = 0, incident()
    next_mode: Mode | None = mode
    try:
        while next_mode is not None:
            life += 1
            world = World(trace, next_mode, life)
            playing = asyncio.create_task(play(trace, machine, home, pace, world, next_mode))
            ordering = asyncio.ensure_future(anext(orders, None))
            telling = asyncio.create_task(_tell_of(world, _TELL_EVERY_S * speed))
            try:
                await asyncio.wait({playing, ordering}, return_when=asyncio.FIRST_COMPLETED)
                if playing.done():
                    await playing
                next_mode = await ordering
            finally:
                for task in (telling, playing, ordering):
                    task.cancel()
                await asyncio.gather(telling, playing, return_exceptions=True)
    except asyncio.CancelledError:
        return 0
    except (GovernorError, ServeError) as error:
        print(f"the demo cannot go on: {error}", file=sys.stderr)
        return 1
    return 0


async def _orders() -> AsyncIterator[Mode]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        with contextlib.suppress(ValueError):
            yield Mode(line.decode(errors="replace").strip())


async def _tell_of(world: World, every_s: float) -> None:
    while True:
        _tell(world.figures())
        await asyncio.sleep(every_s)


def _tell(value: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
        sys.stdout.buffer.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m governor.demo", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="a folder of the demo's own; removed at the end")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--speed", type=float, required=True)
    parser.add_argument("--mode", type=Mode, choices=list(Mode), required=True)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        with asyncio.Runner(loop_factory=lambda: PacedLoop(given.speed)) as runner:
            code = runner.run(main(Home(given.home), given.machine, given.speed, given.mode))
    finally:
        shutil.rmtree(given.home, ignore_errors=True)
    sys.exit(code)
