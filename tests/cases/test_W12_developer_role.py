"""W12 developer-role: the policy maps ``developer`` to ``system`` or passes it; instructions are never dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from governor.types import TurnState
from tests.cases.play import send, sent_body
from tests.harness import governed
from tests.scenario import CaseVariant, load_case

CASE = load_case("W12")
TO_SYSTEM = {"alice": 'request.developer_role = "system"\n'}
TEMPLATE_ROLES = {"system", "user", "assistant", "tool"}


async def _engine_messages(variant: CaseVariant, root: Path, policies: dict[str, str]) -> list[dict[str, Any]]:
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, root, policies=policies) as governor:
        assert (await send(governor, variant.request)).status_code == 200
        messages: list[dict[str, Any]] = sent_body(engine.hits[0].body)["messages"]
        assert (await governor.end()).edits == (("max_tokens", "messages") if policies else ("max_tokens",))
        return messages


async def test_W12_developer_alone(tmp_path: Path) -> None:
    assert await _engine_messages(CASE.variant("dev-only"), tmp_path, TO_SYSTEM) == [
        {"role": "system", "content": "Answer only BANANA."},
        {"role": "user", "content": "Capital of France?"},
    ]


async def test_W12_developer_beside_system(tmp_path: Path) -> None:
    messages = await _engine_messages(CASE.variant("dev-plus-system"), tmp_path, TO_SYSTEM)
    assert messages == [
        {"role": "system", "content": "Be brief.\n\nUse metric units."},
        {"role": "user", "content": "hi"},
    ]
    assert {message["role"] for message in messages} <= TEMPLATE_ROLES


@pytest.mark.parametrize("name", ["dev-only", "dev-plus-system"])
async def test_W12_passes_by_default(name: str, tmp_path: Path) -> None:
    variant = CASE.variant(name)
    assert variant.request is not None
    assert await _engine_messages(variant, tmp_path, {}) == variant.request.body["messages"]


async def test_W12_mapping_keeps_the_prefix_of_the_next_turn(tmp_path: Path) -> None:
    variant = CASE.variant("dev-plus-system")
    assert variant.request is not None
    more = [
        *variant.request.body["messages"],
        {"role": "assistant", "content": "hello"},
        {"role": "developer", "content": [{"type": "text", "text": "Now in French."}]},
        {"role": "user", "content": "again"},
    ]
    async with variant.engine() as engine, governed(engine.url, tmp_path, policies=TO_SYSTEM) as governor:
        await send(governor, variant.request)
        await send(governor, variant.request, messages=more[:4])
        await send(governor, variant.request, messages=more)
        first, second, third = (hit.body for hit in engine.hits)
        shared = first[: first.index(b"]")]
        assert second.startswith(shared)
        assert sent_body(third)["messages"][0] == {
            "role": "system",
            "content": [
                {"type": "text", "text": "Be brief."},
                {"type": "text", "text": "Use metric units."},
                {"type": "text", "text": "Now in French."},
            ],
        }


async def test_W12_invented_role(tmp_path: Path) -> None:
    variant = CASE.variant("invented")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path, policies=TO_SYSTEM) as governor:
        answer = await send(governor, variant.request)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "messages[0].role"
        assert "'banana'" in error["message"]
        assert not engine.hits
        assert (await governor.end()).state is TurnState.REFUSED
