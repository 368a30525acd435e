"""The state of things in Prometheus' words, read when asked for. What is unknown has no series, for it is not zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from governor.snapshot import AgentView, CacheView, QueueView, ResidencyView, Snapshot
from governor.store.archive_model import ArchiveHealth

Sample = tuple[tuple[str, ...], float | None]
"""Label values, and what is known."""
Sums = Counter[tuple[str, ...]]
"""Agents that are ``other`` are added up."""


class StateMetrics(Collector):
    """Register it once."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], archive: Callable[[], ArchiveHealth], label: Callable[[str], str]
    ) -> None:
        """``label``: an agent's name as it may stand in a label."""
        self._snapshot = snapshot
        self._archive = archive
        self._label = label

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        yield from _process(now)
        yield from _queue(now.queue, now.now)
        yield from _agents(now.agents, self._label)
        yield from _contexts(now.cache, self._label)
        yield from _tiers(now.cache)
        yield from _logs(now, self._archive())


def _process(now: Snapshot) -> Iterator[Metric]:
    yield _gauge("build_info", "The governor's version; always 1.", ("version",), [((now.version,), 1)])
    yield _gauge("start_time_seconds", "Unix time of its start.", (), [((), now.started_at)])
    yield _gauge("alerts", "What the owner should see to now.", (), [((), len(now.alerts))])
    speed = None if now.prefill is None else now.prefill.tokens_per_s
    yield _gauge("prefill_tokens_per_second", "How fast the engine computed prompts lately.", (), [((), speed)])


def _queue(queue: QueueView, now: float) -> Iterator[Metric]:
    yield _gauge(
        "kv_tokens",
        "L1's KV: booked by leases, foreign (in use, explained by no lease), free.",
        ("state",),
        [
            (("booked",), queue.booked_tokens),
            (("foreign",), None if queue.capacity_tokens is None else queue.foreign_tokens),
            (("free",), queue.free_tokens),
        ],
    )
    yield _gauge("kv_capacity_tokens", "What L1 holds in all.", (), [((), queue.capacity_tokens)])
    yield _gauge("kv_leases", "Leases that hold KV.", (), [((), len(queue.leases))])
    oldest = max((now - waiting.since for waiting in queue.waiting), default=0.0)
    yield _gauge("queue_oldest_wait_seconds", "How long the turn has waited that waits longest.", (), [((), oldest)])


def _agents(agents: Iterable[AgentView], label: Callable[[str], str]) -> Iterator[Metric]:
    turns, held = Sums(), Sums()
    windows: dict[str, float] = {}
    for agent in agents:
        name = label(agent.name)
        turns[name, "running"] += agent.running
        turns[name, "waiting"] += agent.waiting
        held[name,] += agent.held
        if agent.window_tokens is not None:
            windows[name] = max(windows.get(name, 0), agent.window_tokens)
    yield _gauge(
        "agent_turns", "An agent's turns in the engine, and those that wait.", ("agent", "phase"), turns.items()
    )
    yield _gauge("agent_held", "1: the owner has paused the agent.", ("agent",), held.items())
    sizes = [((name,), tokens) for name, tokens in windows.items()]
    yield _gauge("agent_window_tokens", "Prompt and output that the agent may use.", ("agent",), sizes)


def _contexts(cache: CacheView, label: Callable[[str], str]) -> Iterator[Metric]:
    """Of each agent the context that was answered last: the sum over all would count what they share several times."""
    newest: dict[str, ResidencyView] = {}
    for context in cache.contexts:
        newest.setdefault(context.agent, context)
    places = Sums()
    for agent, context in newest.items():
        for place, tokens in (
            ("l1", context.l1_tokens),
            ("l2", context.l2_tokens),
            ("l3", context.l3_tokens),
            ("unusable", context.unusable_tokens),
            ("missing", context.missing_tokens),
            ("unknown", context.unknown_tokens),
        ):
            if tokens is not None:
                places[label(agent), place] += tokens
    text = "An agent's newest context: what each tier would serve, what is held and of no use, what is gone, unknown."
    yield _gauge("agent_context_tokens", text, ("agent", "place"), places.items())


def _tiers(cache: CacheView) -> Iterator[Metric]:
    flagged = [((tier.tier,), float(tier.complaint is not None)) for tier in cache.tiers]
    yield _gauge("cache_flagged", "1: the tier was written a lot and has served nothing.", ("tier",), flagged)
    passed, at = (None, None) if cache.canary is None else (cache.canary.passed, cache.canary.at)
    yield _gauge("canary_passed", "1: the last canary has proven the tiers.", (), [((), passed)])
    yield _gauge("canary_time_seconds", "Unix time of its end.", (), [((), at)])


def _logs(now: Snapshot, archive: ArchiveHealth) -> Iterator[Metric]:
    logs = (("turns", now.store.ok, now.store.pending), ("archive", archive.ok, archive.pending))
    yield _gauge("log_writes", "1: records can be written.", ("log",), [((log,), ok) for log, ok, _ in logs])
    waiting: list[Sample] = [((log,), pending) for log, _, pending in logs]
    yield _gauge("log_pending_records", "Records that wait to be written.", ("log",), waiting)
    dropped = CounterMetricFamily("governor_log_dropped_records", "Records given up.", labels=["log"])
    dropped.add_metric(["turns"], now.store.dropped)
    dropped.add_metric(["archive"], archive.dropped)
    yield dropped
    yield _gauge("archive_bytes", "What the archive holds.", (), [((), archive.bytes_kept)])


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(f"governor_{name}", text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, float(value))
    return family
