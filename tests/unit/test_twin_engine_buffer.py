"""The engine model with ``buffer_only``: what falls from L1 is read from L3 again, and told as L3's."""

from __future__ import annotations

from typing import Any

import pytest

from serve.twin.engine import TwinEngine
from serve.twin.engine_model import Cached
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import HostMode, PrefetchPolicy
from tests.twin.engine_cases import admitted, ask, costing, end_times, ended, engine, run_out

STAGING: dict[str, Any] = {
    "device_tokens": 300,
    "host_tokens": 400,
    "host_slots": 20,
    "host_mode": HostMode.BUFFER_ONLY,
    "storage_tokens": None,
    "prefetch_tokens": 10,
    "prefetch_policy": PrefetchPolicy.WAIT_COMPLETE,
}
SECONDS = {
    "host_write_token_s": 0.01,
    "storage_write_token_s": 0.1,
    "storage_read_s": 4.0,
    "storage_read_token_s": 0.2,
    "host_read_token_s": 0.05,
    "host_read_s": 1.0,
}
FOREVER = 1e9


def twin_of(**changed: Any) -> TwinEngine:
    return engine(costing(**SECONDS), tiers=STAGING | changed)


def fill(twin: TwinEngine, *prompts: tuple[str, int]) -> None:
    for rid, tokens in prompts:
        twin.submit(twin.now, ask(rid, tokens, 1))
        run_out(twin)
        twin.run(twin.now + 1000.0)
        twin.tiers.check_integrity()


def follow_up(rid: str, tokens: int, *, own: int = 10) -> Key:
    return ask(rid, tokens, 1).prompt + Key([(len(rid) * 1000 + 99, 0, own)])


@pytest.mark.parametrize("slots", [0, 10], ids=["dense", "hybrid"])
def test_who_returns_is_served_from_storage(slots: int) -> None:
    """Two agents whose contexts do not fit together come back in turn."""
    twin = twin_of(device_slots=slots)
    fill(twin, ("a", 200), ("b", 200))
    start = twin.now
    twin.submit(start, ask("a again", follow_up("a", 200), 1))
    events = run_out(twin)
    end = ended(events)["a again"]
    assert end.cached == Cached(storage=200)
    assert end.prefilled_tokens == 10
    # The question, 200 tokens from the disk; then to L1, and the rest computed.
    assert admitted(events)["a again"] - start == pytest.approx(4.0 + 40.0)
    assert end.at - start == pytest.approx(4.0 + 40.0 + 1.0 + 10.0 + 10.0)
    twin.run(twin.now + 1000.0)
    assert twin.tiers.tree.free_host_tokens == 400
    twin.submit(twin.now, ask("b again", follow_up("b", 200), 1))
    assert ended(run_out(twin))["b again"].cached == Cached(storage=200)


def test_what_is_in_l1_still_is_told_as_l1s() -> None:
    twin = twin_of()
    fill(twin, ("a", 100))
    fill_up = ask("a more", follow_up("a", 100, own=100), 1)
    twin.submit(twin.now, fill_up)
    run_out(twin)
    twin.run(twin.now + 1000.0)
    twin.tiers.evict(tokens=10)  # the end of the longer one
    twin.submit(twin.now, ask("again", fill_up.prompt + Key([(98, 0, 10)]), 1))
    assert ended(run_out(twin))["again"].cached == Cached(device=100, storage=100)


def test_writes_take_their_time_and_their_staging() -> None:
    twin = twin_of()
    twin.submit(0.0, ask("a", 100, 1))
    run_out(twin)
    assert twin.now == 104.0
    twin.run(104.9)
    assert (twin.load().used_tokens, twin.tiers.tree.free_host_tokens) == (100, 300)
    twin.run(105.1)
    assert (twin.load().used_tokens, twin.tiers.tree.free_host_tokens) == (0, 300)
    twin.run(115.1)
    assert twin.tiers.tree.free_host_tokens == 400


def test_a_write_that_waits_for_staging_goes_when_another_is_stored() -> None:
    twin = twin_of(host_tokens=110)
    for rid in ("a", "b"):
        twin.submit(0.0, ask(rid, 100, 1))
    run_out(twin)
    twin.run(FOREVER)
    for rid in ("a", "b"):
        found = twin.tiers.storage.find(ask(rid, 100, 1).prompt, twin.tiers.tree.root, 0, needs_state=False)
        assert found == 100


def test_a_read_that_finds_no_staging_waits_for_the_one_before() -> None:
    twin = twin_of(device_tokens=600, host_tokens=250)
    fill(twin, ("a", 200), ("b", 200), ("c", 500))
    start = twin.now
    for rid in ("a", "b"):
        twin.submit(start, ask(f"{rid} again", follow_up(rid, 200), 1))
    events = run_out(twin)
    assert {rid: end.cached for rid, end in ended(events).items()} == {
        "a again": Cached(storage=200),
        "b again": Cached(storage=200),
    }
    times = admitted(events)
    assert times["a again"] - start == pytest.approx(44.0)
    # The first's staging is free when it has been computed: its copy to L1 is made by then.
    assert times["b again"] - start == pytest.approx(44.0 + 1.0 + 10.0 + 10.0 + 40.0)


def test_abort_lets_go_what_is_read_and_what_waits() -> None:
    for at in (20.0, 60.0):
        twin = engine(costing(**SECONDS), tiers=STAGING | {"device_tokens": 600}, max_running_requests=1)
        fill(twin, ("a", 200), ("c", 500))
        start = twin.now
        twin.submit(start, ask("b", 5, 300))
        twin.submit(start, ask("a again", follow_up("a", 200), 1))
        twin.abort(start + at, "a again")
        assert end_times(run_out(twin))["a again"] == start + at
        twin.run(FOREVER)
        twin.tiers.check_integrity()
        assert twin.tiers.tree.free_host_tokens == 400
