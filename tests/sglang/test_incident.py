"""One long answer beside three small agents, on the real engine: nobody stands still, nothing takes longer for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sglang.incident import HOG, SMALL, WAITING_S, both
from tests.sglang.server import SglangServer

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

HOG_TOKENS, TURNS = 3_000, 12


async def test_small_agents_do_not_wait_for_the_hog(sglang_server: SglangServer, tmp_path: Path) -> None:
    without, governed, rows = await both(sglang_server.url, tmp_path, hog_tokens=HOG_TOKENS, turns=TURNS)
    told = f"{without.worst_small_s:.1f} s and {without.makespan_s:.1f} s without a governor"
    assert governed.worst_small_s <= max(5.0, without.worst_small_s / 3), told  # a busy machine is slow at both
    assert governed.makespan_s <= 1.1 * without.makespan_s, told
    assert governed.hog.silence_s <= WAITING_S
    assert governed.hog.usage["completion_tokens"] == HOG_TOKENS
    assert governed.hog.finish == "length"
    for name in SMALL:
        assert [turn.usage["completion_tokens"] for turn in governed.turns[name]] == [30] * TURNS
    (hog,) = [row.closed for row in rows if row.agent == HOG]
    assert hog is not None
    assert hog.pieces > 1
    assert hog.usage.completion_tokens == HOG_TOKENS
