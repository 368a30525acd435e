"""What must hold of any plan: more memory is never worse, the parts are never more than the whole."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from serve.plan import Demand, Plan, PlanInputs, make_plan
from serve.plan.demand import Capacity, fit
from serve.plan.known import QWEN_27B
from serve.profile import Profile, load_profile
from serve.profile.model import HiCache, Mamba

BASE = load_profile("rx7900xtx-tp2")
WEIGHTS = QWEN_27B.weight_bytes(4.156)


def with_memory(fraction: float, slots: int | None, size_gb: int) -> Profile:
    mamba = Mamba(radix_cache_strategy=BASE.mamba.radix_cache_strategy, max_cache_size=slots)
    return msgspec.structs.replace(
        BASE,
        memory=msgspec.structs.replace(BASE.memory, mem_fraction_static=fraction, max_total_tokens=None),
        mamba=mamba,
        hicache=HiCache(enabled=True, size_gb=size_gb),
    )


def plan_of(profile: Profile, gib: float) -> Plan:
    return make_plan(profile, QWEN_27B, PlanInputs(gpu_gib=gib, weight_bytes=WEIGHTS))


@given(
    gib=st.floats(48, 200),
    more=st.floats(0, 50),
    fraction=st.floats(0.6, 0.95),
    slots=st.one_of(st.none(), st.integers(5, 100)),
    size=st.integers(1, 64),
)
def test_more_gpu_memory_never_holds_less(
    gib: float, more: float, fraction: float, slots: int | None, size: int
) -> None:
    profile = with_memory(fraction, slots, size)
    small, large = plan_of(profile, gib), plan_of(profile, gib + more)
    assert large.device.requests >= small.device.requests
    assert large.device.tier.state_slots >= small.device.tier.state_slots
    # Where SGLang sizes the states itself, one more of them may cost KV of up to a state and its scratch.
    step = 0 if slots is not None else -(-6 * small.unit.state_bytes // small.unit.kv_bytes) + 64
    assert large.device.tier.kv_tokens >= small.device.tier.kv_tokens - step


@given(
    gib=st.floats(48, 200),
    fraction=st.floats(0.6, 0.95),
    slots=st.one_of(st.none(), st.integers(5, 100)),
    size=st.integers(1, 64),
)
def test_pools_are_within_their_budget(gib: float, fraction: float, slots: int | None, size: int) -> None:
    made = plan_of(with_memory(fraction, slots, size), gib)
    device, host = made.device, made.host
    assert device.budget_bytes is not None
    assert device.tier.kv_bytes + device.tier.state_bytes + device.scratch_bytes <= device.budget_bytes
    assert device.tier.kv_tokens % made.unit.page_tokens == 0
    assert host is not None
    page_and_state = made.unit.page_tokens * made.unit.kv_bytes + made.unit.state_bytes
    assert host.kv_bytes + host.state_bytes <= size * 10**9 + page_and_state
    assert host.kv_tokens % made.unit.page_tokens == 0


@given(size=st.integers(1, 100), more=st.integers(0, 100))
def test_more_host_memory_never_holds_less(size: int, more: int) -> None:
    small, large = (plan_of(with_memory(0.9, 64, gb), 24).host for gb in (size, size + more))
    assert small is not None
    assert large is not None
    assert large.kv_tokens >= small.kv_tokens
    assert large.state_slots >= small.state_slots


DEMANDS = st.lists(
    st.builds(Demand, name=st.just("a"), ceiling_tokens=st.integers(1, 300_000), concurrency=st.integers(1, 8)),
    min_size=1,
    max_size=12,
)


@given(demands=DEMANDS, tokens=st.integers(0, 2_000_000), requests=st.integers(0, 20), slots=st.integers(0, 500))
def test_any_agents_of_the_number_told_fit(demands: list[Demand], tokens: int, requests: int, slots: int) -> None:
    l1 = Capacity(kv_tokens=tokens, state_slots=slots)
    found = fit(demands, l1, l1, None, requests=requests, chunk_tokens=4096)
    largest = sorted((demand.ceiling_tokens for demand in demands), reverse=True)
    assert sum(largest[: found.decode_at_ceiling]) <= tokens
    assert 0 <= found.decode_at_ceiling <= found.active <= min(requests, len(demands))
    assert found.retained_l2 is not None
    assert sum(largest[: found.retained_l2]) <= tokens
    assert found.active_each_tokens * found.active <= tokens
    assert found.need_tokens <= found.peak_tokens


@given(demands=DEMANDS, tokens=st.integers(0, 2_000_000), more=st.integers(0, 500_000))
def test_a_larger_tier_never_holds_fewer_agents(demands: list[Demand], tokens: int, more: int) -> None:
    small, large = (
        fit(demands, tier, tier, None, requests=20, chunk_tokens=4096)
        for tier in (Capacity(kv_tokens=tokens), Capacity(kv_tokens=tokens + more))
    )
    assert large.active >= small.active
    assert large.decode_at_ceiling >= small.decode_at_ceiling
    assert (large.retained_l2 or 0) >= (small.retained_l2 or 0)
    assert set(large.too_large) <= set(small.too_large)
