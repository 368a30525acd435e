"""Who is admitted and when, who has to leave L1, and what an abort leaves, in the engine model."""

from __future__ import annotations

from typing import Any

import pytest

from serve.twin.engine_model import Admitted, Cached, EndReason, EngineEvent, QueuePolicy, Retracted
from serve.twin.engine_ratio import NewTokenRatio
from serve.twin.tiers_key import Key
from tests.twin.engine_cases import (
    admitted,
    admitted_order,
    ask,
    costing,
    end_times,
    ended,
    engine,
    retracted,
    run_out,
    writes_of,
)

# Admission


def test_the_first_that_does_not_fit_ends_the_pass() -> None:
    """1,000 tokens: 700 are held, 300 are wanted; the small one behind would fit."""
    twin = engine()
    twin.submit(0.0, ask("a", 650, 50))
    twin.submit(1.0, ask("large", 300, 10))
    twin.submit(2.0, ask("small", 50, 10))
    events = run_out(twin)
    first_end = end_times(events)["a"]
    assert first_end == 699.0
    assert admitted(events) == {"a": 0.0, "large": first_end, "small": first_end}


@pytest.mark.parametrize(("prompt", "fits"), [(304, True), (305, False)])
def test_what_others_will_write_is_reckoned_with_in_part(prompt: int, fits: bool) -> None:
    """a holds 500 (a page of 10 each) and has 100 of 101 tokens to write, of which 0.7 count, to the token; wanted are
    the prompt, 115 tokens of output and a page."""
    twin = engine(chunked_prefill_tokens=10_000)
    twin.submit(0.0, ask("a", 500, 101))
    twin.submit(0.5, ask("b", prompt, 115))
    assert (admitted(run_out(twin))["b"] == 500.0) == fits


@pytest.mark.parametrize(("prompt", "fits"), [(274, True), (275, False)])
def test_what_cannot_end_early_is_reckoned_with_whole(prompt: int, fits: bool) -> None:
    """As above, with all of the 100 tokens."""
    twin = engine(chunked_prefill_tokens=10_000)
    twin.submit(0.0, ask("a", 500, 101, ignore_eos=True))
    twin.submit(0.5, ask("b", prompt, 115))
    assert (admitted(run_out(twin))["b"] == 500.0) == fits


def test_no_more_than_4096_tokens_are_expected_of_anybody() -> None:
    """Of a 0.7 times as much: without that neither would leave the other room."""
    twin = engine(tiers={"device_tokens": 10_000}, context_tokens=100_000)
    twin.submit(0.0, ask("a", 100, 50, limit=60_000))
    twin.submit(0.5, ask("b", 2_900, 50, limit=60_000))
    twin.submit(3_001.0, ask("c", 2_900, 50, limit=60_000))
    events = run_out(twin)
    assert admitted(events) == {"a": 0.0, "b": 100.0, "c": 3_049.0}


@pytest.mark.parametrize("priorities", [{}, {"priority_scheduling": True, "priority_preemption": False}])
def test_nobody_is_looked_at_before_somebody_leaves(priorities: dict[str, Any]) -> None:
    """The expectation falls with each step, and b would fit long before a ends."""
    twin = engine(schedule_conservativeness=1.4, **priorities)
    twin.submit(0.0, ask("a", 100, 600))
    twin.submit(0.5, ask("b", 320, 10))
    events = run_out(twin)
    assert admitted(events)["b"] == end_times(events)["a"]


