"""A request's way through the engine model, second by second: a token of prompt takes one, and a decode step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from serve.twin.engine_model import Admitted, Cached, Ended, EndReason, Wrote
from serve.twin.tiers_key import Key
from tests.twin.engine_cases import admitted, ask, costing, end_times, ended, engine, run_out, writes_of

FIELD_TIERS = {"device_tokens": 231_914 // 64 * 64, "page_tokens": 64, "device_slots": 72}
FIELD: dict[str, Any] = {"context_tokens": 196_608, "chunked_prefill_tokens": 4096, "max_prefill_tokens": 16_384}


def test_a_request_waits_is_prefilled_writes_and_ends() -> None:
    twin = engine()
    twin.submit(5.0, ask("a", 30, 4))
    events = twin.run(100.0)
    assert events == [
        Admitted(at=5.0, rid="a", cached=Cached(), waited_s=0.0),
        Wrote(at=35.0, rid="a", start=0, stop=1),
        Wrote(at=38.0, rid="a", start=1, stop=4, first_at=36.0),
        Ended(
            at=38.0,
            rid="a",
            reason=EndReason.STOP,
            prompt_tokens=30,
            completion_tokens=4,
            cached=Cached(),
            prefilled_tokens=30,
        ),
    ]
    assert twin.now == 100.0
    assert twin.next_at() is None


def test_arrival_takes_its_time_though_the_engine_works() -> None:
    twin = engine(costing(request_s=2.0, request_token_s=0.1))
    twin.submit(0.0, ask("a", 30, 1))
    assert admitted(run_out(twin)) == {"a": 5.0}


def test_short_steps_tell_each_token() -> None:
    twin = engine()
    twin.submit(0.0, ask("a", 10, 4))
    seen = [twin.run(at) for at in (10.0, 11.5, 12.0, 13.0)]
    assert [[(each.start, each.stop) for each in step if isinstance(each, Wrote)] for step in seen] == [
        [(0, 1)],
        [(1, 2)],
        [(2, 3)],
        [(3, 4)],
    ]


def test_next_at_goes_from_decision_to_decision() -> None:
    twin = engine()
    twin.submit(1.0, ask("a", 10, 50))
    stops = []
    while (when := twin.next_at()) is not None:
        stops.append(when)
        twin.run(when)
    assert stops == [1.0, 11.0, 60.0]


def test_time_does_not_go_back() -> None:
    twin = engine()
    twin.run(10.0)
    for call in (lambda: twin.run(9.0), lambda: twin.submit(9.0, ask("a", 1, 1)), lambda: twin.abort(9.0, "a")):
        with pytest.raises(ValueError, match="is over"):
            call()


def test_a_rid_is_one_request() -> None:
    twin = engine()
    twin.submit(0.0, ask("a", 10, 1))
    with pytest.raises(ValueError, match="under way"):
        twin.submit(0.0, ask("a", 10, 1))
    run_out(twin)
    twin.submit(twin.now, ask("a", 10, 1))
    assert list(ended(run_out(twin))) == ["a"]


def test_the_limit_ends_what_would_write_on() -> None:
    twin = engine()
    twin.submit(0.0, ask("limited", 10, 50, limit=5))
    twin.submit(100.0, ask("exact", 10, 5, limit=5))
    ends = ended(run_out(twin))
    assert (ends["limited"].reason, ends["limited"].completion_tokens) == (EndReason.LENGTH, 5)
    assert (ends["exact"].reason, ends["exact"].completion_tokens) == (EndReason.STOP, 5)


def test_the_window_cuts_the_limit() -> None:
    """``max_req_len`` is one less than the window, and one more is kept (``scheduler.py:2714``)."""
    twin = engine(context_tokens=100)
    twin.submit(0.0, ask("a", 40, 60))
    end = ended(run_out(twin))["a"]
    assert (end.reason, end.completion_tokens) == (EndReason.LENGTH, 58)


@pytest.mark.parametrize(
    ("prompt", "limit", "is_refused"), [(93, 1, False), (94, 1, True), (50, 50, False), (50, 51, True)]
)
def test_what_does_not_fit_the_window_is_refused_at_once(prompt: int, limit: int, is_refused: bool) -> None:
    twin = engine(context_tokens=100)
    twin.submit(0.0, ask("before", 50, 1))
    twin.submit(1.0, ask("a", prompt, 1, limit=limit))
    end = ended(run_out(twin))["a"]
    assert (end.reason is EndReason.TOO_LONG) == is_refused
    assert (end.at == 1.0) == is_refused


def test_what_leaves_no_page_of_l1_is_refused() -> None:
    twin = engine(context_tokens=2000)
    twin.submit(0.0, ask("fits", 989, 1))
    twin.submit(0.0, ask("long", 990, 1))
    ends = ended(run_out(twin))
    assert {rid: each.reason for rid, each in ends.items()} == {"fits": EndReason.LENGTH, "long": EndReason.TOO_LONG}
    assert ends["fits"].completion_tokens == 0


# Prefill


def test_chunks_of_one_prompt_follow_each_other() -> None:
    twin = engine(costing(prefill_step_s=5.0), chunked_prefill_tokens=40)
    twin.submit(0.0, ask("a", 100, 1))
    assert end_times(run_out(twin)) == {"a": 115.0}


def test_the_rest_of_a_pass_goes_to_others() -> None:
    """Of 40 tokens a prompt's end takes 20, and the next one's beginning the other 20."""
    twin = engine(chunked_prefill_tokens=40)
    twin.submit(0.0, ask("a", 100, 1))
    twin.submit(0.0, ask("b", 50, 1))
    events = run_out(twin)
    assert admitted(events) == {"a": 0.0, "b": 80.0}
    assert end_times(events) == {"a": 120.0, "b": 150.0}


def test_max_prefill_tokens_bounds_a_pass() -> None:
    twin = engine(max_prefill_tokens=50)
    for rid in ("a", "b", "c"):
        twin.submit(0.0, ask(rid, 30, 1))
    assert admitted(run_out(twin)) == {"a": 0.0, "b": 0.0, "c": 60.0}


def test_a_prefill_stops_who_decodes() -> None:
    twin = engine(chunked_prefill_tokens=100)
    twin.submit(0.0, ask("a", 10, 30))
    twin.submit(15.0, ask("b", 400, 1))
    assert longest_silence(writes_of(run_out(twin), "a")) == 401.0


def test_prefill_decode_interval_lets_steps_in_between() -> None:
    twin = engine(chunked_prefill_tokens=100, prefill_decode_interval=2)
    twin.submit(0.0, ask("a", 10, 30))
    twin.submit(15.0, ask("b", 400, 1))
    writes = writes_of(run_out(twin), "a")
    assert longest_silence(writes) == 101.0
    assert [at for at, _, _ in writes if at < 500][-4:] == [117.0, 219.0, 321.0, 439.0]


def test_prefill_decode_interval_waits_for_nobody() -> None:
    twin = engine(chunked_prefill_tokens=100, prefill_decode_interval=2)
    twin.submit(0.0, ask("a", 400, 1))
    assert end_times(run_out(twin)) == {"a": 400.0}


def test_mixed_chunks_carry_a_step() -> None:
    """A pass of 100 tokens holds the decoder's one and 99 of the prompt; the weights are read once."""
    twin = engine(costing(decode_request_s=0.5), chunked_prefill_tokens=100, mixed_chunk=True)
    twin.submit(0.0, ask("a", 10, 30))
    twin.submit(14.5, ask("b", 400, 1))
    writes = writes_of(run_out(twin), "a")
    assert longest_silence(writes) == 99.5
    assert [(start, stop) for at, start, stop in writes if 15 < at < 413] == [(4, 5), (5, 6), (6, 7), (7, 8)]


