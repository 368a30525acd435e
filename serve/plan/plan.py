"""A plan: an engine profile's tiers, agents against them, returns, and the verdict in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from serve.plan.cost import LINK_BYTES_PER_S, CostTable, ReturnCost, return_costs
from serve.plan.demand import Capacity, Demand, Fit, fit
from serve.plan.machines import Measured
from serve.plan.pools import (
    GIB,
    DevicePools,
    DiskTier,
    Tier,
    Unit,
    device_pools,
    disk_tier,
    host_per_gb,
    host_pool,
    unit_of,
)
from serve.plan.shape import ModelShape
from serve.profile.model import EngineKind, KvDtype, Profile
from serve.sglang_settings import GB

HOST_SHARE = 0.85
"""Of RAM for host pools; the rest is the system's and the engine's own processes'."""

TOLERANCE = 0.1
"""Of a calculated capacity against a measured one; the published machines are met within it."""


class PlanInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What is not in the profile. ``None`` where nobody told."""

    gpu_gib: float | None = None
    """Memory of one GPU; ``None``: the profile's hardware."""
    host_gib: float | None = None
    """RAM; ``None``: the profile's hardware."""
    weight_bytes: int = 0
    """Of all ranks."""
    weights_assumed: bool = False
    """``weight_bytes`` is an estimate whose bits were guessed."""
    measured: Measured | None = None
    """What an engine printed; where known it is decided by, not by the calculation."""
    costs: CostTable | None = None
    link_bytes_per_s: float = LINK_BYTES_PER_S


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    profile: str
    model: str
    unit: Unit
    window_tokens: int | None
    device: DevicePools
    host: Tier | None
    """One rank's; tokens and slots are those of the engine, since every rank has its part of each."""
    host_per_gb: Tier
    disk: DiskTier | None
    measured: Measured | None
    l1: Capacity
    """What is decided by: measured where known, else calculated."""
    l2: Capacity | None
    demands: tuple[Demand, ...]
    fit: Fit | None
    """``None`` without agents."""
    returns: tuple[ReturnCost, ...]
    """Of the largest context asked for, or of a full window."""
    return_tokens: int
    notes: tuple[str, ...]
    verdict: str


def make_plan(
    profile: Profile, shape: ModelShape, inputs: PlanInputs | None = None, demands: Sequence[Demand] = ()
) -> Plan:
    """Raises :class:`~serve.plan.pools.DoesNotFit` when there is no room for any pool."""
    inputs = inputs or PlanInputs()
    if profile.engine is EngineKind.LLAMACPP:
        unit, device, host = _llamacpp(profile, shape)
    else:
        unit = unit_of(profile, shape)
        device = device_pools(profile, shape, inputs.gpu_gib or profile.hardware.gpu_memory_gib, inputs.weight_bytes)
        host = host_pool(profile, unit, device.tier, inputs.host_gib or profile.hardware.host_memory_gib)
    disk = disk_tier(profile, unit)
    l1, l2 = _decided(device.tier, host, inputs.measured)
    window = profile.model.context_length or shape.window_tokens
    l3 = None if disk is None else Capacity(kv_tokens=disk.kv_tokens)
    fitted = fit(demands, l1, l2, l3, requests=device.requests, chunk_tokens=unit.chunk_tokens) if demands else None
    return_tokens = max((demand.ceiling_tokens for demand in demands), default=window or l1.kv_tokens)
    plan = Plan(
        profile=profile.name,
        model=shape.name,
        unit=unit,
        window_tokens=window,
        device=device,
        host=host,
        host_per_gb=host_per_gb(unit, device.tier),
        disk=disk,
        measured=inputs.measured,
        l1=l1,
        l2=l2,
        demands=tuple(demands),
        fit=fitted,
        returns=return_costs(
            return_tokens,
            unit,
            inputs.costs,
            has_l2=host is not None,
            has_l3=profile.l3.backend is not None,
            link_bytes_per_s=inputs.link_bytes_per_s,
        ),
        return_tokens=return_tokens,
        notes=(),
        verdict="",
    )
    notes = tuple(_notes(plan, profile, inputs))
    return msgspec.structs.replace(plan, notes=notes, verdict=_verdict(plan))


