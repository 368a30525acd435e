"""W46 priority-direction, the gateway's and the adapter's half: the policy's class has one meaning, the engine gets it
in its own direction or not at all, and a client's own number never arrives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serve.scripted import Knobs, ScriptedEngine
from tests.harness import governed
from tests.scenario import load_case
from tests.sglang_http import FakeSglang

(VARIANT,) = load_case("W46").variants
assert VARIANT.request is not None
BODY = VARIANT.request.body
POLICIES = {"chat": 'class = "interactive"\n', "batch": 'class = "background"\n'}
SERVERS: dict[str, dict[str, Any]] = {
    "larger_wins": {"enable_priority_scheduling": True},
    "smaller_wins": {"enable_priority_scheduling": True, "schedule_low_priority_values_first": True},
    "off": {"enable_priority_scheduling": False},
}


@pytest.mark.parametrize("row", VARIANT.rows, ids=[row["engine"] for row in VARIANT.rows])
async def test_W46_the_class_arrives_in_the_engines_direction(row: dict[str, Any], tmp_path: Path) -> None:
    async with (
        FakeSglang(**SERVERS[row["engine"]]) as engine,
        governed(engine.url, tmp_path, policies=POLICIES, agents=("chat", "batch"), engine_kind="sglang") as governor,
    ):
        for agent in ("chat", "batch"):
            assert (await governor.chat(agent, **BODY)).status_code == 200
        ends = await governor.ends()
    assert BODY["priority"] == 999
    sent = [body.get("priority") for body in engine.bodies]
    first, second = sent
    if row.get("sent") is False:
        assert sent == [None, None]
        assert all("-priority" in end.edits for end in ends)
    else:
        assert first is not None
        assert second is not None
        assert (first > second) is row["chat_gt_batch"]
        assert first != second
        assert all("priority" in end.edits for end in ends)
    assert b"999" not in b"".join(str(body).encode() for body in engine.bodies)


async def test_W46_no_other_engine_gets_it_either(tmp_path: Path) -> None:
    async with (
        ScriptedEngine("record", knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path, policies=POLICIES, agents=("chat",)) as governor,
    ):
        answer = await governor.chat("chat", **BODY)
        assert answer.headers["x-governor-dropped"] == "priority"
        assert b"priority" not in engine.hits[0].body
