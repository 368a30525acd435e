"""Whole plans: every synthetic shape, recorded sessions, and honest refusals."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from bench.histories import SHAPES, asks, call, conversation, giant_result, message, prose, result, seeded, tool_chain
from governor.compress.limits import Limits
from governor.compress.plan import NoPlan, NoPlanReason, Plan, what_each_would_free
from governor.policy.model import CompressionPolicy, CompressionStage
from governor.wire.request import parse
from serve.engine import Endpoint
from tests.compressing import check, content, limits_for, only, shorten, shortened, size_of
from tests.replay.recorded import RecordedRequest, recorded_requests

Stage = CompressionStage
LONG_SESSIONS = [
    each
    for each in recorded_requests()
    if each.endpoint is Endpoint.CHAT and b'"role":"tool"' in each.body and len(each.body) > 60_000
]


@pytest.mark.parametrize("target", [0.75, 0.5, 0.25])
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "all in the protected tail"])
def test_every_shape_is_brought_down(shape: str, target: float) -> None:
    messages = SHAPES[shape]()
    limits = limits_for(messages, target=target)
    made = shortened(messages, limits)
    again = shorten(made.messages, limits)
    assert isinstance(again, NoPlan)
    assert again.reason is NoPlanReason.BELOW_TRIGGER
    assert shorten(messages, limits) == made


@pytest.mark.parametrize("recorded", LONG_SESSIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("target", [0.9, 0.7, 0.5])
def test_recorded_sessions_are_brought_down(recorded: RecordedRequest, target: float) -> None:
    messages = parse(recorded.endpoint, recorded.body).messages
    shortened(messages, limits_for(messages, target=target))


def test_the_recorded_sessions_are_of_both_clients() -> None:
    assert {each.client for each in LONG_SESSIONS} == {"hermes", "openclaw"}


def test_what_is_protected_alone_is_too_much() -> None:
    messages = SHAPES["all in the protected tail"]()
    made = shorten(messages)
    assert isinstance(made, NoPlan)
    assert made.reason is NoPlanReason.ABOVE_TARGET
    assert made.held_tokens == made.best_tokens == made.before_tokens
    assert f"{made.before_tokens:,} of them may not be touched" in str(made)
    assert made.done == ()


def test_the_best_that_could_be_done_is_told() -> None:
    messages = [message("user", prose(seeded(1), 30_000)), *tool_chain(10)[2:], message("user", "last")]
    made = shorten(messages)
    assert isinstance(made, NoPlan)
    assert made.target_tokens < made.best_tokens < made.before_tokens
    assert made.best_tokens - made.held_tokens < 100
    assert {done.stage for done in made.done} >= {Stage.TRIM, Stage.DROP}


@pytest.mark.parametrize("change", [1, -1])
def test_below_the_trigger_nothing_is_done(change: int) -> None:
    messages = tool_chain(10)
    limits = limits_for(messages)
    made = shorten(messages, msgspec.structs.replace(limits, trigger_tokens=limits.trigger_tokens + change))
    assert isinstance(made, NoPlan if change > 0 else Plan)
    if isinstance(made, NoPlan):
        assert str(made).endswith("below the trigger")


def test_stages_stop_when_the_target_is_met() -> None:
    made = shortened(tool_chain(40), limits_for(tool_chain(40), target=0.9))
    assert list(made.freed_by_stage) == [Stage.TRIM]
    assert made.done[-1].index < 20
    assert made.covered == made.done[-1].index + 1


def test_the_gain_is_reached_even_past_the_target() -> None:
    messages = tool_chain(40)
    limits = limits_for(messages, target=0.99, gain=0.2)
    assert shortened(messages, limits).after_tokens <= 0.81 * limits.trigger_tokens


def test_too_small_a_gain_is_told_as_such() -> None:
    messages = tool_chain(40)
    made = shorten(messages, limits_for(messages, target=0.99, gain=0.99), stages=only(Stage.TRIM))
    assert isinstance(made, NoPlan)
    assert made.reason is NoPlanReason.GAIN_TOO_SMALL
    assert f"than the {made.gain_tokens:,} that are worth it" in str(made)


def test_the_policy_s_order_is_kept_and_stages_can_be_left_out() -> None:
    messages = tool_chain(40)
    assert list(shortened(messages, stages=only(Stage.DROP)).freed_by_stage) == [Stage.DROP]
    first_stub = shortened(messages, limits_for(messages, target=0.3), stages=only(Stage.STUB, Stage.TRIM))
    assert next(iter(first_stub.freed_by_stage)) is Stage.STUB
    assert isinstance(shorten(messages, stages=only(Stage.REASONING)), NoPlan)


def test_what_is_recent_is_touched_only_when_nothing_else_is_left() -> None:
    messages = tool_chain(40)
    mild = shortened(messages, limits_for(messages, target=0.5, recent=0.3))
    assert all(raw is messages[-1 - n] for n, raw in enumerate(reversed(mild.messages[-10:])))
    hard = shortened(messages, limits_for(messages, target=0.2, recent=0.3))
    assert any(done.index >= 60 for done in hard.done)


def test_a_giant_result_spares_the_rest() -> None:
    made = shortened(giant_result())
    assert [done.stage for done in made.done] == [Stage.OVERSIZED]
    assert made.done[0].index == len(giant_result()) - 1


def test_rounds_that_left_are_in_the_archive_under_the_handle_in_the_marker() -> None:
    messages = conversation(60)
    made = shortened(messages, stages=only(Stage.DROP))
    (left,) = made.left
    at = made.origins.index(None)
    assert content(made.messages[at]).endswith(f": {left.handle}]")
    present = {origin for origin in made.origins if origin is not None}
    assert list(left.values) == [raw for index, raw in enumerate(messages) if index not in present]


def test_a_history_that_breaks_rules_is_shortened_without_breaking_others() -> None:
    odd: list[Callable[[int], list[bytes]]] = [
        lambda n: [asks(call(f"a{n}")), message("user", "wait"), result(f"a{n}", prose(seeded(n), 300))],
        lambda n: [result(f"lost{n}", prose(seeded(n), 300))],
        lambda n: [asks(call(f"b{n}"), call(f"c{n}")), result(f"c{n}", prose(seeded(n), 300))],
        lambda n: [message("assistant", ""), message("user", [{"text": prose(seeded(n), 300)}])],
    ]
    messages = [message("system", "s"), message("user", "task")]
    for number in range(40):
        messages += odd[number % 4](number)
    messages += [message("assistant", "a"), message("user", "last")]
    for target in (0.7, 0.3):
        limits = limits_for(messages, target=target)
        check(messages, shortened(messages, limits), limits)


def test_unreadable_messages_stay_as_they_are() -> None:
    messages = [*tool_chain(10), b'{"role": "assistant", "content": "\\ud800"}', b"[]", *tool_chain(10)[2:]]
    made = shortened(messages)
    assert b"[]" in made.messages


def test_nothing_at_all() -> None:
    limits = Limits(trigger_tokens=1, target_tokens=1, gain_tokens=1, recent_tokens=1, oversized_tokens=1)
    assert isinstance(shorten([], limits), NoPlan)


def test_what_each_stage_would_free() -> None:
    messages = tool_chain(40)
    sizes = [size_of(raw) for raw in messages]
    free = what_each_would_free(
        messages, sizes, size_of=size_of, policy=CompressionPolicy(), limits=limits_for(messages, recent=0)
    )
    assert list(free) == list(Stage)
    assert free[Stage.TRIM] > free[Stage.STUB] > 0
    assert free[Stage.IMAGES] == 0
    assert sum(free.values()) < sum(sizes)
