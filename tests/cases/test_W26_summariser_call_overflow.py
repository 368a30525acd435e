"""W26 summariser-call-overflow: what the summary is written from fits its window, holds no data URL, is capped under
every spelling, and waits for nobody who waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from governor.compress.summary import cap_tokens
from governor.events import TurnDecided
from governor.schedule.events import EngineMode
from governor.types import TurnKind, TurnState
from tests.scenario import load_case
from tests.summarising import AGENT, policy_of, summarising

(VARIANT,) = load_case("W26").variants
assert VARIANT.request is not None
BODY = VARIANT.request.body
WINDOW = VARIANT.policy["summary_window"]
POLICIES = {AGENT: f"limits.concurrency = {VARIANT.policy['slots']}\n"}


@pytest.mark.parametrize("rounds", [1, 12], ids=["images alone", "text, too"])
async def test_W26_the_summary_fits_and_has_no_data_url(rounds: int, tmp_path: Path) -> None:
    """``rounds``: how often the history is gone through; a dozen are far more text than the window."""
    *history, last = BODY["messages"]
    messages = [*history * rounds, last]
    async with VARIANT.engine() as engine, summarising(engine.url, tmp_path, policies=POLICIES) as at:
        at.gateway.governor.admission.set_engine(EngineMode.READY, slots=VARIANT.policy["slots"])
        asked = await at.asked(messages, window_tokens=WINDOW, max_completion_tokens=9)
        async with asyncio.timeout(10):
            written = await at.summariser.write(asked)
        assert written.summary is not None, str(written.rejected)
        assert written.summary.covered == len(messages) - 1
        (hit,) = engine.hits
        assert b"data:image" not in hit.body
        assert b"image_url" not in hit.body
        sent = msgspec.json.decode(hit.body)
        assert sent["max_tokens"] == cap_tokens(policy_of().compression)
        assert "max_completion_tokens" not in sent
        (row,) = [end for end in await at.gateway.ends() if end.kind is TurnKind.SUMMARY]
        assert row.state is TurnState.OK
        assert row.flags == (f"parent:{asked.parent.turn_id}",)
        assert row.prompt_tokens_counted is not None
        assert row.prompt_tokens_counted + sent["max_tokens"] <= WINDOW
        if rounds > 1:
            assert written.left, "what was cut can be recalled"
            assert len(sent["messages"]) < len(messages)


async def test_W26_one_slot_serves_the_summary_and_then_the_turn(tmp_path: Path) -> None:
    """The agent's limit of one turn at once does not keep its own summary out; the one slot is not held meanwhile."""
    async with (
        VARIANT.engine() as engine,
        summarising(engine.url, tmp_path, policies=POLICIES, agents=(AGENT, "bob")) as at,
    ):
        at.gateway.governor.admission.set_engine(EngineMode.READY, slots=VARIANT.policy["slots"])
        asked = await at.asked(BODY["messages"], window_tokens=WINDOW)
        async with asyncio.timeout(10):
            written, *others = await asyncio.gather(
                at.summariser.write(asked), at.gateway.chat(AGENT), at.gateway.chat("bob")
            )
        assert written.summary is not None
        assert [answer.status_code for answer in others] == [200, 200]
        assert engine.pool.peak_running == 1
        decided = [each.event for each in at.gateway.governor.events.since(0) if isinstance(each.event, TurnDecided)]
        assert any(each.turn_id == written.turn_id for each in decided)


async def test_W26_a_failure_leaves_the_original_intact(tmp_path: Path) -> None:
    async with VARIANT.engine(window_tokens=10) as engine, summarising(engine.url, tmp_path, policies=POLICIES) as at:
        before = msgspec.json.encode(BODY["messages"])
        asked = await at.asked(BODY["messages"], window_tokens=cap_tokens(policy_of().compression) + 20)
        written = await at.summariser.write(asked)
        assert written.summary is None
        assert not engine.hits
        assert msgspec.json.encode([msgspec.json.decode(raw) for raw in asked.request.messages]) == before
