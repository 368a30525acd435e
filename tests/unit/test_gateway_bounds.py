"""What is shown of an answer, held against the policy's bounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from governor.errors import UpstreamError
from governor.gateway.bounds import Bounds, LoopGuard, bounds_of
from governor.gateway.metrics import Metrics
from governor.policy.model import OutputPolicy
from governor.types import TurnState, Usage
from governor.wire.answer import ChatReader, Seen
from governor.wire.ending import cut_off
from governor.wire.joined import Joined
from governor.wire.seam import Kind
from governor.wire.sse import SseEvent, encode
from serve.engine import Capabilities
from serve.engines.sglang_continuation import SglangContinuation

LOOP = "round and round "


class Counting(SglangContinuation):
    """Four characters are a token."""

    def __init__(self, end: tuple[int, ...] = (7, 8), failures: int = 0, end_is_told: bool = True) -> None:
        super().__init__(self._unasked, self._unasked)
        self.end = end
        self.failures = failures
        self.end_is_told = end_is_told
        self.ends_asked = 0
        self.counted: list[str] = []

    async def _unasked(self, *_: object) -> None:
        raise AssertionError("nothing else is asked")

    async def tokens_of(self, text: str) -> tuple[int, ...]:
        if self.failures:
            self.failures -= 1
            raise UpstreamError("not now")
        self.counted.append(text)
        return (1,) * (len(text) // 4)

    async def thinking_end(self) -> tuple[int, ...]:
        self.ends_asked += 1
        if not self.end_is_told:
            raise UpstreamError("not now")
        return self.end


async def shown_until_reached(bounds: Bounds, continuation: Counting, show: Callable[[int], None], most: int) -> int:
    """How many pieces were shown until the answer was to be stopped."""
    reached = asyncio.create_task(bounds.reached(continuation))
    try:
        for number in range(most):
            show(number)
            for _ in range(5):
                await asyncio.sleep(0)
            if reached.done():
                return number + 1
        return most
    finally:
        reached.cancel()


async def test_reasoning_is_stopped_when_it_has_used_up_its_budget() -> None:
    bounds, engine = Bounds(thinking_tokens=100, loop_chars=0), Counting()
    shown = await shown_until_reached(bounds, engine, lambda _: bounds.on_text(Kind.REASONING, "eight ch"), 500)
    assert 50 <= shown <= 54
    assert engine.ends_asked == 1
    assert "".join(engine.counted) == "eight ch" * shown
    assert await bounds.closing(engine, 99) == (7, 8)


async def test_an_answer_that_has_begun_by_itself_is_left_alone() -> None:
    bounds, engine = Bounds(thinking_tokens=100, loop_chars=0), Counting()
    bounds.on_text(Kind.REASONING, "so " * 30)
    bounds.on_text(Kind.TEXT, "It is ")
    assert await shown_until_reached(bounds, engine, lambda _: bounds.on_text(Kind.REASONING, "eight ch"), 200) == 200
    assert await bounds.closing(engine, 500) == ()


async def test_a_pause_leaves_what_is_left_of_the_budget() -> None:
    bounds, engine = Bounds(thinking_tokens=100, loop_chars=0), Counting()
    assert await bounds.closing(engine, 60) == ()
    shown = await shown_until_reached(bounds, engine, lambda _: bounds.on_text(Kind.REASONING, "eight ch"), 500)
    assert 20 <= shown <= 24
    assert await bounds.closing(engine, 41) == (7, 8)


async def test_where_thinking_cannot_be_closed_only_a_loop_ends_it() -> None:
    bounds, engine = Bounds(thinking_tokens=10, loop_chars=800), Counting(end=())
    show = lambda number: bounds.on_text(Kind.REASONING, f"step {number * number}. ")  # noqa: E731
    assert await shown_until_reached(bounds, engine, show, 300) == 300
    shown = await shown_until_reached(bounds, engine, lambda _: bounds.on_text(Kind.REASONING, LOOP), 300)
    assert 50 <= shown < 70
    assert await bounds.ends_answer(engine, reasoning=True)


async def test_an_engine_that_does_not_count_is_asked_again_later() -> None:
    bounds, engine = Bounds(thinking_tokens=100, loop_chars=0), Counting(failures=1)
    shown = await shown_until_reached(bounds, engine, lambda _: bounds.on_text(Kind.REASONING, "eight ch"), 500)
    assert shown < 100


@pytest.mark.parametrize("part", ["content", "reasoning", "arguments"])
async def test_a_loop_is_found_in_each_part_by_itself(part: str) -> None:
    bounds, engine = Bounds(thinking_tokens=None, loop_chars=800), Counting()

    def show(_: int) -> None:
        for other in {"content", "reasoning", "arguments"} - {part}:
            tell(other, f"{time.monotonic_ns()} ")
        tell(part, LOOP)

    def tell(where: str, text: str) -> None:
        if where == "arguments":
            bounds.on_call({"index": 0, "function": {"arguments": text}})
        else:
            bounds.on_text(Kind.TEXT if where == "content" else Kind.REASONING, text)

    assert 50 <= await shown_until_reached(bounds, engine, show, 200) < 70
    assert bounds.loop is not None
    assert bounds.loop.flag == f"loop: '{bounds.loop.piece}' x {800 // len(LOOP)}"
    assert await bounds.ends_answer(engine, reasoning=part == "reasoning") == (part != "reasoning")


async def test_a_loop_ends_where_the_engine_does_not_tell_how_thinking_ends() -> None:
    bounds, engine = Bounds(thinking_tokens=None, loop_chars=800), Counting(end_is_told=False)
    bounds.on_text(Kind.REASONING, LOOP * 100)
    assert await bounds.ends_answer(engine, reasoning=True)


async def test_who_has_left_a_loop_of_reasoning_by_itself_goes_on() -> None:
    bounds, engine = Bounds(thinking_tokens=None, loop_chars=800), Counting()
    bounds.on_text(Kind.REASONING, LOOP * 100)
    assert not await bounds.ends_answer(engine, reasoning=False)
    assert bounds.loop is None


def test_odd_calls_are_no_loop() -> None:
    bounds = Bounds(thinking_tokens=5, loop_chars=8)
    calls: list[Any] = [None, 3, {}, {"function": None}, {"function": {"arguments": 4}}, {"index": {}, "function": {}}]
    for odd in calls:
        bounds.on_call(odd)
    assert bounds.loop is None


def test_there_is_nothing_to_look_at_where_all_is_off() -> None:
    off = OutputPolicy(loop_chars=0)
    by_itself = Capabilities(thinking_budget_field="thinking_budget")
    assert bounds_of(off, Capabilities()) is None
    assert bounds_of(OutputPolicy(loop_chars=0, thinking=100), by_itself) is None
    assert bounds_of(OutputPolicy(loop_chars=0, thinking=100), Capabilities()) is not None
    assert bounds_of(OutputPolicy(), by_itself) is not None


def chunk(**choice: Any) -> bytes:
    choices = [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]
    return msgspec.json.encode({"id": "a", "object": "o", "created": 1, "model": "m", "choices": choices})


@pytest.mark.parametrize(
    ("shown", "ending"),
    [({"delta": {"content": "x"}}, {"delta": {}}), ({"text": "x"}, {"text": ""})],
    ids=["chat", "text"],
)
def test_an_answer_that_is_cut_off_ends_as_one_at_its_cap(shown: dict[str, Any], ending: dict[str, Any]) -> None:
    end = msgspec.json.decode(cut_off(chunk(**shown)))
    choice = {"index": 0, **ending, "logprobs": None, "finish_reason": "length"}
    assert end == {"id": "a", "object": "o", "created": 1, "model": "m", "choices": [choice]}
    reader = ChatReader()
    reader.on_data(chunk(**shown))
    assert reader.on_data(cut_off(chunk(**shown))) is Seen.OTHER
    assert (reader.answer.finish_reason, reader.answer.truncated, reader.answer.ended_well) == ("length", True, True)


@pytest.mark.parametrize(
    "shown",
    [
        {"delta": {"content": LOOP}},
        {"delta": {"reasoning": LOOP}},
        {"delta": {"tool_calls": [{"index": 1, "function": {"arguments": LOOP}}]}},
        {"text": LOOP},
    ],
)
def test_a_guard_sees_a_loop_in_whatever_is_shown(shown: dict[str, Any]) -> None:
    flags: list[str] = []
    guard = LoopGuard(800, flags.append, None)
    for _ in range(70):
        guard.reader.on_data(chunk(**shown))
    assert guard.has_cut
    several = LoopGuard(800, flags.append, None)
    for number in range(140):
        several.reader.on_data(chunk(**shown | {"index": number % 2}))
    assert not several.has_cut


def test_details_of_a_flag_are_no_label() -> None:
    metrics = Metrics()
    flags = ("loop: 'a' x 9", "loop: 'b' x 9", "thinking_closed: at 12 tokens")
    metrics.on_turn("alice", None, TurnState.OK, Usage(), queued_s=None, ttft_s=None, flags=flags)
    page = metrics.page().decode()
    assert 'governor_anomalies_total{flag="loop"} 2.0' in page
    assert 'governor_anomalies_total{flag="thinking_closed"} 1.0' in page


def test_looking_costs_little_beside_reading() -> None:
    """CPU time, and the best of several tries: the machine may be busy."""
    events = [SseEvent(encode(data), data) for data in (chunk(delta={"content": f" {n}ab"}) for n in range(2000))]

    def seconds(bounds: Bounds | None) -> float:
        began = time.process_time()
        joined = Joined(bounds)
        for event in events:
            joined.on_event(event)
        return time.process_time() - began

    tries = [(seconds(None), seconds(Bounds(thinking_tokens=1000, loop_chars=4000))) for _ in range(9)]
    assert min(bounded / plain for plain, bounded in tries) < 2