def longest_silence(writes: list[tuple[float, int, int]]) -> float:
    return max(after[0] - before[0] - (after[2] - after[1] - 1) for before, after in pairwise(writes))


def test_a_prompt_comes_from_the_cache() -> None:
    twin = engine()
    first = ask("a", 100, 21)
    twin.submit(0.0, first)
    run_out(twin)
    twin.submit(twin.now, ask("b", first.prompt + first.output + Key([(99, 0, 10)]), 1))
    end = ended(run_out(twin))["b"]
    # The last token written has no KV.
    assert end.cached == Cached(device=120)
    assert end.at - 120.0 == pytest.approx(11.0)


def test_states_come_from_chunks_and_tracked_steps() -> None:
    twin = engine(tiers={"device_slots": 10}, chunked_prefill_tokens=40)
    first = ask("a", 95, 12)
    twin.submit(0.0, first)
    run_out(twin)
    for rid, prompt, cached in (
        ("same", first.prompt, 90),
        ("chunk", first.prompt.cut(0, 60) + Key([(99, 0, 30)]), 40),
        ("next", first.prompt + first.output + Key([(98, 0, 30)]), 100),
    ):
        twin.submit(twin.now, ask(rid, prompt, 1))
        assert ended(run_out(twin))[rid].cached == Cached(device=cached), rid