def _llamacpp(profile: Profile, shape: ModelShape) -> tuple[Unit, DevicePools, Tier | None]:
    """Each slot has a whole window of its own; prompts that leave a slot go to the RAM cache. KV is 16 bits."""
    settings = profile.llamacpp
    kv = shape.kv_bytes_per_token()
    window = profile.model.context_length or shape.window_tokens or 0
    unit = Unit(kv_bytes=kv, state_bytes=0, tp=1, page_tokens=1, chunk_tokens=max(1, window))
    tokens = window * settings.slots
    device = DevicePools(
        tier=Tier(kv_tokens=tokens, state_slots=0, kv_bytes=tokens * kv, state_bytes=0),
        budget_bytes=None,
        scratch_bytes=0,
        requests=settings.slots,
        mem_fraction=None,
        fraction_is_default=False,
    )
    cache = settings.cache_ram_mib << 20
    host = Tier(kv_tokens=cache // kv, state_slots=0, kv_bytes=cache, state_bytes=0) if cache else None
    return unit, device, host


def _decided(device: Tier, host: Tier | None, measured: Measured | None) -> tuple[Capacity, Capacity | None]:
    said = measured or Measured(source="")
    l1 = Capacity(kv_tokens=said.kv_tokens or device.kv_tokens, state_slots=said.state_slots or device.state_slots)
    if host is None:
        return l1, None
    l2 = Capacity(
        kv_tokens=said.host_kv_tokens or host.kv_tokens, state_slots=said.host_state_slots or host.state_slots
    )
    return l1, l2


def _notes(plan: Plan, profile: Profile, inputs: PlanInputs) -> Iterator[str]:
    device, unit = plan.device, plan.unit
    if device.mem_fraction is not None and device.fraction_is_default:
        yield (
            f"memory.mem_fraction_static is unset: SGLang would take about {device.mem_fraction:.3f}, "
            f"which makes {device.tier.kv_tokens:,} tokens"
        )
    seen = inputs.measured.kv_tokens if inputs.measured else None
    if seen and abs(device.tier.kv_tokens - seen) > TOLERANCE * seen:
        yield (
            f"measured and calculated L1 differ ({seen:,} and {device.tier.kv_tokens:,}): the engine that was measured "
            "had other settings than this profile; the verdict goes by the measured figure, --calculated by the other"
        )
    if inputs.weights_assumed:
        yield f"the weights' size ({inputs.weight_bytes / GB:.1f} GB) is an estimate; --model DIR gives the true one"
    if plan.window_tokens and plan.l1.kv_tokens < plan.window_tokens:
        yield f"one full window ({plan.window_tokens:,}) does not fit L1 ({plan.l1.kv_tokens:,})"
    if plan.l2 and plan.window_tokens and plan.l2.kv_tokens <= plan.window_tokens:
        yield (
            f"L2 ({plan.l2.kv_tokens:,}) is no larger than one window: a context that comes from L3 is cut to what is "
            "free in L2, and a hybrid's is then thrown away (SGLang #40193)"
        )
    chunks = plan.l1.kv_tokens / unit.chunk_tokens
    if unit.state_bytes and chunks > plan.l1.state_slots:
        yield (
            f"L1 has {plan.l1.state_slots} states for {chunks:.0f} chunks of KV: prefixes stay there that nothing can "
            "resume (SGLang #36935)"
        )
    ram = inputs.host_gib or profile.hardware.host_memory_gib
    if plan.host is not None and ram is not None:
        wanted = (plan.host.kv_bytes + plan.host.state_bytes) * unit.tp
        if wanted > ram * GIB * HOST_SHARE:
            yield f"host pools of {wanted / GB:.0f} GB on {unit.tp} ranks are more than {HOST_SHARE:.0%} of {ram:g} GiB"
    if profile.speculative.draft_model_path is not None:
        yield "the draft model's own weights and KV are not counted"
    if profile.model.kv_cache_dtype is KvDtype.AUTO:
        yield "kv_cache_dtype is auto: 16 bits are counted"


def _verdict(plan: Plan) -> str:
    measured = plan.measured is not None and plan.measured.kv_tokens is not None
    origin = f"measured on {plan.measured.source}" if measured and plan.measured is not None else "calculated"
    holds = f"L1 holds {plan.l1.kv_tokens:,} tokens ({origin})"
    if plan.fit is None:
        window = f", {plan.l1.kv_tokens / plan.window_tokens:.1f} full windows" if plan.window_tokens else ""
        return f"{holds}{window}. At most {plan.device.requests} turns decode together."
    found = plan.fit
    if found.need_tokens <= plan.l1.kv_tokens and found.agents <= plan.device.requests:
        return (
            f"{_agents(found.agents)} at the ceiling need {found.need_tokens:,} tokens; {holds}: all fit, and all can "
            f"decode together.{_peak(plan)}"
        )
    parts = [f"{_agents(found.agents)} at the ceiling need {found.need_tokens:,} tokens; {holds}"]
    if found.too_large:
        parts.append(f"{', '.join(found.too_large)} can grow past L1 alone: such a turn never runs")
    parts.append(_active(plan, found))
    return ". ".join(parts) + f". {_kept(found)}{_peak(plan)}"


def _active(plan: Plan, found: Fit) -> str:
    if found.active == 0:
        return "No agent fits"
    limit = ""
    if found.active > found.decode_at_ceiling:
        limit = (
            f" while together they stay within it, {found.active_each_tokens:,} each; at the full ceiling "
            f"{_number(found.decode_at_ceiling)} fit{'s' if found.decode_at_ceiling == 1 else ''}"
        )
    elif found.active == plan.device.requests:
        limit = " (the engine's limit of requests)"
    return f"So {_number(found.active)} can be active{limit}"


def _kept(found: Fit) -> str:
    waiting = max(0, found.agents - found.active)
    if not waiting:
        return "None has to wait"
    who = f"The other {_number(waiting)} wait" if waiting > 1 else "The other waits"
    if found.retained_l2 is None:
        return f"{who}, and without L2 a context that has left L1 is prefilled again."
    if found.retained_l2 >= found.agents:
        return f"{who}, retained: L2 keeps the contexts of all of them."
    rest = "L3 keeps the rest" if (found.retained_l3 or 0) >= found.agents else "the rest is prefilled again"
    return f"{who}; L2 keeps {_number(found.retained_l2)} of the {_number(found.agents)} contexts whole, {rest}."


def _peak(plan: Plan) -> str:
    found = plan.fit
    if found is None or found.peak_turns == found.agents:
        return ""
    return (
        f" With all {found.peak_turns} turns that policies allow at once it would be {found.peak_tokens:,} tokens; "
        f"the engine runs {plan.device.requests}, the rest queues."
    )


def _agents(count: int) -> str:
    return f"{_number(count).capitalize()} agent{'s' if count != 1 else ''}"


def _number(count: int) -> str:
    words = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count] if count < len(words) else f"{count:,}"
