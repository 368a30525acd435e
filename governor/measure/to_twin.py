"""Results as measurements that a machine of the twin is fitted from (``serve.twin.measured``). Pure.

The engine's settings are those that SGLang told the bench; what it does not tell has the twin's default and is listed
as assumed. Several results of one engine make one file: a suite measures only its part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from governor.measure.compare import engine_differences
from governor.measure.errors import MeasureFailed, NotComparable
from governor.measure.result import EngineFacts, Measure, Metric, Result
from serve.twin.engine_model import EngineSettings, QueuePolicy
from serve.twin.measured import (
    DecodeRow,
    GapKind,
    GapRow,
    HitRow,
    HitTier,
    Measured,
    PrefillRow,
    TogetherRow,
)
from serve.twin.tiers_model import EvictionPolicy, HostMode, PrefetchPolicy, StateStrategy, TierSettings, WritePolicy

_TIERS = {"L1": HitTier.DEVICE, "L2": HitTier.HOST, "L3": HitTier.STORAGE}
_DEFAULTS = EngineSettings(tiers=TierSettings(device_tokens=64), context_tokens=1)


def measured_from(results: Sequence[Result]) -> Measured:
    """Medians as rows. Raises :class:`MeasureFailed` where the engine is no SGLang, and :class:`NotComparable` where
    the results are of several engines."""
    first = results[0]
    for other in results[1:]:
        differences = list(engine_differences(first, other))
        if differences:
            raise NotComparable(differences)
    facts = first.engine
    if facts.kind != "sglang" or facts.device_tokens is None:
        raise MeasureFailed(
            f"The twin is one of SGLang; {facts.kind} does not tell the settings that it needs. Write them into a file "
            "of measurements by hand (docs/design/twin-cost.md)."
        )
    measures = [measure for result in results for measure in result.measures]
    accept = _accept_length(measures)
    assumed = []
    if facts.has_host and facts.device_states and facts.host_states is None:
        assumed.append("L2 holds twice the states of L1: the engine does not tell")
    if accept is None:
        assumed.append("a decode step yields one token: nothing tells another accept length")
    return Measured(
        name=_name(facts),
        summary=f"{facts.model}, {', '.join(first.machine.gpus) or first.machine.processor}"[:200],
        sources=tuple(f"governor bench {each.suite}, {each.started_at} UTC" for each in results),
        assumed=tuple(assumed),
        model=facts.model,
        engine=_settings(facts, accept or 1.0),
        prefill=tuple(_prefills(measures)),
        hit=tuple(_hits(measures)),
        decode=tuple(_decodes(measures)),
        gap=tuple(_gaps(measures, facts)),
        together=tuple(_togethers(measures)),
    )


def _of(measures: Iterable[Measure], name: str, metric: Metric) -> list[Measure]:
    return [each for each in measures if each.case.name == name and each.metric is metric]


def _prefills(measures: Sequence[Measure]) -> Iterable[PrefillRow]:
    for each in _of(measures, "cold", Metric.TTFT_S):
        if each.case.requests == 1:
            yield PrefillRow(context=each.case.context_tokens, seconds=each.median)
    for each in _of(measures, "cold", Metric.TTFT_MAX_S):
        if each.case.requests > 1:
            # Checked only: they wait for each other, which the formula knows nothing of.
            yield PrefillRow(
                context=each.case.context_tokens, requests=each.case.requests, seconds=each.median, fitted=False
            )


def _hits(measures: Sequence[Measure]) -> Iterable[HitRow]:
    for name, tier in _TIERS.items():
        for each in _of(measures, name, Metric.TTFT_S):
            served = each.served[-1]
            tail = max(1, served.prompt_tokens - (served.cached_tokens or 0))
            yield HitRow(tier=tier, context=served.prompt_tokens, tail=tail, seconds=each.median)


def _decodes(measures: Sequence[Measure]) -> Iterable[DecodeRow]:
    for each in _of(measures, "decode", Metric.DECODE_RATE):
        case = each.case
        yield DecodeRow(
            requests=case.requests,
            context=each.served[-1].prompt_tokens,
            output=case.output_tokens,
            rate=each.median,
        )


def _gaps(measures: Sequence[Measure], facts: EngineFacts) -> Iterable[GapRow]:
    kind = GapKind.PLAIN
    if facts.flags.get("enable_mixed_chunk"):
        kind = GapKind.MIXED
    elif facts.flags.get("prefill_decode_interval"):
        kind = GapKind.INTERVAL
    for each in _of(measures, "interference", Metric.GAP_MAX_S):
        yield GapRow(kind=kind, context=each.case.context_tokens, seconds=each.median)


def _togethers(measures: Sequence[Measure]) -> Iterable[TogetherRow]:
    for each in _of(measures, "together", Metric.AT_ONCE):
        case = each.case
        yield TogetherRow(
            requests=case.requests,
            context=case.context_tokens,
            output=case.output_tokens,
            fits=each.median == case.requests,
        )


def _accept_length(measures: Sequence[Measure]) -> float | None:
    """The engine's own, else what a step of one request brought."""
    told = [each.median for each in measures if each.metric is Metric.ACCEPT_LENGTH]
    told = told or [each.median for each in measures if each.metric is Metric.TOKENS_PER_EVENT]
    return max(1.0, round(sum(told) / len(told), 3)) if told else None