# The field's measurements


@pytest.mark.parametrize(
    ("requests", "prompt_tokens", "together"),
    [(2, 114_000, True), (2, 120_000, False), (3, 74_000, True), (3, 80_000, False)],
)
def test_active_limits_of_the_field(requests: int, prompt_tokens: int, together: bool) -> None:
    twin = engine(costing(prefill_token_s=1e-4), tiers=FIELD_TIERS, **FIELD)
    for number in range(requests):
        twin.submit(0.0, ask(f"r{number}", prompt_tokens, 1024))
    events = run_out(twin)
    first_end = min(end_times(events).values())
    assert (max(admitted(events).values()) < first_end) == together
    assert all(each.reason is EndReason.STOP for each in ended(events).values())


def test_a_hog_stops_a_large_one_and_all_behind_it() -> None:
    """The stall of the field: of the hog's future 4,096 tokens at most are reckoned with, of its present nothing is
    taken back; who is small and late waits for who is large and early."""
    twin = engine(costing(prefill_token_s=1e-4, decode_step_s=0.03), tiers=FIELD_TIERS, **FIELD)
    twin.submit(0.0, ask("hog", 123_000, 70_000))
    twin.submit(60.0, ask("large", 110_000, 500))
    twin.submit(61.0, ask("small", 2_000, 100))
    events = run_out(twin)
    ends = end_times(events)
    assert ends["hog"] > 2_000.0
    assert admitted(events)["large"] >= ends["hog"]
    assert admitted(events)["small"] >= admitted(events)["large"]


# Speculation


def test_steps_yield_what_they_yield_on_average() -> None:
    twin = engine(accept_length=2.5)
    twin.submit(0.0, ask("a", 10, 100))
    written = {}
    for at in range(10, 60):
        for event in twin.run(float(at)):
            if isinstance(event, Wrote):
                written[at - 10] = event.stop - event.start
    assert [written[step] for step in range(5)] == [1, 2, 3, 2, 3]
    assert sum(written.values()) == 100
    # 99 tokens at 2.5 a step
    assert max(written) == 40


def test_a_request_may_be_easier_to_guess() -> None:
    twin = engine(accept_length=2.0)
    twin.submit(0.0, ask("a", 10, 41))
    twin.submit(0.0, ask("b", 10, 41, accept_length=4.0))
    assert end_times(run_out(twin)) == {"a": 40.0, "b": 30.0}


# A look, and forgetting


def test_load_tells_who_runs_and_what_is_held() -> None:
    twin = engine(max_running_requests=1, tiers={"device_slots": 10})
    twin.submit(0.0, ask("a", 100, 50))
    twin.submit(0.0, ask("b", 100, 50))
    twin.run(120.0)
    load = twin.load()
    assert (load.running, load.waiting) == (1, 1)
    assert (load.used_tokens, load.held_tokens, load.capacity_tokens) == (120, 120, 1000)
    assert (load.used_slots, load.capacity_slots) == (4, 10)
    run_out(twin)
    assert (twin.load().used_tokens, twin.load().used_slots, twin.load().running) == (0, 0, 0)
    assert twin.load().held_tokens > 200


def test_flush_waits_for_nobody() -> None:
    twin = engine()
    twin.submit(0.0, ask("a", 100, 50))
    assert not twin.flush()
    twin.run(50.0)
    assert not twin.flush()
    run_out(twin)
    assert twin.load().held_tokens == 140
    assert twin.flush()
    assert twin.load().held_tokens == 0
    twin.tiers.check_integrity()


def test_too_few_states_for_anybody() -> None:
    with pytest.raises(ValueError, match="too few"):
        engine(tiers={"device_slots": 4})
