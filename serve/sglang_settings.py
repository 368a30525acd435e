"""Which flag and which environment variable each key of a profile is. Pure, and blind to versions: flags are spelled as
the newest engine spells them, and :mod:`serve.argv` translates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from serve.profile.model import FlagValue, Platform, PriorityOrder, Profile

GB = 10**9


class Setting(msgspec.Struct, frozen=True):
    """A profile's key as a flag. ``None``, ``False`` and an empty tuple are not written, ``True`` is a bare flag."""

    key: str
    flag: str
    value: FlagValue | tuple[str, ...] | None


def settings(profile: Profile) -> Iterator[Setting]:
    """Everything that does not depend on the machine's paths and ports, in the order of the command."""
    yield from _model(profile)
    yield from _memory(profile)
    yield from _tiers(profile)
    yield from _states(profile)
    yield from _drafts(profile)
    yield from _scheduling(profile)
    yield from _kernels(profile)
    yield from _reporting(profile)
    for flag, value in profile.flags.items():
        yield Setting(f"flags.{flag}", flag, value)


def environment(profile: Profile, l3_folder: Path | None) -> dict[str, str]:
    """Variables that the profile's keys imply, without its own ``[environment]``."""
    env: dict[str, str] = {}
    if profile.hicache.enabled and profile.l3.backend is not None and l3_folder is not None:
        env["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(l3_folder)
        if profile.l3.max_size_gb is not None:
            # The engine's cap is per rank (storage/file/lru_file_evictor.py), the profile's over all ranks.
            per_rank = profile.l3.max_size_gb * GB // profile.parallel.tp_size
            env["SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE"] = str(per_rank)
        env["SGLANG_HICACHE_FILE_BACKEND_MIN_FREE_SPACE"] = str(profile.l3.min_free_gb * GB)
    if profile.mamba.conv_dtype is not None:
        env["SGLANG_MAMBA_CONV_DTYPE"] = profile.mamba.conv_dtype
    timeouts = {
        "SGLANG_REQ_WAITING_TIMEOUT": profile.scheduling.waiting_timeout_s,
        "SGLANG_REQ_RUNNING_TIMEOUT": profile.scheduling.running_timeout_s,
    }
    env |= {name: f"{seconds:g}" for name, seconds in timeouts.items() if seconds is not None}
    if profile.hardware.platform is Platform.CPU and profile.parallel.tp_size > 1:
        # Without it SGLang wants a NUMA node for each rank (utils/numa_utils.py).
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(rank) for rank in range(profile.parallel.tp_size))
    return env


def _model(profile: Profile) -> Iterator[Setting]:
    model, parallel = profile.model, profile.parallel
    yield Setting("model.served_name", "--served-model-name", model.served_name)
    yield Setting("hardware.platform", "--device", "cpu" if profile.hardware.platform is Platform.CPU else None)
    yield Setting("model.context_length", "--context-length", model.context_length)
    yield Setting("model.quantization", "--quantization", model.quantization)
    yield Setting("model.dtype", "--dtype", model.dtype)
    yield Setting("model.kv_cache_dtype", "--kv-cache-dtype", model.kv_cache_dtype)
    yield Setting("model.chat_template", "--chat-template", model.chat_template)
    yield Setting("model.lora", "--enable-lora", bool(model.lora))
    yield Setting("model.lora", "--lora-paths", model.lora)
    yield Setting("parsers.reasoning", "--reasoning-parser", profile.parsers.reasoning)
    yield Setting("parsers.tool_call", "--tool-call-parser", profile.parsers.tool_call)
    yield Setting("parallel.tp_size", "--tp-size", parallel.tp_size)
    yield Setting("parallel.dp_size", "--dp-size", parallel.dp_size if parallel.dp_size > 1 else None)


def _memory(profile: Profile) -> Iterator[Setting]:
    memory = profile.memory
    yield Setting("memory.mem_fraction_static", "--mem-fraction-static", memory.mem_fraction_static)
    yield Setting("memory.max_total_tokens", "--max-total-tokens", memory.max_total_tokens)
    yield Setting("memory.max_running_requests", "--max-running-requests", memory.max_running_requests)
    yield Setting("memory.max_queued_requests", "--max-queued-requests", memory.max_queued_requests)
    yield Setting("memory.chunked_prefill_size", "--chunked-prefill-size", memory.chunked_prefill_size)
    yield Setting("memory.max_prefill_tokens", "--max-prefill-tokens", memory.max_prefill_tokens)
    yield Setting("memory.page_size", "--page-size", memory.page_size)


