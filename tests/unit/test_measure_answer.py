"""What is made of a stream: counts by usage, times by the clock."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from governor.errors import UpstreamError
from governor.measure.answer import Answer, AnswerReader
from governor.measure.checks import why_not_cold, why_not_served, why_short
from governor.measure.result import EngineFacts
from governor.measure.suites.concurrency import rate_together
from serve.twin.measured import HitTier

FACTS = EngineFacts(kind="sglang", model="m", window_tokens=1000)


def answer(*events: tuple[float, dict[str, Any]], asked: int = 8, asked_at: float = 0.0) -> Answer:
    reader = AnswerReader(asked_at, asked)
    for at, event in events:
        reader.feed(msgspec.json.encode(event), at)
    reader.feed(b"[DONE]", events[-1][0])
    return reader.answer(events[-1][0])


def text(words: str, tokens: int | None = None, finish: str | None = None) -> dict[str, Any]:
    usage = None if tokens is None else {"prompt_tokens": 100, "completion_tokens": tokens}
    return {"choices": [{"index": 0, "text": words, "finish_reason": finish}], "usage": usage}


def last(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
    return {"choices": [], "usage": usage}


def split(device: int, host: int, storage: int) -> dict[str, Any]:
    details = {"device": device, "host": host, "storage": storage}
    return {"choices": [], "sglext": {"cached_tokens_details": details}}


def test_a_rate_is_of_the_tokens_after_the_first_event() -> None:
    seen = answer((1.0, text("a", 2)), (1.5, text("b", 5)), (2.0, text("c", 8)), (2.1, last(100, 8)))
    assert seen.ttft_s == 1.0
    assert seen.decode_rate == pytest.approx(6 / 1.0)
    assert seen.token_times_s() == pytest.approx([0.5 / 3] * 6)
    assert seen.gaps_s() == [0.5, 0.5]
    assert seen.tokens_per_event == pytest.approx(8 / 3)


def test_events_that_do_not_count_have_no_times_between_tokens() -> None:
    seen = answer((1.0, text("a")), (2.0, text("bcd")), (2.1, last(100, 8)))
    assert seen.token_times_s() is None
    assert seen.decode_rate == pytest.approx(7.0)


def test_a_token_without_text_is_one_if_its_event_counts_it() -> None:
    seen = answer((0.5, text("", 1)), (1.0, text("é", 2)), (1.5, text("", 2, "length")), (1.6, last(100, 2)), asked=2)
    assert [mark.at_s for mark in seen.marks] == [0.5, 1.0]
    assert seen.ttft_s == 0.5


def test_a_chats_reasoning_is_output() -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}
    opening = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}
    assert answer((0.1, opening), (0.7, thought), (0.8, last(1, 1))).ttft_s == 0.7


@pytest.mark.parametrize("data", [b"{", b'{"choices": 7}', b'{"error": {"message": "no"}}'])
def test_what_is_no_event_is_an_error(data: bytes) -> None:
    with pytest.raises(UpstreamError):
        AnswerReader(0.0, 1).feed(data, 0.1)


def test_together_counts_only_while_all_write() -> None:
    """One writes 1 to 3 s, the other 2 to 4 s, a token each half second: between 2 and 3 s both write two."""
    one = answer(*((1 + at / 2, text("x", at + 1)) for at in range(5)), (3.1, last(100, 5)))
    two = answer(*((1 + at / 2, text("x", at + 1)) for at in range(5)), (3.1, last(100, 5)), asked_at=1.0)
    assert rate_together([one, two]) == pytest.approx(4.0)
    late = answer((9.0, text("x", 1)), (9.5, text("x", 2)), (9.5, last(100, 2)))
    assert rate_together([one, late]) is None


def test_what_counts_as_cold_and_as_short() -> None:
    cold = answer((1.0, text("a", 8)), (1.1, last(500, 8, 0)))
    assert why_not_cold(cold, FACTS) is None
    assert why_short(cold) is None
    warm = answer((1.0, text("a", 3)), (1.1, last(500, 3, 64)))
    assert "64 of 500 tokens were cached" in (why_not_cold(warm, FACTS) or "")
    assert "after 3 of 8 tokens" in (why_short(warm) or "")
    chat = msgspec.structs.replace(FACTS, template_tokens=64)
    assert why_not_cold(warm, chat) is None, "what the template puts around every text may be cached"


@pytest.mark.parametrize(
    ("tiers", "tier", "reason"),
    [
        ((480, 0, 0), HitTier.DEVICE, None),
        ((480, 0, 0), HitTier.HOST, "served by L1 480, not by L2"),
        ((20, 460, 0), HitTier.HOST, None),
        ((240, 240, 0), HitTier.HOST, "served by L1 240 + L2 240, not by L2"),
        ((0, 0, 480), HitTier.STORAGE, None),
        ((64, 0, 0), HitTier.DEVICE, "64 of 480 stored tokens were reused"),
        ((0, 0, 0), HitTier.STORAGE, "0 of 480 stored tokens were reused"),
    ],
)
def test_who_served(tiers: tuple[int, int, int], tier: HitTier, reason: str | None) -> None:
    seen = answer((1.0, text("a", 8)), (1.1, last(500, 8, sum(tiers))), (1.1, split(*tiers)))
    said = why_not_served(seen, tier, 480)
    assert said is None if reason is None else said is not None and said.startswith(reason)
