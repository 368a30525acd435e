"""The twin against recordings of the running engine: how many tokens of each turn came from the cache, and from where.

``python -m tests.sglang.agreement --plan NAME --record FILE`` makes one; ``docs/design/twin-agreement.md`` has the
figures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import pytest

from serve.twin.engine_model import EngineSettings
from serve.twin.machine import load_machine
from serve.twin.tiers_model import TierSettings
from tests.twin.agreement import BOUND, Agreement, is_close_by_tier
from tests.twin.cpu_engine import small
from tests.twin.recording import Recording
from tests.twin.traffic import Part, turns_of
from tests.twin.traffic_http import HttpPlay
from tests.twin.traffic_twin import TwinPlay
from tests.twin_server import twin_server

DATA = Path(__file__).parent / "data"
RECORDINGS = {path.stem: Recording.read(path) for path in sorted(DATA.glob("sglang-cpu-*.jsonl"))}
FREE_TIER_BOUND = 0.7
"""Of free-running turns within a page in each tier: who ends first decides what falls from L1, and the engine's speed
is as even as the machine that it was recorded on."""
TWIN = small(load_machine("sglang-cpu"))


@cache
def agreement(name: str) -> Agreement:
    recording = RECORDINGS[name]
    return Agreement(turns_of(recording.steps), recording.served, TwinPlay(recording.steps, TWIN).run())


@pytest.mark.parametrize("name", RECORDINGS)
def test_each_turn_finds_as_much_as_on_the_engine(name: str) -> None:
    found = agreement(name)
    assert found.share >= BOUND, found.table()


@pytest.mark.parametrize("name", RECORDINGS)
def test_where_the_order_is_the_plan_s_each_turn_finds_it_in_the_same_tier(name: str) -> None:
    rows = [row for row in agreement(name).rows if row[0].part is not Part.FREE]
    assert all(is_close_by_tier(engine, twin) for _, engine, twin in rows)


@pytest.mark.parametrize("name", RECORDINGS)
def test_free_running_turns_find_most_of_it_in_the_same_tier(name: str) -> None:
    found = agreement(name)
    close = [is_close_by_tier(engine, twin) for turn, engine, twin in found.rows if turn.part is Part.FREE]
    assert sum(close) >= FREE_TIER_BOUND * len(close), found.table()


@pytest.mark.parametrize("name", RECORDINGS)
def test_prompts_and_answers_have_the_engine_s_lengths(name: str) -> None:
    for turn, engine, twin in agreement(name).rows:
        assert engine.prompt_tokens == twin.prompt_tokens
        if turn.stop_after_tokens is None:
            assert engine.completion_tokens == twin.completion_tokens


async def test_the_twin_s_server_says_the_same() -> None:
    recording = RECORDINGS["sglang-cpu-short"]
    speed = 8.0
    async with twin_server(TWIN, speed=speed) as server, HttpPlay(recording.steps, server.url, speed=speed) as play:
        found = Agreement(turns_of(recording.steps), recording.served, await play.run())
    assert found.share >= BOUND, found.table()


def _tiers(**changes: object) -> Callable[[EngineSettings], EngineSettings]:
    def change(engine: EngineSettings) -> EngineSettings:
        tiers: TierSettings = msgspec.structs.replace(engine.tiers, **changes)
        return msgspec.structs.replace(engine, tiers=tiers)

    return change


@pytest.mark.parametrize(
    "wrong",
    [
        _tiers(track_interval_tokens=256),
        _tiers(host_tokens=0, host_slots=0, storage_tokens=0),
        _tiers(storage_tokens=0),
        _tiers(device_slots=20),
    ],
    ids=["states of a decode farther apart", "no L2", "no L3", "fewer states in L1"],
)
def test_a_wrong_model_is_found_out(wrong: Callable[[EngineSettings], EngineSettings]) -> None:
    """An agreement that nothing could break would show nothing."""
    recording = RECORDINGS["sglang-cpu-long"]
    machine = msgspec.structs.replace(TWIN, engine=wrong(TWIN.engine))
    turns = [turn for turn in turns_of(recording.steps) if turn.part is not Part.FREE]
    found = Agreement(turns, recording.served, TwinPlay(recording.steps, machine).run())
    assert found.tier_share < BOUND, found.table()
