"""Whatever is done to the tiers, their books hold, and the same is done twice with the same end."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serve.twin.tiers_model import EvictionPolicy, HostMode, TierSettings, WritePolicy
from tests.twin.cases import Case
from tests.twin.play import Play, Twin

STEPS = 150


@st.composite
def cases(draw: st.DrawFn) -> Case:
    page = draw(st.sampled_from((1, 16, 64)))
    slots = draw(st.sampled_from((0, 16, 24, 48)))
    has_host = draw(st.booleans())
    strategies = ("extra_buffer", "no_buffer") if page == 1 else ("extra_buffer",)
    return Case(
        name="drawn",
        page_tokens=page,
        device_tokens=draw(st.integers(16, 64)) * 64,
        device_slots=slots,
        host_ratio=draw(st.floats(0.1, 2)) if has_host else 0,
        has_storage=has_host and draw(st.booleans()),
        host_mode=draw(st.sampled_from(HostMode)),
        write_policy=draw(st.sampled_from(WritePolicy)),
        strategy=draw(st.sampled_from(strategies)),
        eviction=draw(st.sampled_from(EvictionPolicy)),
        prefetch_tokens=draw(st.sampled_from((1, 256))),
    )


def tier_settings(case: Case, storage_tokens: int | None) -> TierSettings:
    sizes = {
        "tokens": case.device_tokens,
        "slots": case.device_slots,
        "host_tokens": int(case.device_tokens * case.host_ratio),
        "host_slots": int(case.device_slots * case.host_ratio),
    }
    return case.settings(sizes, storage_tokens)


def played(case: Case, storage_tokens: int | None, seed: int, *, checks: bool) -> tuple[list[Any], Twin]:
    twin = Twin(tier_settings(case, storage_tokens))
    operations = Play(case, twin, Random(seed)).operations()  # noqa: S311 - a game, not a secret
    answers = []
    for _ in range(STEPS):
        answers.append(twin.do(next(operations)))
        if checks:
            twin.tiers.check_integrity()
    return answers, twin


@given(case=cases(), storage_tokens=st.sampled_from((None, 1024, 4096)), seed=st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_books_hold_after_every_step(case: Case, storage_tokens: int | None, seed: int) -> None:
    answers, twin = played(case, storage_tokens, seed, checks=True)
    storage = twin.tiers.storage
    assert storage.limit is None or storage.used_tokens <= storage.limit
    assert all(min(answer["free"]) >= 0 for answer in answers)


@given(case=cases(), seed=st.integers(0, 2**16))
@settings(max_examples=15, deadline=None)
def test_the_same_twice(case: Case, seed: int) -> None:
    assert played(case, None, seed, checks=False)[0] == played(case, None, seed, checks=False)[0]


@given(case=cases(), seed=st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_all_comes_free_when_nobody_runs(case: Case, seed: int) -> None:
    """No lock outlives its request."""
    _, twin = played(case, None, seed, checks=False)
    tiers = twin.tiers
    for request in list(tiers.requests):
        tiers.retract(request)
    for number in list(twin.staged):
        twin.do_drop(number)
    tiers.settle()
    tiers.check_integrity()
    if tiers.settings.is_buffer_only:
        assert tiers.tree.free_host_tokens == tiers.settings.page_floor(tiers.settings.host_tokens)
        assert tiers.tree.free_host_slots == tiers.settings.host_slots
    assert tiers.available_tokens == tiers.settings.page_floor(tiers.settings.device_tokens)
    assert tiers.available_slots == tiers.settings.device_slots
    tiers.evict(tokens=case.device_tokens, states=case.device_slots)
    tiers.settle()
    tiers.check_integrity()
    assert not any(node.is_locked for node in tiers.tree.walk_nodes())
