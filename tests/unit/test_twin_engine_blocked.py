"""Whom the engine model found too large, and how long that keeps everybody waiting."""

from __future__ import annotations

from serve.twin.engine_model import Blocked
from tests.twin.engine_cases import admitted, ask, end_times, engine, run_out


def test_who_has_no_room_is_told_by_the_figures_of_the_look() -> None:
    twin = engine()
    twin.submit(0.0, ask("a", 650, 50))
    twin.submit(1.0, ask("large", 300, 10))
    twin.submit(2.0, ask("small", 50, 10))
    twin.run(649.0)
    assert twin.blocked() is None
    twin.run(660.0)
    # a holds 650 and has 49 to write, of which 0.7 count; wanted are the prompt, the output and a page.
    told = Blocked(rid="large", wanted_tokens=320, free_tokens=int(350 - 0.7 * 49), is_full=True)
    assert twin.blocked() == told
    assert twin.load().used_tokens == 660
    assert twin.blocked() == told
    run_out(twin)
    assert twin.blocked() is None


def test_an_engine_stays_full_though_who_had_no_room_has_gone() -> None:
    """``batch_is_full`` is cleared by who runs and leaves, not by who waits."""
    twin = engine()
    twin.submit(0.0, ask("a", 650, 50))
    twin.submit(1.0, ask("large", 300, 10))
    twin.submit(2.0, ask("small", 50, 10))
    twin.abort(660.0, "large")
    twin.run(670.0)
    blocked = twin.blocked()
    assert blocked is not None
    assert (blocked.rid, blocked.is_full) == ("large", True)
    events = run_out(twin)
    assert admitted(events)["small"] == end_times(events)["a"]


def test_who_waits_for_a_place_waits_for_no_room() -> None:
    twin = engine(max_running_requests=1)
    for rid in ("a", "b"):
        twin.submit(0.0, ask(rid, 10, 10))
    twin.run(12.0)
    assert twin.load().waiting == 1
    assert twin.blocked() is None