def _settings(facts: EngineFacts, accept_length: float) -> EngineSettings:
    flags = facts.flags
    priorities = bool(flags.get("enable_priority_scheduling"))
    return EngineSettings(
        tiers=_tiers(facts),
        context_tokens=facts.window_tokens,
        max_running_requests=facts.slots or _number(flags, "max_running_requests", _DEFAULTS.max_running_requests),
        max_queued_requests=_number_or_none(flags, "max_queued_requests"),
        chunked_prefill_tokens=_number(flags, "chunked_prefill_size", _DEFAULTS.chunked_prefill_tokens),
        max_prefill_tokens=_number(flags, "max_prefill_tokens", _DEFAULTS.max_prefill_tokens),
        mixed_chunk=bool(flags.get("enable_mixed_chunk")),
        prefill_decode_interval=_number_or_none(flags, "prefill_decode_interval"),
        queue_policy=_one_of(QueuePolicy, flags.get("schedule_policy"), QueuePolicy.FCFS),
        priority_scheduling=priorities,
        priority_preemption=not flags.get("disable_priority_preemption"),
        lower_priority_first=bool(flags.get("schedule_low_priority_values_first")),
        schedule_conservativeness=float(flags.get("schedule_conservativeness") or 1.0),
        accept_length=accept_length,
    )


def _tiers(facts: EngineFacts) -> TierSettings:
    flags, default = facts.flags, _DEFAULTS.tiers
    is_hybrid = bool(flags.get("uses_mamba_radix_cache", facts.device_states))
    slots = (facts.device_states or 0) if is_hybrid else 0
    return TierSettings(
        device_tokens=facts.device_tokens or 0,
        device_slots=slots,
        host_tokens=(facts.host_tokens or 0) if facts.has_host else 0,
        host_slots=(facts.host_states or 2 * slots) if facts.has_host else 0,
        host_mode=_one_of(HostMode, flags.get("hicache_host_memory_mode"), default.host_mode),
        window_tokens=facts.window_tokens,
        storage_tokens=None if facts.storage else 0,
        page_tokens=facts.page_tokens,
        track_interval_tokens=_number(flags, "mamba_track_interval", default.track_interval_tokens),
        strategy=_one_of(StateStrategy, flags.get("mamba_radix_cache_strategy"), default.strategy),
        write_policy=_one_of(WritePolicy, flags.get("hicache_write_policy"), default.write_policy),
        eviction=_one_of(EvictionPolicy, flags.get("radix_eviction_policy"), default.eviction),
        states_per_path=_number(flags, "mamba_max_states_per_path", default.states_per_path),
        prefetch_policy=_one_of(PrefetchPolicy, flags.get("hicache_storage_prefetch_policy"), default.prefetch_policy),
    )


def _one_of(kind: Any, value: object, default: Any) -> Any:
    """A member by its value; one that the twin does not know is the default."""
    try:
        return kind(value)
    except ValueError:
        return default


def _number(flags: Mapping[str, Any], name: str, default: int) -> int:
    value = flags.get(name)
    return value if type(value) is int and value != 0 else default


def _number_or_none(flags: Mapping[str, Any], name: str) -> int | None:
    value = flags.get(name)
    return value if type(value) is int and value > 0 else None


def _name(facts: EngineFacts) -> str:
    cleaned = re.sub(r"[^a-z0-9._-]+", "-", facts.model.rsplit("/", 1)[-1].lower()).strip("-._")
    return cleaned or "machine"
