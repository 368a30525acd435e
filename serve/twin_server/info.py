"""What the twin says of itself on ``/server_info``, ``/model_info``, ``/v1/models``, ``/v1/loads``: SGLang's fields."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from serve.twin.engine_model import EngineSettings
from serve.twin.machine import Machine
from serve.twin.tiers_model import TierSettings
from serve.twin_server.errors import BadRequest
from serve.twin_server.service import TwinService
from serve.twin_server.settings import TwinServerSettings

VERSION = "0.5.23"
"""Of the SGLang that the twin stands for; its own surface is that one's."""
STORAGE_BACKEND = "file"
STORAGE_CLASS = "HiCacheFile"
"""How ``cached_tokens_details`` names that backend."""
_LOAD_SECTIONS = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})


class Identity:
    """The engine's name, its settings, and since when it runs."""

    def __init__(self, machine: Machine, settings: TwinServerSettings) -> None:
        self.machine = machine
        self.settings = settings
        self.model = settings.served_model_name or machine.model
        self.started_at = time.time()

    @property
    def engine(self) -> EngineSettings:
        return self.machine.engine

    @property
    def tiers(self) -> TierSettings:
        return self.machine.engine.tiers

    def model_card(self) -> dict[str, Any]:
        return {
            "id": self.model,
            "object": "model",
            "created": int(self.started_at),
            "owned_by": "sglang",
            "root": self.model,
            "parent": None,
            "max_model_len": self.engine.context_tokens,
        }

    def model_info(self) -> dict[str, Any]:
        return {
            "model_path": self.model,
            "served_model_name": self.model,
            "tokenizer_path": self.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "reasoning_parser": "qwen3",
            "tool_call_parser": "qwen3_coder",
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }

    def server_info(self, service: TwinService) -> dict[str, Any]:
        """The part of several hundred fields that means something here."""
        engine, tiers = self.engine, self.tiers
        return {
            **self.model_info(),
            "twin": {"machine": self.machine.name, "speed": self.settings.speed},
            "context_length": engine.context_tokens,
            "page_size": tiers.page_tokens,
            "max_total_num_tokens": tiers.device_tokens,
            "max_req_input_len": min(engine.context_tokens, tiers.device_tokens) - 6,
            "max_running_requests": engine.max_running_requests,
            "max_queued_requests": engine.max_queued_requests,
            "chunked_prefill_size": engine.chunked_prefill_tokens,
            "max_prefill_tokens": engine.max_prefill_tokens,
            "enable_mixed_chunk": engine.mixed_chunk,
            "prefill_decode_interval": engine.prefill_decode_interval or 0,
            "schedule_policy": engine.queue_policy.value,
            "schedule_conservativeness": engine.schedule_conservativeness,
            "enable_priority_scheduling": engine.priority_scheduling,
            "disable_priority_preemption": not engine.priority_preemption,
            "schedule_low_priority_values_first": engine.lower_priority_first,
            "radix_eviction_policy": tiers.eviction.value,
            "disable_radix_cache": False,
            "enable_session_radix_cache": False,
            "uses_mamba_radix_cache": tiers.has_states,
            "mamba_radix_cache_strategy": tiers.strategy.value,
            "max_mamba_cache_size": tiers.device_slots or None,
            "mamba_track_interval": tiers.track_interval_tokens,
            "mamba_max_states_per_path": tiers.states_per_path,
            "enable_hierarchical_cache": tiers.has_host,
            "hicache_host_memory_mode": tiers.host_mode.value,
            "hicache_write_policy": tiers.write_policy.value,
            "hicache_storage_backend": STORAGE_BACKEND if tiers.has_storage else None,
            "hicache_storage_prefetch_policy": tiers.prefetch_policy.value,
            "enable_cache_report": True,
            "enable_metrics": True,
            "sleep_on_idle": False,
            "tp_size": 1,
            "dp_size": 1,
            "kv_events": self._kv_events(),
            "startup_time": self.started_at,
            "status": "ready",
            "frontend": "python",
            "version": VERSION,
            "internal_states": [self._internal_state(service)],
        }

    def _internal_state(self, service: TwinService) -> dict[str, Any]:
        return {
            "world_size": 1,
            "startup_time": self.started_at,
            "effective_max_running_requests_per_dp": self.engine.max_running_requests,
            "last_gen_throughput": 0.0,
            "memory_usage": {"token_capacity": self.tiers.device_tokens, "token_capacity_swa": None},
            "max_total_num_tokens": self.tiers.device_tokens,
            "max_mamba_cache_size": self.tiers.device_slots or None,
            "new_token_ratio": service.published.load.new_token_ratio,
        }

    def _kv_events(self) -> dict[str, Any] | None:
        """``describe_kv_events_publisher``: of TCP addresses only."""
        place = _tcp(self.settings.kv_events_endpoint)
        if place is None:
            return None
        host, port = place
        described = {
            "publisher": "zmq",
            "endpoint_host": host,
            "endpoint_port_base": port,
            "topic": "",
            "block_size": self.tiers.page_tokens,
            "dp_size": 1,
        }
        replay = _tcp(self.settings.kv_replay_endpoint)
        return described if replay is None else described | {"replay_endpoint_port_base": replay[1]}

    def loads(self, service: TwinService, include: str | None) -> dict[str, Any]:
        """Raises :class:`BadRequest` for a section that there is not."""
        sections = {part.strip() for part in include.split(",")} if include else {"all"}
        if not sections <= _LOAD_SECTIONS:
            raise BadRequest(
                f"Invalid include sections: {sections - _LOAD_SECTIONS}. Valid options: {sorted(_LOAD_SECTIONS)}", "400"
            )
        return {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": VERSION,
            "accelerator": None,
            "num_accelerators": 1,
            "loads": [self._load(service, sections)],
        }

    def _load(self, service: TwinService, sections: set[str]) -> dict[str, Any]:
        published = service.published
        load, tiers, counters = published.load, self.tiers, service.counters
        told: dict[str, Any] = {
            "timestamp": published.at,
            "dp_rank": 0,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_waiting_uncached_tokens": 0,
            "num_used_tokens": load.used_tokens,
            "num_total_tokens": load.used_tokens,
            "num_active_tokens": load.used_tokens,
            "num_prealloc_ready_tokens": 0,
            "max_total_num_tokens": load.capacity_tokens,
            "max_running_requests": self.engine.max_running_requests,
            "token_usage": round(load.used_tokens / load.capacity_tokens, 4),
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "total_prefill_uncached_tokens": counters.uncached_tokens,
            "total_prefill_busy_us": 0,
            "decode_moments": None,
        }
        if sections & {"memory", "all"}:
            capacity = tiers.device_tokens
            told["memory"] = {"weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": capacity}
        if sections & {"queues", "all"}:
            queues = {"waiting": load.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}
            told["queues"] = queues
        return told


def _tcp(endpoint: str | None) -> tuple[str, int] | None:
    if endpoint is None or not endpoint.startswith("tcp://"):
        return None
    host, _, port = urlsplit(endpoint).netloc.rpartition(":")
    return (host, int(port)) if port.isdecimal() else None
