"""Turns counted for Prometheus, and the page. Label values come from our own tables only: agents on file, kinds,
states, error codes. What else happens is counted in ``event_metrics``; how things stand is read in ``state_metrics``
and ``cache_metrics``."""

from __future__ import annotations

from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from governor.gateway.event_metrics import OTHER, EventMetrics
from governor.types import TurnKind, TurnState, Usage

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


class Metrics:
    """One registry a governor; nothing global, so two can live in one process."""

    def __init__(self, agents: Callable[[], Collection[str]] | None = None) -> None:
        """``agents``: names that may become labels now; ``None``: all."""
        self._agents = agents
        self.registry = CollectorRegistry()
        r = self.registry
        self.on_event = EventMetrics(r, self.label)
        self._turns = Counter(
            "governor_turns", "Turns ended, by how they ended.", ["agent", "kind", "state"], registry=r
        )
        self._tokens = Counter("governor_tokens", "Tokens as the engine reported them.", ["agent", "type"], registry=r)
        self._unreported = Counter(
            "governor_turns_without_usage", "Turns whose engine reported no usage.", ["agent"], registry=r
        )
        self._flags = Counter("governor_anomalies", "Oddities of answers.", ["flag"], registry=r)
        self._refused = Counter(
            "governor_http_refused", "Requests refused before they became a turn.", ["code"], registry=r
        )
        self._queue = Histogram(
            "governor_queue_seconds", "Wait for admission.", ["agent"], buckets=_SECONDS, registry=r
        )
        self._ttft = Histogram(
            "governor_ttft_seconds", "Arrival to first token.", ["agent"], buckets=_SECONDS, registry=r
        )
        self.running = Gauge("governor_turns_running", "Turns that hold a lease.", registry=r)
        self.waiting = Gauge("governor_turns_waiting", "Turns that wait for admission.", registry=r)
        self.open_turns = Gauge("governor_turns_open", "Turns that have not ended.", registry=r)
        self.engine_up = Gauge("governor_engine_ready", "1 while the engine answers.", registry=r)

    def label(self, agent: str) -> str:
        """The agent's name, if it is one that may become a label."""
        return agent if self._agents is None or agent in self._agents() else OTHER

    def on_refused(self, code: str) -> None:
        """``code`` is one of our own error codes."""
        self._refused.labels(code).inc()

    def on_turn(
        self,
        agent: str,
        kind: TurnKind | None,
        state: TurnState,
        usage: Usage,
        *,
        queued_s: float | None,
        ttft_s: float | None,
        flags: tuple[str, ...],
    ) -> None:
        """A turn has ended. ``flags`` may have details behind a colon; they are no label."""
        agent = self.label(agent)
        self._turns.labels(agent, kind.value if kind else "unknown", state.value).inc()
        figures = {
            "prompt": usage.prompt_tokens,
            "cached": usage.cached_tokens,
            "completion": usage.completion_tokens,
            "reasoning": usage.reasoning_tokens,
        }
        for name, tokens in figures.items():
            if tokens is not None:
                self._tokens.labels(agent, name).inc(tokens)
        if usage.prompt_tokens is None and state in {TurnState.OK, TurnState.TRUNCATED}:
            self._unreported.labels(agent).inc()
        if queued_s is not None:
            self._queue.labels(agent).observe(queued_s)
        if ttft_s is not None:
            self._ttft.labels(agent).observe(ttft_s)
        for flag in flags:
            self._flags.labels(flag.partition(":")[0]).inc()

    def page(self) -> bytes:
        """The page in Prometheus's text format."""
        return generate_latest(self.registry)