def test_with_priorities_a_full_engine_is_looked_at() -> None:
    """As above, but b comes in as soon as enough less is expected of a (``scheduler.py:4067``)."""
    twin = engine(schedule_conservativeness=1.4, priority_scheduling=True)
    twin.submit(0.0, ask("a", 100, 600))
    twin.submit(0.5, ask("b", 320, 10))
    at = admitted(run_out(twin))["b"]
    steps = at - 100.0
    ratio = 0.98 * (1 - 0.86 * steps / 600)
    # In pages of 10; a step earlier there was less than wanted.
    assert 340 < 900 - 10 * -(-steps // 10) - (599 - steps) * ratio <= 341 + 10


def test_running_requests_are_limited() -> None:
    twin = engine(max_running_requests=2)
    for rid in ("a", "b", "c"):
        twin.submit(0.0, ask(rid, 10, 10))
    events = run_out(twin)
    assert admitted(events) == {"a": 0.0, "b": 0.0, "c": 29.0}


def test_running_requests_are_limited_by_states() -> None:
    """Five a request (``kv_cache_configurator.py:3062``)."""
    twin = engine(tiers={"device_slots": 14})
    for rid in ("a", "b", "c"):
        twin.submit(0.0, ask(rid, 10, 10))
    assert admitted(run_out(twin)) == {"a": 0.0, "b": 0.0, "c": 29.0}


def test_the_queue_is_limited() -> None:
    twin = engine(max_running_requests=1, max_queued_requests=1)
    for at, rid in enumerate(("a", "b", "c")):
        twin.submit(float(at), ask(rid, 10, 10))
    ends = ended(run_out(twin))
    assert ends["c"].reason is EndReason.QUEUE_FULL
    assert ends["c"].at == 10.0
    assert [rid for rid, each in ends.items() if each.reason is EndReason.STOP] == ["a", "b"]


def test_in_a_full_queue_the_lowest_priority_goes() -> None:
    twin = engine(max_running_requests=1, max_queued_requests=1, priority_scheduling=True)
    for at, (rid, priority) in enumerate((("a", 5), ("b", 1), ("c", 2), ("d", 2))):
        twin.submit(float(at), ask(rid, 10, 10, priority=priority))
    ends = ended(run_out(twin))
    assert {rid: each.reason for rid, each in ends.items()} == {
        "a": EndReason.STOP,
        "b": EndReason.QUEUE_FULL,
        "c": EndReason.STOP,
        "d": EndReason.QUEUE_FULL,
    }


# Order


def order(prompts: dict[str, Any], **settings: Any) -> list[str]:
    """In which they are admitted after somebody who keeps the one place, sent in the order given."""
    twin = engine(max_running_requests=1, **settings)
    common = Key([(77, 0, 200)])
    twin.submit(0.0, ask("first", common, 10))
    for at, (rid, prompt) in enumerate(prompts.items()):
        if isinstance(prompt, int):
            twin.submit(at + 1.0, ask(rid, prompt, 5))
        else:
            cached, own = prompt
            twin.submit(at + 1.0, ask(rid, common.cut(0, cached) + ask(rid, own, 1).prompt, 5))
    return admitted_order(run_out(twin))[1:]


def test_fcfs_is_the_order_of_coming() -> None:
    assert order({"b": 50, "a": 10, "c": (200, 30)}) == ["b", "a", "c"]


def test_lpm_takes_the_longest_prefix_first() -> None:
    assert order({"b": (100, 30), "a": 10, "c": (200, 30)}, queue_policy=QueuePolicy.LPM) == ["c", "b", "a"]


def test_lpm_lets_one_of_a_new_prefix_go_first() -> None:
    """The second would compute what the first is about to."""
    shared = Key([(88, 0, 50)])
    twin = engine(max_running_requests=1, queue_policy=QueuePolicy.LPM)
    twin.submit(0.0, ask("first", 20, 10))
    for at, (rid, prompt) in enumerate(
        (("a", shared), ("b", shared + Key([(89, 0, 10)])), ("c", Key([(90, 0, 10)]))), 1
    ):
        twin.submit(float(at), ask(rid, prompt, 5))
    assert admitted_order(run_out(twin))[1:] == ["a", "b", "c"]
    assert order({"a": 50, "b": 40}, queue_policy=QueuePolicy.LPM) == ["a", "b"]


def test_shortest_prefill_first_counts_what_is_to_be_computed() -> None:
    policy = QueuePolicy.SHORTEST_PREFILL
    assert order({"b": 50, "a": 20, "c": (200, 30)}, queue_policy=policy) == ["a", "c", "b"]


def test_shortest_prefill_first_interrupts_a_long_prompt() -> None:
    """Of each chunk the running prompt leaves what shorter ones need (``shortest_prefill_chunk_limit``)."""
    twin = engine(queue_policy=QueuePolicy.SHORTEST_PREFILL, chunked_prefill_tokens=100)
    twin.submit(0.0, ask("long", 500, 1))
    twin.submit(50.0, ask("short", 30, 1))
    ends = end_times(run_out(twin))
    assert ends == {"short": 200.0, "long": 530.0}


@pytest.mark.parametrize(("lower_first", "expected"), [(False, ["c", "a", "b"]), (True, ["b", "a", "c"])])
def test_priority_goes_both_ways(lower_first: bool, expected: list[str]) -> None:
    twin = engine(max_running_requests=1, priority_scheduling=True, lower_priority_first=lower_first)
    twin.submit(0.0, ask("first", 10, 10, priority=4))
    for at, (rid, priority) in enumerate((("a", 5), ("b", 3), ("c", 7)), 1):
        twin.submit(float(at), ask(rid, 10, 5, priority=priority))
    assert admitted_order(run_out(twin)) == ["first", *expected]


@pytest.mark.parametrize(("priority", "preempts"), [(11, False), (12, True)])
def test_much_higher_priority_takes_a_place(priority: int, preempts: bool) -> None:
    twin = engine(max_running_requests=1, priority_scheduling=True)
    twin.submit(0.0, ask("low", 10, 40, priority=1))
    twin.submit(15.5, ask("high", 10, 5, priority=priority))
    events = run_out(twin)
    assert retracted(events) == (["low"] if preempts else [])
    assert admitted(events)["high"] == (16.0 if preempts else 49.0)
    assert ended(events)["low"].completion_tokens == 40


def test_much_higher_priority_takes_no_kv() -> None:
    """Preemption is asked for a place only (``scheduler.py:4222``)."""
    twin = engine(priority_scheduling=True)
    twin.submit(0.0, ask("low", 600, 40, priority=1))
    twin.submit(605.5, ask("high", 500, 5, priority=99))
    events = run_out(twin)
    assert retracted(events) == []
    assert admitted(events)["high"] == end_times(events)["low"]


# Retraction


def crowd() -> list[EngineEvent]:
    """Three whose outputs do not fit L1 together, though a seventh of them would."""
    twin = engine(schedule_conservativeness=0.2)
    for at, rid, prompt, writes in ((0.0, "a", 200, 200), (250.0, "b", 210, 190), (461.0, "c", 220, 180)):
        twin.submit(at, ask(rid, prompt, writes))
    return run_out(twin)


def written_by(events: list[EngineEvent], at: float) -> dict[str, int]:
    return {rid: max(stop for when, _, stop in writes_of(events, rid) if when <= at) for rid in ("a", "b", "c")}


def test_who_has_written_least_is_pushed_out() -> None:
    events = crowd()
    assert retracted(events) == ["c"]
    at = next(each.at for each in events if isinstance(each, Retracted))
    written = written_by(events, at)
    assert written["c"] < min(written["a"], written["b"])
    # 1,000 tokens are full but for what is open of three pages.
    assert 1000 - 30 <= 630 + sum(written.values()) - 3 <= 1000
    assert all(each.reason is EndReason.STOP for each in ended(events).values())


def test_who_was_pushed_out_goes_on_where_it_was() -> None:
    events = crowd()
    writes = writes_of(events, "c")
    assert [start for _, start, _ in writes[1:]] == [stop for _, _, stop in writes[:-1]]
    assert writes[-1][2] == 180
    again = [each for each in events if isinstance(each, Admitted) and each.rid == "c"]
    # Its prompt was given to the tree after the prefill, what it wrote was not.
    assert [each.cached.device for each in again] == [0, 220]
    assert ended(events)["c"].cached == Cached()
    written = next(each for each in events if isinstance(each, Retracted))
    gone_on = next(at for at, _, _ in writes if at > written.at)
    assert gone_on - again[1].at == written_by(events, written.at)["c"]


def test_the_ratio_after_a_retraction_is_what_was_seen() -> None:
    """(written + 20 each) / (their limits + 1), of those that go on."""
    twin = engine(schedule_conservativeness=0.2)
    for at, rid, prompt, writes in ((0.0, "a", 200, 200), (250.0, "b", 210, 190), (461.0, "c", 220, 180)):
        twin.submit(at, ask(rid, prompt, writes))
    events: list[EngineEvent] = []
    while not retracted(events) and (when := twin.next_at()) is not None:
        events += twin.run(when)
    written = written_by(events, twin.now)
    assert twin.load().new_token_ratio == (written["a"] + written["b"] + 40) / (200 + 190 + 1)


def test_alone_and_without_room_it_ends() -> None:
    """More than 4,096 tokens are not reckoned with, and a copy to L2 holds the other half of L1 for long."""
    twin = engine(
        costing(host_write_token_s=1000.0),
        tiers={"device_tokens": 10_000, "host_tokens": 20_000},
        context_tokens=20_000,
    )
    twin.submit(0.0, ask("old", 5_000, 1))
    twin.submit(5_000.0, ask("new", 100, 9_000))
    end = ended(twin.run(100_000.0))["new"]
    assert end.reason is EndReason.OUT_OF_MEMORY
    assert end.completion_tokens == 4_901


# Ratio


def test_the_ratio_falls_over_600_steps_and_starts_anew() -> None:
    ratio = NewTokenRatio(1.0)
    assert ratio.current == 0.7
    ratio.decay(300)
    assert ratio.current == pytest.approx(0.7 * (1 + 0.14) / 2)
    ratio.decay(10_000)
    assert ratio.current == pytest.approx(0.7 * 0.14)
    ratio.reset()
    assert ratio.current == 0.7
    assert NewTokenRatio(2.0).current == 1.0


def test_the_ratio_starts_anew_when_all_have_left() -> None:
    twin = engine()
    twin.submit(0.0, ask("a", 10, 101))
    twin.submit(50.5, ask("b", 10, 101))
    twin.run(51.0)
    # 41 steps of a alone; the next prefill has begun.
    assert twin.load().new_token_ratio == pytest.approx(0.7 - 0.7 * 0.86 / 600 * 41)
    twin.run(500.0)
    assert twin.load().new_token_ratio == 0.7


# Abort


def test_abort_while_waiting_leaves_nothing() -> None:
    twin = engine(max_running_requests=1)
    twin.submit(0.0, ask("a", 10, 10))
    twin.submit(0.0, ask("b", 10, 10))
    twin.abort(12.5, "b")
    ends = ended(run_out(twin))
    # The scheduler looks at what has come after the step under way.
    assert (ends["b"].reason, ends["b"].at, ends["b"].completion_tokens) == (EndReason.ABORT, 13.0, 0)
    assert ends["a"].at == 19.0


def test_abort_on_its_way_is_immediate() -> None:
    twin = engine(costing(request_s=10.0))
    twin.submit(0.0, ask("a", 10, 10))
    twin.abort(3.0, "a")
    assert end_times(run_out(twin)) == {"a": 3.0}


def test_abort_of_a_prompt_in_part_keeps_its_chunks() -> None:
    """All but the last one, which has not been given to the tree (``process_pending_chunked_abort``)."""
    twin = engine(chunked_prefill_tokens=40)
    first = ask("a", 200, 10)
    twin.submit(0.0, first)
    twin.abort(90.0, "a")
    assert end_times(run_out(twin)) == {"a": 120.0}
    assert twin.load().used_tokens == 0
    assert twin.load().held_tokens == 80
    twin.submit(twin.now, ask("b", first.prompt, 1))
    assert ended(run_out(twin))["b"].cached == Cached(device=80)


def test_abort_while_decoding_keeps_what_was_written() -> None:
    """And one token more: it is seen after a step, and the next one has begun (``scheduler.py:5800``)."""
    twin = engine()
    first = ask("a", 100, 200)
    twin.submit(0.0, first)
    twin.abort(150.5, "a")
    end = ended(run_out(twin))["a"]
    assert (end.reason, end.at, end.completion_tokens) == (EndReason.ABORT, 152.0, 53)
    twin.submit(twin.now, ask("b", first.prompt + first.output.cut(0, 53) + Key([(99, 0, 5)]), 1))
    # 152 have KV, in whole pages.
    assert ended(run_out(twin))["b"].cached == Cached(device=150)


def test_abort_lets_the_next_one_in() -> None:
    twin = engine(max_running_requests=1)
    twin.submit(0.0, ask("a", 10, 500))
    twin.submit(1.0, ask("b", 10, 1))
    twin.abort(20.0, "a")
    assert admitted(run_out(twin))["b"] == 21.0


def test_abort_of_nobody_does_nothing() -> None:
    twin = engine()
    twin.submit(10.0, ask("a", 10, 5))
    twin.abort(1.0, "a")
    twin.abort(1.0, "b")
    twin.abort(500.0, "a")
    ends = ended(run_out(twin))
    assert [each.reason for each in ends.values()] == [EndReason.STOP]
