"""The twin beside the running engine: one plan of several agents' turns, asked of both over HTTP.

Half a minute of the engine; ``python -m tests.sglang.agreement`` plays the long plan.
"""

from __future__ import annotations

import asyncio

import pytest

from serve.twin.machine import load_machine
from tests.sglang.agreement import play_on
from tests.sglang.server import SglangServer
from tests.twin.agreement import BOUND, Agreement, is_close_by_tier
from tests.twin.cpu_engine import small
from tests.twin.traffic import Part, Served, Step, short_plan, turns_of
from tests.twin.traffic_http import HttpPlay
from tests.twin.traffic_twin import TwinPlay
from tests.twin_server import twin_server

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

SPEED = 6.0
"""Of the twin's server."""
TWIN = small(load_machine("sglang-cpu"))


@pytest.fixture(scope="module")
def plan() -> list[Step]:
    return short_plan()


@pytest.fixture(scope="module")
def engine(plan: list[Step], sglang_server: SglangServer) -> list[Served]:
    return asyncio.run(play_on(sglang_server, plan))


def test_each_turn_finds_as_much_as_on_the_engine(plan: list[Step], engine: list[Served]) -> None:
    found = Agreement(turns_of(plan), engine, TwinPlay(plan, TWIN).run())
    assert found.share >= BOUND, found.table()


def test_where_the_order_is_the_plan_s_each_turn_finds_it_in_the_same_tier(
    plan: list[Step], engine: list[Served]
) -> None:
    found = Agreement(turns_of(plan), engine, TwinPlay(plan, TWIN).run())
    rows = [row for row in found.rows if row[0].part is not Part.FREE]
    close = sum(is_close_by_tier(engine, twin) for _, engine, twin in rows)
    assert close >= BOUND * len(rows), found.table()
    assert all(sum(getattr(row, tier) > 0 for row in engine) >= 3 for tier in ("device", "host", "storage"))


async def test_the_twin_s_server_says_the_same(plan: list[Step], engine: list[Served]) -> None:
    async with twin_server(TWIN, speed=SPEED) as server, HttpPlay(plan, server.url, speed=SPEED) as play:
        found = Agreement(turns_of(plan), engine, await play.run())
    assert found.share >= BOUND, found.table()
