"""Copies between the tiers take time in the engine model: who waits for them, and what they hold meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from serve.twin.engine import TwinEngine
from serve.twin.engine_model import Cached
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import PrefetchPolicy, WritePolicy
from serve.twin.tiers_storage import Storage
from tests.twin.engine_cases import admitted, ask, costing, end_times, ended, engine, run_out

L2 = {"device_tokens": 300, "host_tokens": 2000}
L3 = {
    "device_tokens": 300,
    "host_tokens": 300,
    "storage_tokens": None,
    "prefetch_tokens": 10,
    "prefetch_share": 1.0,
    "prefetch_policy": PrefetchPolicy.WAIT_COMPLETE,
}
FOREVER = 1e9


def fill(twin: TwinEngine, *prompts: tuple[str, int], after: float = 0.0) -> None:
    """One after another, each with a token of output; then ``after`` seconds of rest."""
    for rid, tokens in prompts:
        twin.submit(twin.now, ask(rid, tokens, 1))
        run_out(twin)
    twin.run(twin.now + after)
    twin.tiers.check_integrity()


# L2


def test_a_load_back_is_waited_for() -> None:
    twin = engine(costing(host_read_token_s=0.1, host_read_s=3.0), tiers=L2)
    fill(twin, ("a", 100), ("b", 250), after=100.0)
    start = twin.now
    twin.submit(start, ask("again", ask("a", 100, 1).prompt + Key([(99, 0, 10)]), 1))
    end = ended(run_out(twin))["again"]
    assert end.cached == Cached(host=100)
    assert end.at - start == pytest.approx(3.0 + 10.0 + 10.0)


def test_copies_to_l2_follow_each_other_and_hold_l1() -> None:
    twin = engine(costing(host_write_token_s=2.0), tiers=L2)
    fill(twin, ("a", 100), ("b", 100))
    # a is copied from 100 to 300, b from 300 to 500.
    assert (twin.now, twin.load().used_tokens) == (200.0, 200)
    twin.run(299.0)
    assert twin.load().used_tokens == 200
    twin.run(301.0)
    assert twin.load().used_tokens == 100
    twin.run(501.0)
    assert twin.load().used_tokens == 0


def test_who_waits_for_room_waits_for_the_copy() -> None:
    twin = engine(costing(host_write_token_s=2.0), tiers=L2)
    fill(twin, ("a", 200))
    twin.submit(200.0, ask("b", 150, 1))
    assert twin.next_at() == 200.0
    assert admitted(run_out(twin)) == {"b": 600.0}


def test_a_tier_that_nobody_waits_for_costs_no_time() -> None:
    slow, quick = (engine(costing(host_write_token_s=seconds), tiers=L2) for seconds in (0.5, 0.0))
    for twin in (slow, quick):
        fill(twin, ("a", 100), ("b", 100))
    assert slow.now == quick.now == 200.0


def test_selective_write_copies_at_the_second_hit() -> None:
    twin = engine(costing(), tiers=L2 | {"write_policy": WritePolicy.SELECTIVE})
    fill(twin, ("a", 100))
    assert twin.tiers.tree.free_host_tokens == 2000
    fill(twin, ("a", 100))
    assert twin.tiers.tree.free_host_tokens == 1900


# L3


def stored(cost: Any, *, places: int = 8, **tiers: Any) -> TwinEngine:
    """An engine that finds 200 tokens of a on disk and nothing in L1 or L2."""
    first = engine(costing(), tiers=L3 | tiers)
    fill(first, ("a", 200), after=1.0)
    return engine(cost, tiers=L3 | tiers, storage=first.tiers.storage, max_running_requests=places)


def follow_up(twin: TwinEngine, start: float) -> Any:
    twin.submit(start, ask("again", ask("a", 200, 1).prompt + Key([(99, 0, 10)]), 1))
    return ended(run_out(twin))["again"]


def test_a_prefix_on_disk_is_read_then_loaded() -> None:
    twin = stored(costing(storage_read_s=4.0, storage_read_token_s=0.01, host_read_token_s=0.1))
    end = follow_up(twin, 0.0)
    assert end.cached == Cached(storage=200)
    # 4 to ask, 2 to read, 20 to L1, 10 computed
    assert end.at == pytest.approx(36.0)


def test_what_l3_has_brought_counts_as_its_own_beside_l2() -> None:
    twin = stored(costing(storage_read_token_s=0.01))
    fill(twin, ("other", 250), after=10.0)
    start = ask("a", 200, 1).prompt
    twin.submit(twin.now, ask("first", start.cut(0, 100), 1))
    run_out(twin)
    end = follow_up(twin, twin.now + 1.0)
    assert end.cached.tokens == 200
    assert end.cached.storage >= 100


def test_nothing_on_disk_costs_the_question_only() -> None:
    twin = engine(costing(storage_read_s=4.0, storage_read_token_s=0.01), tiers=L3)
    twin.submit(0.0, ask("a", 100, 1))
    assert admitted(run_out(twin)) == {"a": 4.0}


def test_what_was_read_is_not_lost_before_the_engine_looks() -> None:
    """It has room in L2 that the next read cannot take."""
    first = engine(costing(), tiers=L3 | {"device_tokens": 1000, "host_tokens": 1000})
    fill(first, ("a", 200), ("b", 200), after=FOREVER)
    twin = engine(costing(storage_read_token_s=1.0), tiers=L3, storage=first.tiers.storage)
    for rid in ("a", "b"):
        twin.submit(0.0, ask(f"{rid} again", ask(rid, 200, 1).prompt + Key([(99, 0, 10)]), 1))
    twin.submit(150.0, ask("c", 60, 1))  # computed from 150 to 210, while the next read begins at 200
    ends = ended(run_out(twin))
    assert ends["a again"].cached == Cached(storage=200)


def test_others_pass_who_waits_for_the_disk() -> None:
    twin = stored(costing(storage_read_token_s=1.0))
    twin.submit(0.0, ask("again", ask("a", 200, 1).prompt + Key([(99, 0, 10)]), 1))
    twin.submit(1.0, ask("b", 9, 5))
    events = run_out(twin)
    assert admitted(events) == {"b": 1.0, "again": 200.0}


def test_reads_follow_each_other() -> None:
    twin = stored(costing(storage_read_s=5.0, storage_read_token_s=1.0))
    prompt = ask("a", 200, 1).prompt
    twin.submit(0.0, ask("x", prompt.cut(0, 100) + Key([(99, 0, 10)]), 1))
    twin.submit(0.0, ask("y", prompt.cut(0, 150) + Key([(98, 0, 10)]), 1))
    times = admitted(run_out(twin))
    assert times["x"] == 105.0
    assert times["y"] == pytest.approx(105.0 + 5.0 + 150.0)


@pytest.mark.parametrize(
    ("policy", "at", "cached"),
    [
        (PrefetchPolicy.BEST_EFFORT, 0.0, 0),
        (PrefetchPolicy.WAIT_COMPLETE, 200.0, 200),
        (PrefetchPolicy.TIMEOUT, 30.0, 30),
    ],
)
def test_how_long_the_disk_is_waited_for(policy: PrefetchPolicy, at: float, cached: int) -> None:
    """A timeout is counted from the first time that the request could have run; whole pages read are kept."""
    twin = stored(
        costing(storage_read_token_s=1.0),
        prefetch_policy=policy,
        prefetch_timeout_base_s=30.0,
        prefetch_timeout_per_ki_token_s=0.0,
    )
    twin.submit(0.0, ask("again", ask("a", 200, 1).prompt + Key([(99, 0, 10)]), 1))
    events = run_out(twin)
    assert admitted(events) == {"again": at}
    assert ended(events)["again"].cached == Cached(storage=cached)


def test_best_effort_takes_what_was_read_while_it_waited() -> None:
    twin = stored(costing(storage_read_token_s=1.0), places=1, prefetch_policy=PrefetchPolicy.BEST_EFFORT)
    # Who comes in a forward pass is seen after it, at 5, and b ends at 50.
    twin.submit(0.0, ask("b", 5, 46))
    twin.submit(1.0, ask("again", ask("a", 200, 1).prompt + Key([(99, 0, 10)]), 1))
    events = run_out(twin)
    assert admitted(events)["again"] == 50.0
    assert ended(events)["again"].cached == Cached(storage=40)


def test_a_model_with_states_keeps_all_that_was_asked_or_nothing() -> None:
    for seconds, cached in ((30.0, 0), (300.0, 200)):
        twin = stored(
            costing(storage_read_token_s=1.0),
            device_slots=10,
            host_slots=10,
            prefetch_policy=PrefetchPolicy.TIMEOUT,
            prefetch_timeout_base_s=seconds,
            prefetch_timeout_per_ki_token_s=0.0,
        )
        assert follow_up(twin, 0.0).cached == Cached(storage=cached)


def test_abort_stops_the_read() -> None:
    twin = stored(costing(storage_read_token_s=1.0))
    twin.submit(0.0, ask("again", ask("a", 200, 1).prompt + Key([(99, 0, 10)]), 1))
    twin.abort(20.0, "again")
    assert end_times(run_out(twin)) == {"again": 20.0}
    assert not twin.tiers.prefetches.running
    assert twin.tiers.tree.free_host_tokens == 300 - 20


def test_copies_to_disk_take_their_time() -> None:
    twin = engine(costing(storage_write_token_s=1.0), tiers=L3)
    fill(twin, ("a", 100))
    assert len(twin.tiers.host.storage_writes) == 1
    twin.run(199.0)
    assert len(twin.tiers.host.storage_writes) == 1
    twin.run(200.0)
    assert not twin.tiers.host.storage_writes


def test_flush_forgets_copies_under_way() -> None:
    twin = engine(costing(host_write_token_s=10.0), tiers=L2)
    fill(twin, ("a", 100))
    assert twin.flush()
    fill(twin, ("b", 100), after=FOREVER)
    assert twin.load().used_tokens == 0


def test_disk_outlives_the_engine() -> None:
    storage = stored(costing()).tiers.storage
    assert isinstance(storage, Storage)
    twin = engine(costing(), tiers=L3, storage=storage)
    assert follow_up(twin, 0.0).cached == Cached(storage=200)


def test_the_disk_is_asked_again_for_what_was_lost_while_it_waited() -> None:
    """a's 200 tokens are in L1 when its follow-up comes; who is before it takes their place in L1 and L2."""
    twin = engine(costing(), tiers=L3 | {"host_tokens": 250}, max_running_requests=1)
    fill(twin, ("a", 200), after=1.0)
    twin.submit(twin.now, ask("short", 5, 20))
    twin.submit(twin.now + 10.0, ask("large", 240, 1))
    twin.submit(twin.now + 11.0, ask("again", ask("a", 200, 1).prompt + Key([(99, 0, 10)]), 1))
    assert ended(run_out(twin))["again"].cached == Cached(storage=200)


@pytest.mark.parametrize(("copy_s", "waits_for"), [(0.0, "a"), (0.001, "c")])
def test_who_ends_is_held_by_its_copy_at_the_only_look_that_follows(copy_s: float, waits_for: str) -> None:
    """While c decodes, nobody is looked at again before somebody leaves. A copy made at once holds nobody back."""
    twin = engine(costing(host_write_token_s=copy_s), tiers={"device_tokens": 300, "host_tokens": 2000})
    twin.submit(0.0, ask("a", 150, 25))
    twin.submit(0.0, ask("c", 50, 60))
    twin.submit(1.0, ask("b", 150, 10))
    events = run_out(twin)
    assert admitted(events)["b"] == end_times(events)[waits_for]
