"""``/metrics``: the twin's figures under SGLang's names (``observability/metrics_collector.py``)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve.twin.tiers import Tiers
from serve.twin_server.info import Identity
from serve.twin_server.service import TwinService
from serve.twin_server.tier_counters import TierCounters

_LABELS = ("model_name", "engine_type", "tp_rank", "pp_rank")
Value = float | int


class TwinMetrics(Collector):
    """Read when asked for."""

    def __init__(self, identity: Identity, service: TwinService, tiers: TierCounters) -> None:
        self._identity = identity
        self._service = service
        self._tiers = tiers
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._values = (identity.model, "unified", "0", "0")

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._load()
        yield from self._pools(self._service.engine.tiers)
        if self._identity.tiers.has_host:
            yield from self._host(self._service.engine.tiers)
        yield from self._requests()
        yield from self._moves()

    def _load(self) -> Iterator[Metric]:
        load, engine = self._service.published.load, self._identity.engine
        usage = load.used_tokens / load.capacity_tokens
        yield self._gauge("num_running_reqs", "The number of running requests.", load.running)
        yield self._gauge("num_queue_reqs", "The number of requests in the waiting queue.", load.waiting)
        yield self._gauge("token_usage", "The token usage.", usage)
        yield self._gauge("full_token_usage", "The token usage for full attention layers.", usage)
        yield self._gauge("num_used_tokens", "The number of used tokens.", load.used_tokens)
        yield self._gauge("new_token_ratio", "The new token ratio.", load.new_token_ratio)
        yield self._gauge("max_total_num_tokens", "Tokens that the KV pool can hold.", load.capacity_tokens)
        yield self._gauge("page_size", "KV cache page size in tokens.", engine.tiers.page_tokens)
        yield self._gauge("context_len", "Maximum context length.", engine.context_tokens)

    def _pools(self, tiers: Tiers) -> Iterator[Metric]:
        settings, tree = tiers.settings, tiers.tree
        used = settings.page_floor(settings.device_tokens) - tree.free_tokens - tree.evictable_tokens
        yield self._gauge("kv_available_tokens", "Free token slots in the KV pool.", tree.free_tokens)
        yield self._gauge("kv_evictable_tokens", "Evictable token slots in the KV pool.", tree.evictable_tokens)
        yield self._gauge("kv_used_tokens", "Actively used token slots in the KV pool.", used)
        if not settings.has_states:
            return
        states = settings.device_slots - tree.free_slots - tree.evictable_slots
        yield self._gauge("mamba_available_tokens", "Free state slots.", tree.free_slots)
        yield self._gauge("mamba_evictable_tokens", "Evictable state slots.", tree.evictable_slots)
        yield self._gauge("mamba_used_tokens", "Actively used state slots.", states)
        yield self._gauge("mamba_usage", "The usage of the state slots.", states / settings.device_slots)

    def _host(self, tiers: Tiers) -> Iterator[Metric]:
        settings, tree = tiers.settings, tiers.tree
        total = settings.page_floor(settings.host_tokens)
        yield self._gauge("hicache_host_used_tokens", "Tokens in the host KV cache.", total - tree.free_host_tokens)
        yield self._gauge("hicache_host_total_tokens", "Capacity of the host KV cache.", total)
        if settings.has_states:
            states = settings.host_slots
            used = states - tree.free_host_slots
            yield self._gauge("hicache_host_mamba_used_states", "State slots in use in the host cache.", used)
            yield self._gauge("hicache_host_mamba_total_states", "State slots of the host cache.", states)

    def _requests(self) -> Iterator[Metric]:
        count = self._service.counters
        yield self._counter("num_requests", "Number of requests processed.", count.requests)
        yield self._counter("num_aborted_requests", "Number of requests aborted.", count.aborts)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", count.prompt_tokens)
        yield self._counter("generation_tokens", "Number of generation tokens processed.", count.generation_tokens)
        yield self._counter("num_retracted_requests", "Total number of retracted requests.", count.retractions)
        yield self._counter("num_retracted_input_tokens", "Retracted input tokens.", count.retracted_input_tokens)
        yield self._counter("num_retracted_output_tokens", "Retracted output tokens.", count.retracted_output_tokens)
        by_source = {
            "device": count.cached_device_tokens,
            "host": count.cached_host_tokens,
            "storage": count.cached_storage_tokens,
            "total": count.cached_tokens,
        }
        # A series appears with its first tokens, as in SGLang.
        seen = {source: tokens for source, tokens in by_source.items() if tokens}
        yield self._split("cached_tokens", "Number of cached prompt tokens by source.", "cache_source", seen)

    def _moves(self) -> Iterator[Metric]:
        tiers, settings = self._tiers, self._identity.tiers
        yield self._counter("evicted_tokens", "Device KV token slots freed by eviction.", tiers.evicted_tokens)
        if not settings.has_host:
            return
        count = self._service.counters
        loaded = {"kv": count.cached_host_tokens + count.cached_storage_tokens, "mamba": tiers.loaded_states}
        backed_up = {"kv": tiers.backed_up_tokens, "mamba": tiers.backed_up_states}
        yield self._split("load_back_tokens", "Tokens loaded back from host to GPU, by pool.", "pool", loaded)
        yield self._split("hicache_backup_tokens", "Tokens backed up from GPU to host, by pool.", "pool", backed_up)
        if settings.has_storage:
            yield self._counter("backuped_tokens", "Number of backuped tokens.", tiers.stored_tokens)
            yield self._counter("prefetched_tokens", "Tokens from L3 to host memory.", tiers.prefetched_tokens)
            found = tiers.found_tokens
            yield self._counter("storage_prefetch_hit_tokens", "Tokens that an L3 query has found.", found)

    def _gauge(self, name: str, text: str, value: Value) -> Metric:
        family = GaugeMetricFamily(f"sglang:{name}", text, labels=_LABELS)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, text: str, value: Value) -> Metric:
        family = CounterMetricFamily(f"sglang:{name}", text, labels=_LABELS)
        family.add_metric(self._values, value)
        return family

    def _split(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(f"sglang:{name}", text, labels=(*_LABELS, label))
        for value, number in values.items():
            family.add_metric((*self._values, value), number)
        return family
