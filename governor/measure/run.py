"""A run: prompts made, engine warmed up, the suite's steps taken, and the result put together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from governor.errors import UpstreamError
from governor.measure.errors import MeasureFailed
from governor.measure.machine import load_average
from governor.measure.options import Options
from governor.measure.prepare import make_prompts, warm_up
from governor.measure.result import SCHEMA_VERSION, MachineFacts, Result
from governor.measure.session import Session, Watcher
from governor.measure.suites import SUITES
from governor.measure.target import Target

OnPartial = Callable[[Result], None]


def _kept_by_nobody(_result: Result) -> None:
    """Nobody wants what was measured before an interruption."""


async def run_suite(
    target: Target,
    suite: str,
    *,
    machine: MachineFacts,
    governor_version: str,
    seed: str,
    repeats: int,
    options: Options | None = None,
    watcher: Watcher | None = None,
    on_interrupted: OnPartial = _kept_by_nobody,
) -> Result:
    """Measure. Pushes what others have stored out of the engine's caches, and some suites empty L1 and L2.

    Cancelled, it gives what there is to ``on_interrupted`` and goes on being cancelled. Raises :class:`MeasureFailed`.
    """
    chosen = options or Options()
    began_at, began = time.gmtime(), time.monotonic()
    prompts = await make_prompts(target, seed)
    session = Session(target, prompts, repeats=repeats, watcher=watcher)

    def result(*, is_complete: bool) -> Result:
        return Result(
            schema_version=SCHEMA_VERSION,
            suite=suite,
            started_at=time.strftime("%Y-%m-%d %H:%M:%S", began_at),
            took_s=round(time.monotonic() - began, 1),
            governor_version=governor_version,
            seed=seed,
            repeats=repeats,
            protocol=chosen.protocol(),
            machine=msgspec.structs.replace(machine, load_after=load_average()),
            engine=target.facts,
            measures=session.measures,
            thrown=tuple(session.thrown),
            skipped=tuple(session.skipped),
            notes=tuple(session.notes),
            is_complete=is_complete,
        )

    await warm_up(target, prompts)
    try:
        await session.take(SUITES[suite].steps(session, chosen))
    except asyncio.CancelledError:
        on_interrupted(result(is_complete=False))
        raise
    except UpstreamError as error:
        raise MeasureFailed(f"The engine fails between two questions: {error.message}") from error
    return result(is_complete=True)
