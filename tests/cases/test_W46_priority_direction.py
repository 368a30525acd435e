"""W46 priority-direction, the launch side: the engine's switch is set in the profile's direction, or its absence told.

The other half is in ``test_W46_priority_at_the_gateway``.
"""

from __future__ import annotations

import msgspec
import pytest

from serve.argv import flag_groups, priority_note, sglang_command
from serve.errors import ProfileRefused
from serve.profile import Profile, load_profile, shipped_names
from serve.profile.model import EngineKind, PriorityOrder
from tests.profiles import OWN_WEIGHTS, SGLANG_PROFILES, site_for

SWITCH = "--enable-priority-scheduling"
LOWER = "--schedule-low-priority-values-first"


def with_order(order: PriorityOrder, **scheduling: object) -> Profile:
    profile = load_profile("rx7900xtx-tp2")
    changed = msgspec.structs.replace(profile.scheduling, priority=order, **scheduling)
    return msgspec.structs.replace(profile, scheduling=changed)


@pytest.mark.parametrize(
    ("order", "flags"),
    [
        (PriorityOrder.HIGHER_FIRST, {SWITCH}),
        (PriorityOrder.LOWER_FIRST, {SWITCH, LOWER}),
        (PriorityOrder.OFF, set()),
    ],
)
def test_the_launch_switch_and_its_direction_follow_the_profile(order: PriorityOrder, flags: set[str]) -> None:
    command = sglang_command(with_order(order), OWN_WEIGHTS)
    assert {words[0] for words in flag_groups(command.argv)} & {SWITCH, LOWER} == flags


def test_an_engine_without_the_switch_says_that_priorities_are_inactive() -> None:
    command = sglang_command(with_order(PriorityOrder.OFF), OWN_WEIGHTS)
    (note,) = [note for note in command.notes if note.key == "scheduling.priority"]
    assert "engine-side priority is inactive" in note.text
    assert not any(
        note.key == "scheduling.priority"
        for note in sglang_command(with_order(PriorityOrder.HIGHER_FIRST), OWN_WEIGHTS).notes
    )


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_profile_has_the_switch_or_says_so(name: str) -> None:
    profile = load_profile(name)
    if profile.engine is EngineKind.SGLANG:
        command = sglang_command(profile, site_for(profile))
        assert any(words == (SWITCH,) for words in flag_groups(command.argv))
        assert priority_note(profile) == ""
    else:
        assert "inactive" in priority_note(profile)


@pytest.mark.parametrize("name", SGLANG_PROFILES)
def test_requests_without_a_priority_have_a_neutral_one(name: str) -> None:
    profile = load_profile(name)
    groups = set(flag_groups(sglang_command(profile, site_for(profile)).argv))
    assert ("--default-priority-value", "0") in groups


def test_an_order_that_the_engine_would_not_keep_is_refused() -> None:
    with pytest.raises(ProfileRefused, match="fcfs or the lof policy"):
        sglang_command(with_order(PriorityOrder.HIGHER_FIRST, policy="lpm"), OWN_WEIGHTS)
