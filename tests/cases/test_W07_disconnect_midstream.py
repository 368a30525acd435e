"""W07 disconnect-midstream: a client that leaves stops the engine within a second, on every route."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from governor.types import TurnState
from serve.engine import Endpoint
from tests.cases.play import leave
from tests.harness import governed
from tests.scenario import CaseVariant, load_case

CASE = load_case("W07")
LIMIT_S = 1.0


@pytest.mark.parametrize("variant", CASE.variants, ids=lambda variant: variant.v)
async def test_W07_engine_is_released(variant: CaseVariant, tmp_path: Path) -> None:
    assert variant.request is not None
    is_responses = variant.request.path == Endpoint.RESPONSES
    body = {"input": variant.request.body["messages"]} if is_responses else {}
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        left_at = await leave(governor, variant.request, variant.client, body)
        hit = engine.hits[0]
        await engine.wait_for(lambda: hit.peer_closed_at is not None, LIMIT_S)
        assert hit.peer_closed_at is not None
        assert hit.peer_closed_at - left_at < LIMIT_S
        assert hit.tokens_sent_after(left_at) <= 10
        end = await governor.end()
        assert end.state is TurnState.CLIENT_ABORTED
        assert end.usage.completion_tokens is None
        streamed = bool(variant.request.body["stream"])
        assert end.http_status == (200 if streamed else None)
        assert (end.completion_tokens_estimated is not None) == streamed
        await governor.assert_idle()
        await engine.wait_idle()


async def test_W07_short_answer_that_fits_the_socket_buffers(tmp_path: Path) -> None:
    """All of it is written before the close is seen: a success that nobody read, or an abort, but one row."""
    variant = CASE.variant("chat-stream")
    assert variant.request is not None
    steps: list[dict[str, Any]] = [
        {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
        {"tokens": 3, "interval_ms": 0},
    ]
    engine = CaseVariant(v="short", expect=[], stub=steps).engine()
    async with engine, governed(engine.url, tmp_path) as governor:
        await leave(governor, variant.request, {"disconnect_after_bytes": 1})
        await engine.wait_idle(LIMIT_S)
        assert (await governor.end()).state in {TurnState.OK, TurnState.CLIENT_ABORTED}
        await governor.assert_idle()
