"""Clients that compact in vain, in each documented way and in any order of them: no loop lasts, theirs or ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.compress.client_model import ClientOutcome
from governor.compress.clients import REACTIONS
from governor.policy.model import ClientLoops, CompressionMode, CompressionPolicy
from tests.client_gate import Gate
from tests.misbehaving import IN_VAIN, Client, Traits, Way, said

ATTEMPTS = 2
WINDOW_TOKENS = 16_000
MODES = [CompressionMode.OFF, CompressionMode.ENFORCE]
OPENCLAW = {"is_named": True, "only_before_user": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "before the user's word": OPENCLAW,
    "clamps": OPENCLAW | {"clamp": True},
    "two histories": {"histories": 2},
    "two named histories": {"histories": 2, "is_named": True},
    "retries": {"retries": 3},
}


def gate(mode: CompressionMode, loops: ClientLoops = ClientLoops.STOP, window_tokens: int = WINDOW_TOKENS) -> Gate:
    policy = CompressionPolicy(mode=mode, client_loops=loops, attempts=ATTEMPTS, cooldown_tokens=500)
    return Gate(policy, window_tokens)


def played(gate: Gate, turns: int, seed: int = 0, **traits: Any) -> Client:
    client = Client(gate, Traits(**traits), seed)
    client.play(turns)
    return client


def check(gate: Gate, client: Client) -> None:
    """What must hold of every client that goes by what it is told."""
    assert client.longest_row <= ATTEMPTS + REACTIONS
    assert gate.most_misses <= ATTEMPTS
    assert not gate.was_deaf
    assert gate.watch.open_turns == 0
    if client.traits.histories == 1 or client.traits.is_named:
        assert len(gate.found) == client.shown
        assert sum(each.outcome is ClientOutcome.ACCEPTED for each in gate.found) == client.gained


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", Way)
def test_ten_thousand_turns(way: Way, mode: CompressionMode) -> None:
    """500 of each way in each mode. Without a limit, half of the turns and more would have a compaction before them."""
    here = gate(mode)
    client = played(here, 500, ways=(way,))
    check(here, client)
    assert (client.longest_row == 0) == (way not in IN_VAIN)
    in_vain_by_size = len(here.found) - client.gained - client.overflows
    assert in_vain_by_size <= (ATTEMPTS + REACTIONS) * max(1, here.loops_begun)


@pytest.mark.parametrize("way", sorted(IN_VAIN))
def test_the_clients_do_loop_where_nobody_stops_them(way: Way) -> None:
    """The control: each of them compacts longer in vain than it is let to, though it is told of."""
    here = gate(CompressionMode.OFF, ClientLoops.TELL)
    client = played(here, 200, ways=(way,))
    assert client.longest_row > ATTEMPTS + REACTIONS
    assert here.loops_begun
    assert len(here.found) == client.shown


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_habits(variant: str, mode: CompressionMode) -> None:
    for seed, way in enumerate(Way):
        here = gate(mode)
        check(here, played(here, 120, seed, ways=(way,), **VARIANTS[variant]))


def test_what_helps_is_left_alone() -> None:
    """Compactions that work are neither stopped nor answered with another figure than the engine's."""
    here = gate(CompressionMode.OFF)
    client = played(here, 500, ways=(Way.SHORTENS, Way.FALLS_BACK))
    assert client.gained == client.shown == len(here.found) > 5
    assert here.loops_begun == 0


def test_a_loop_that_is_kept_short_by_us_stays_ended() -> None:
    """Our compression keeps the conversation under what its client compacts at; it does not start over."""
    here = gate(CompressionMode.ENFORCE)
    client = played(here, 90, ways=(Way.KEEPS_ALL,))
    assert client.shown == ATTEMPTS
    assert here.accepted >= 2
    assert client.overflows == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_goes_by_its_own_estimate_is_told_of(mode: CompressionMode) -> None:
    """Nothing that it is told changes that, so it is told the truth again, and ours does not try in vain for ever."""
    here = gate(mode)
    client = played(here, 200, ways=(Way.KEEPS_ALL,), estimate_share=1.0)
    assert here.was_deaf
    assert here.lowered <= REACTIONS * here.loops_begun
    assert here.most_misses <= ATTEMPTS
    assert client.longest_row > ATTEMPTS


ways = st.lists(st.sampled_from(list(Way)), min_size=1, max_size=6).map(tuple)


@settings(deadline=None, max_examples=50)
@given(
    ways=ways,
    mode=st.sampled_from(MODES),
    seed=st.integers(min_value=0, max_value=99),
    threshold=st.integers(min_value=1500, max_value=4000),
    only_before_user=st.booleans(),
    is_named=st.booleans(),
    histories=st.integers(min_value=1, max_value=3),
    retries=st.integers(min_value=0, max_value=2),
    clamp=st.booleans(),
)
def test_any_order_of_them(
    ways: tuple[Way, ...],
    mode: CompressionMode,
    seed: int,
    threshold: int,
    only_before_user: bool,
    is_named: bool,
    histories: int,
    retries: int,
    clamp: bool,
) -> None:
    here = gate(mode, window_tokens=6000)
    client = played(
        here,
        60,
        seed,
        ways=ways,
        threshold_tokens=threshold,
        only_before_user=only_before_user,
        histories=histories,
        is_named=is_named,
        retries=retries,
        clamp=clamp,
    )
    check(here, client)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_keeps_its_last_rounds_is_not_cut_down_further_and_further(mode: CompressionMode) -> None:
    """It drops the oldest round with each question, whatever it is told: that its prompts are made shorter for it, and
    that it is told less, ends when it is clear that it does not care."""
    here = gate(mode)
    rounds = [[said("user", f"question {n} " * 60), said("assistant", f"answer {n} " * 400)] for n in range(60)]
    told: list[tuple[int, int]] = []
    for n in range(10, 60):
        kept = [each for one in rounds[n - 10 : n] for each in one]
        messages = [said("system", "rules"), *kept, said("user", f"and {n}?")]
        told.append((here.chat(messages, "s").told_tokens or 0, here.tokens(messages)))
    assert here.was_deaf
    assert sum(told_tokens < own_tokens for told_tokens, own_tokens in told) <= REACTIONS
