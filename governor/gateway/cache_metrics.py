"""The engine's cache in Prometheus' words, read when asked for. Labels are tiers and agents on file; what is unknown
has no series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from governor.snapshot import CacheView

_SHARED = "(shared)"
"""No agent's name has brackets."""


class CacheMetrics(Collector):
    """Register it once. Written and served fall back to 0 with another engine, or after
    what it told was lost, as counters may."""

    def __init__(self, view: Callable[[], CacheView], label: Callable[[str], str] = str) -> None:
        """``label``: an agent's name as it may stand in a label."""
        self._view = view
        self._label = label

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        held = GaugeMetricFamily(
            "governor_cache_agent_tokens", "KV of agents' contexts in a tier, each once.", labels=["tier", "agent"]
        )
        for tier in view.tiers:
            tokens: Counter[str] = Counter()
            for holder in tier.holders:
                tokens[_SHARED if holder.agent is None else self._label(holder.agent)] += holder.tokens
            for name, count in tokens.items():
                held.add_metric([tier.tier, name], count)
        yield held
        for name, text in (
            ("capacity_tokens", "KV that a tier can hold."),
            ("held_tokens", "KV in a tier, where all of it is known."),
            ("held_states", "States in a tier."),
            ("state_slots", "States that a tier can hold."),
        ):
            gauge = GaugeMetricFamily(f"governor_cache_{name}", text, labels=["tier"])
            for tier in view.tiers:
                is_part = tier.is_part and name == "held_tokens"
                if not is_part and (value := getattr(tier, name)) is not None:
                    gauge.add_metric([tier.tier], value)
            yield gauge
        for name, text in (
            ("written_tokens", "KV written into a tier."),
            ("written_states", "States written into a tier."),
            ("served_tokens", "Prompt tokens that a tier has served."),
        ):
            counter = CounterMetricFamily(f"governor_cache_{name}", text, labels=["tier"])
            for tier in view.tiers:
                if (value := getattr(tier, name)) is not None:
                    counter.add_metric([tier.tier], value)
            yield counter
        yield _predictions(view)


def _predictions(view: CacheView) -> Metric:
    said = view.predicted
    family = CounterMetricFamily(
        "governor_cache_predictions",
        "Turns by how their cached tokens were predicted: to within a page, each tier to within a page, or not.",
        labels=["of", "outcome"],
    )
    for labels, turns in (
        (["tokens", "right"], said.within_page),
        (["tokens", "wrong"], said.turns - said.within_page),
        (["tokens", "unknown"], said.unknown),
        (["tiers", "right"], said.tier_right),
        (["tiers", "wrong"], said.tier_turns - said.tier_right),
    ):
        family.add_metric(labels, turns)
    return family
