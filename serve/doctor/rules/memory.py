"""Capacity: host pools against RAM, tiers against windows and agents."""

from __future__ import annotations

from collections.abc import Iterator

from serve.doctor.case import Case
from serve.doctor.findings import Finding, Severity
from serve.plan import Plan
from serve.plan.demand import Fit
from serve.plan.plan import HOST_SHARE
from serve.sglang_settings import GB

_CALCULATED = "governor plan, which meets published machines within 10 %"


def memory_rules(case: Case) -> Iterator[Finding]:
    yield from _ram(case)
    if case.plan_problem is not None:
        yield Finding(
            id="no-plan",
            severity=Severity.ERROR if case.profile.hardware.gpus and case.fitting_gpus else Severity.WARNING,
            what=case.plan_problem,
            why="the engine ends at its start, or its capacity cannot be told",
            evidence=_CALCULATED,
            cure="governor plan --model DIR with the true weights; memory.mem_fraction_static = 0.9",
        )
    if case.plan is not None:
        yield from _tiers(case, case.plan)
        if case.plan.fit is not None:
            yield from _agents(case.plan, case.plan.fit)


def _ram(case: Case) -> Iterator[Finding]:
    wanted, ram = _host_pool_bytes(case), case.facts.host.ram_bytes
    if not wanted or ram is None or wanted <= ram * HOST_SHARE:
        return
    ranks = case.profile.parallel.tp_size
    each = f"{wanted / ranks / GB:.0f} GB on each of {ranks} ranks" if ranks > 1 else f"{wanted / GB:.0f} GB"
    yield Finding(
        id="host-pools-over-ram",
        severity=Severity.ERROR if wanted > ram else Severity.WARNING,
        what=f"host pools take {each}; this machine has {ram / GB:.0f} GB of RAM",
        why="they are pinned: what does not fit ends the engine, or the system, out of memory",
        evidence="SGLang: hicache-size counts per rank, arg_groups/fields/memory.py:113",
        cure=f"hicache.size_gb = {max(1, int(ram * 0.7 / ranks / GB))}",
    )


def _host_pool_bytes(case: Case) -> float:
    hicache = case.profile.hicache
    if case.plan is not None and case.plan.host is not None:
        return (case.plan.host.kv_bytes + case.plan.host.state_bytes) * float(case.plan.unit.tp)
    return float((hicache.size_gb or 0) * GB * case.profile.parallel.tp_size) if hicache.enabled else 0.0


def _tiers(case: Case, plan: Plan) -> Iterator[Finding]:
    window = plan.window_tokens
    if window and plan.l1.kv_tokens < window:
        unset = plan.device.fraction_is_default and plan.device.mem_fraction is not None
        left = f"; mem_fraction_static is unset, which is about {plan.device.mem_fraction:.2f}" if unset else ""
        yield Finding(
            id="window-over-l1",
            severity=Severity.WARNING,
            what=f"the window is {window:,} tokens, L1 holds {plan.l1.kv_tokens:,}{left}",
            why="a turn that grows past L1 is aborted with an error of the engine",
            evidence=_CALCULATED,
            cure="memory.mem_fraction_static = 0.9" if unset else f"model.context_length = {plan.l1.kv_tokens}",
        )
    if window and plan.l2 is not None and case.profile.l3.backend is not None and plan.l2.kv_tokens <= window:
        yield Finding(
            id="window-over-l2",
            severity=Severity.WARNING,
            what=f"L2 holds {plan.l2.kv_tokens:,} tokens, no more than one window of {window:,}",
            why="what comes from L3 is cut to the room in L2, and a hybrid's prefix that was cut is thrown away",
            evidence="#40193, open in 0.5.23",
            cure="a larger hicache.size_gb",
        )
    chunks = plan.l1.kv_tokens / plan.unit.chunk_tokens
    if plan.unit.state_bytes and chunks > plan.l1.state_slots:
        yield Finding(
            id="fewer-states-than-chunks",
            severity=Severity.WARNING,
            what=f"L1 has {plan.l1.state_slots} states for {chunks:.0f} chunks of {plan.unit.chunk_tokens} tokens",
            why="prefixes stay in memory that nothing can resume; L2 has the same proportion",
            evidence="#36935: a hit of 40,000 tokens fell to 0 silently",
            cure="a larger chunked_prefill_size or max_cache_size",
        )
    wanted = case.profile.memory.max_running_requests
    if wanted is not None and plan.device.requests < wanted:
        yield Finding(
            id="requests-capped",
            severity=Severity.WARNING,
            what=f"max_running_requests is {wanted}, states allow {plan.device.requests}",
            why="the engine lowers it with a line in its log",
            evidence="SGLang kv_cache_configurator.py:3135-3158",
            cure='a larger max_cache_size, or ssm_dtype = "bfloat16", which halves a state',
        )


def _agents(plan: Plan, found: Fit) -> Iterator[Finding]:
    if found.too_large:
        yield Finding(
            id="ceiling-over-l1",
            severity=Severity.WARNING,
            what=f"ceilings of {', '.join(found.too_large)} are over L1 ({plan.l1.kv_tokens:,} tokens)",
            why="such a turn never runs",
            evidence=_CALCULATED,
            cure="context.ceiling_tokens in the agent's policy",
        )
    if found.need_tokens <= plan.l1.kv_tokens:
        return
    kept = found.retained_l2 is not None and found.retained_l2 >= found.agents
    yield Finding(
        id="working-set-over-capacity",
        severity=Severity.INFO if kept else Severity.WARNING,
        what=plan.verdict,
        why="agents take turns; one whose context is in no tier is prefilled again, as in the 49-minute stall"
        if not kept
        else "agents take turns, and come back from host memory",
        evidence=_CALCULATED + "; published machine 2x7900xtx-am5",
        cure="lower ceilings, fewer agents at once, or a larger hicache.size_gb",
    )
