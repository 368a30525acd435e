"""Settings of the profile: what is known to break, what leaves the governor blind, what is left to chance."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from serve.doctor.case import Case
from serve.doctor.findings import Finding, Severity
from serve.profile.model import PrefetchPolicy, Profile, WritePolicy
from serve.unsafe import dangers


def settings_rules(case: Case) -> Iterator[Finding]:
    if not case.is_sglang:
        return
    yield from _dangers(case)
    yield from _blind(case.profile)
    yield from _unset(case.profile)
    yield from _risks(case.profile)


def _dangers(case: Case) -> Iterator[Finding]:
    """The table that refuses commands, with the GPU that is really there."""
    profile = case.profile
    gpus = case.facts.gpus.found
    if profile.hardware.arch is None and gpus:
        profile = msgspec.structs.replace(
            profile, hardware=msgspec.structs.replace(profile.hardware, arch=gpus[0].arch)
        )
    refused = {danger.id for danger in dangers(profile, case.version)}
    for danger in dangers(msgspec.structs.replace(profile, accept_unsafe=()), case.version):
        is_refused = danger.id in refused
        yield Finding(
            id=danger.id,
            severity=Severity.ERROR if is_refused else Severity.WARNING,
            what=danger.key if is_refused else f"{danger.key} (the profile takes it on in accept_unsafe)",
            why=danger.reason,
            evidence=danger.evidence,
            cure=danger.cure,
        )


def _blind(profile: Profile) -> Iterator[Finding]:
    reporting = profile.reporting
    blind = {
        "metrics": (reporting.metrics, "load and the pools' fill are unknown"),
        "cache_report": (
            reporting.cache_report,
            "usage has no cached_tokens: nobody sees what was served from a cache",
        ),
        "kv_events": (reporting.kv_events, "which agent's context is where is unknown"),
        "plugin": (reporting.plugin, "states and L3 are unknown, and what can be resumed is over-estimated"),
    }
    for key, (is_on, consequence) in blind.items():
        if not is_on:
            yield Finding(
                id=f"no-{key.replace('_', '-')}",
                severity=Severity.WARNING,
                what=f"reporting.{key} is off",
                why=consequence,
                evidence="SGLang tells it only when asked: arg_groups/fields/observability.py, serving.py",
                cure=f"reporting.{key} = true",
            )


def _unset(profile: Profile) -> Iterator[Finding]:
    memory = profile.memory
    if memory.max_running_requests is None:
        drafts = profile.speculative.algorithm is not None
        why = "speculation makes it 48" if drafts else "it follows from memory, up to some thousands"
        yield Finding(
            id="requests-unset",
            severity=Severity.WARNING,
            what="memory.max_running_requests is unset",
            why=f"{why}; each takes state slots and scratch for draft tokens, and the KV pool gets what is left",
            evidence="SGLang speculative_hook.py:438, kv_cache_configurator.py:3097-3158",
            cure="the number of agents that should decode together, such as 8",
        )
    if profile.model.hybrid and profile.mamba.max_cache_size is None and profile.mamba.full_memory_ratio is None:
        yield Finding(
            id="slots-unset",
            severity=Severity.WARNING,
            what="mamba.max_cache_size is unset",
            why="nearly half of the cache memory goes to states, whatever the number of agents",
            evidence="SGLang kv_cache_configurator.py:3350-3386: 0.9 / 1.9 of it",
            cure="5 slots for each running request, and one for each chunk of the KV pool",
        )
    if (
        profile.l3.backend is not None
        and profile.model.hybrid
        and profile.l3.prefetch_policy is not (PrefetchPolicy.WAIT_COMPLETE)
    ):
        yield Finding(
            id="l3-prefetch-cut",
            severity=Severity.WARNING,
            what=f"l3.prefetch_policy is {profile.l3.prefetch_policy or 'unset, which is timeout'}",
            why="a hybrid's prefix is used whole or not at all: what a cut-off read has fetched is thrown away",
            evidence="SGLang mem_cache/unified_radix_cache.py:2536-2644",
            cure='prefetch_policy = "wait_complete"',
        )


def _risks(profile: Profile) -> Iterator[Finding]:
    if profile.hicache.write_policy is WritePolicy.WRITE_BACK and profile.l3.backend is not None:
        yield Finding(
            id="write-back-l3",
            severity=Severity.WARNING,
            what="write_back together with L3",
            why="pages that are only on the GPU may lie between two host copies: L3 is then asked by a wrong key",
            evidence="SGLang 0.5.23 source: unified_tree_core.py:1975-2044 (duplicates are reclaimed)",
            cure='write_policy = "write_through", or a canary run that returns from L3',
        )
    if profile.scheduling.mixed_chunk and profile.model.hybrid:
        yield Finding(
            id="mixed-chunk-untested",
            severity=Severity.WARNING,
            what="scheduling.mixed_chunk is on with a hybrid model",
            why="it corrupted stored states until 0.5.23; decode rows of a mixed batch store none",
            evidence="#39342, #39526; schedule_batch.py:3321-3354",
            cure="mixed_chunk = false, or a canary run",
        )
    page = profile.memory.page_size or 1
    if profile.model.hybrid and page > 64:
        yield Finding(
            id="page-over-grid",
            severity=Severity.WARNING,
            what=f"memory.page_size is {page}",
            why="states are stored at multiples of the page: a return prefills up to a page more each turn",
            evidence="SGLang runtime_context.py:1966-1982: the grid is lcm(64, page)",
            cure="page_size = 64",
        )