def _tiers(profile: Profile) -> Iterator[Setting]:
    hicache, l3 = profile.hicache, profile.l3
    if not hicache.enabled:
        return
    yield Setting("hicache.enabled", "--enable-hierarchical-cache", True)
    yield Setting("hicache.ratio", "--hicache-ratio", hicache.ratio)
    yield Setting("hicache.size_gb", "--hicache-size", hicache.size_gb)
    yield Setting("hicache.write_policy", "--hicache-write-policy", hicache.write_policy)
    yield Setting("hicache.io_backend", "--hicache-io-backend", hicache.io_backend)
    yield Setting("hicache.mem_layout", "--hicache-mem-layout", hicache.mem_layout)
    if l3.backend is not None:
        extra = msgspec.json.encode(l3.extra_config, order="sorted").decode() if l3.extra_config else None
        yield Setting("l3.backend", "--hicache-storage-backend", l3.backend)
        yield Setting("l3.prefetch_policy", "--hicache-storage-prefetch-policy", l3.prefetch_policy)
        yield Setting("l3.extra_config", "--hicache-storage-backend-extra-config", extra)


def _states(profile: Profile) -> Iterator[Setting]:
    mamba = profile.mamba
    yield Setting("mamba.radix_cache_strategy", "--mamba-radix-cache-strategy", mamba.radix_cache_strategy)
    yield Setting("mamba.max_cache_size", "--max-mamba-cache-size", mamba.max_cache_size)
    yield Setting("mamba.full_memory_ratio", "--mamba-full-memory-ratio", mamba.full_memory_ratio)
    yield Setting("mamba.track_interval", "--mamba-track-interval", mamba.track_interval)
    yield Setting("mamba.max_states_per_path", "--mamba-max-states-per-path", mamba.max_states_per_path)
    yield Setting("mamba.ssm_dtype", "--mamba-ssm-dtype", mamba.ssm_dtype)


def _drafts(profile: Profile) -> Iterator[Setting]:
    draft = profile.speculative
    if draft.algorithm is None:
        return
    yield Setting("speculative.algorithm", "--speculative-algorithm", draft.algorithm)
    yield Setting("speculative.draft_model_path", "--speculative-draft-model-path", draft.draft_model_path)
    yield Setting("speculative.num_steps", "--speculative-num-steps", draft.num_steps)
    yield Setting("speculative.eagle_topk", "--speculative-eagle-topk", draft.eagle_topk)
    yield Setting("speculative.num_draft_tokens", "--speculative-num-draft-tokens", draft.num_draft_tokens)


def _scheduling(profile: Profile) -> Iterator[Setting]:
    scheduling = profile.scheduling
    yield Setting("scheduling.policy", "--schedule-policy", scheduling.policy)
    if scheduling.priority is not PriorityOrder.OFF:
        lower_first = scheduling.priority is PriorityOrder.LOWER_FIRST
        yield Setting("scheduling.priority", "--enable-priority-scheduling", True)
        yield Setting("scheduling.priority", "--schedule-low-priority-values-first", lower_first)
        yield Setting("scheduling.default_priority", "--default-priority-value", scheduling.default_priority)
        yield Setting("scheduling.preemption", "--disable-priority-preemption", not scheduling.preemption)
    yield Setting("scheduling.conservativeness", "--schedule-conservativeness", scheduling.conservativeness)
    yield Setting("scheduling.prefill_decode_interval", "--prefill-decode-interval", scheduling.prefill_decode_interval)
    key = "scheduling.max_consecutive_prefill_batches"
    yield Setting(key, "--max-consecutive-prefill-batches", scheduling.max_consecutive_prefill_batches)
    yield Setting("scheduling.mixed_chunk", "--enable-mixed-chunk", scheduling.mixed_chunk)


def _kernels(profile: Profile) -> Iterator[Setting]:
    kernels = profile.kernels
    yield Setting("kernels.attention_backend", "--attention-backend", kernels.attention_backend)
    yield Setting("kernels.linear_attn_backend", "--linear-attn-backend", kernels.linear_attn_backend)
    if kernels.cuda_graph is False:
        yield Setting("kernels.cuda_graph", "--cuda-graph-backend-decode", "disabled")
        yield Setting("kernels.cuda_graph", "--cuda-graph-backend-prefill", "disabled")
    yield Setting("kernels.cuda_graph_max_bs", "--cuda-graph-max-bs-decode", kernels.cuda_graph_max_bs)
    yield Setting("kernels.custom_all_reduce", "--disable-custom-all-reduce", kernels.custom_all_reduce is False)
    yield Setting("kernels.overlap_schedule", "--disable-overlap-schedule", kernels.overlap_schedule is False)


def _reporting(profile: Profile) -> Iterator[Setting]:
    reporting = profile.reporting
    yield Setting("reporting.metrics", "--enable-metrics", reporting.metrics)
    yield Setting("reporting.cache_report", "--enable-cache-report", reporting.cache_report)
    yield Setting("reporting.decode_log_interval", "--decode-log-interval", reporting.decode_log_interval)
    yield Setting("reporting.sleep_on_idle", "--sleep-on-idle", reporting.sleep_on_idle)
    yield Setting("reporting.watchdog_timeout_s", "--watchdog-timeout", reporting.watchdog_timeout_s)
