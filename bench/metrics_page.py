"""The table of ``docs/metrics.md``, out of the collectors themselves::

    python -m bench.metrics_page > docs/metrics.md

They collect from an example in which everything is known, so that each family shows its labels.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from prometheus_client import Metric

from governor import events
from governor.gateway.cache_metrics import CacheMetrics
from governor.gateway.event_metrics import CAUSES, OUTCOMES
from governor.gateway.metrics import Metrics
from governor.gateway.state_metrics import StateMetrics
from governor.snapshot import (
    AgentView,
    CacheView,
    CanaryView,
    EngineView,
    HolderView,
    PrefillView,
    QueueView,
    ResidencyView,
    Snapshot,
    StoreView,
    TierView,
)
from governor.store.archive_model import ArchiveHealth
from governor.types import TurnKind, TurnState, Usage

AGENT = "ada"
LABELS = {
    "agent": "a name on file (`governor agent`), `other` for any other; `(shared)` where several agents have it",
    "by": "`governor` or `client`",
    "cause": "see [prefix-breaks.md](design/prefix-breaks.md)",
    "code": "an error code of [errors.md](design/errors.md)",
    "flag": "a flag of the turn log, without its details",
    "kind": "of turn, as in the policy",
    "log": "`turns` or `archive`",
    "of": "`tokens` within a page, `tiers` each within a page",
    "outcome": "of a compaction: see below; of a prediction: `right`, `wrong`, `unknown`",
    "phase": "`running` or `waiting`",
    "place": "`l1`, `l2`, `l3`, `unusable`, `missing`, `unknown`",
    "state": "of a turn, as in the turn log; of KV: `booked`, `foreign`, `free`",
    "tier": "`L1`, `L2` or `L3`",
    "type": "`prompt`, `cached` (part of it), `completion`, `reasoning` (part of it)",
    "verdict": "see [events.md](design/events.md)",
    "version": "of the governor",
}
"""What their values are."""
_INTRO = """# Metrics

`GET /metrics` in Prometheus' text format, open to whoever may speak to the port: it has names of agents and no words of
theirs. Labels have values from the governor's own tables only, so the number of series is bounded whatever clients
send. What is unknown has no series. `grafana/governor.json` is a dashboard of them: import it and choose the data
source.

This page is generated: `python -m bench.metrics_page > docs/metrics.md`.

"""


def families() -> list[Metric]:
    """All there are, each with a sample where it has labels."""
    metrics = Metrics()
    registry = metrics.registry
    registry.register(CacheMetrics(lambda: _example().cache))
    registry.register(StateMetrics(_example, lambda: ArchiveHealth(ok=True, pending=0, dropped=0, bytes_kept=1), str))
    usage = Usage(prompt_tokens=1, cached_tokens=1, completion_tokens=1, reasoning_tokens=1)
    metrics.on_turn(AGENT, TurnKind.FINAL, TurnState.OK, usage, queued_s=1.0, ttft_s=1.0, flags=("flag",))
    metrics.on_turn(AGENT, TurnKind.FINAL, TurnState.OK, Usage(), queued_s=None, ttft_s=None, flags=())
    metrics.on_refused("not_found")
    for event in _events():
        metrics.on_event(event)
    return sorted(registry.collect(), key=lambda family: family.name)


def page() -> str:
    """The whole page."""
    found = families()
    rows = [
        f"| `{exposed_name(family)}` | {family.type} | {_labels(family)} | {family.documentation} |" for family in found
    ]
    table = ["| name | type | labels | what |", "|---|---|---|---|", *rows]
    used = sorted({label for family in found for label in labels_of(family)})
    meanings = ["| label | values |", "|---|---|", *(f"| `{label}` | {LABELS[label]} |" for label in used)]
    causes = ", ".join(f"`{cause}`" for cause in sorted(CAUSES))
    misses = "; ".join(f"{by.value}: {', '.join(f'`{each}`' for each in each_of)}" for by, each_of in OUTCOMES.items())
    words = [f"Causes: {causes}.", "", f"Outcomes of compactions: {misses}."]
    return _INTRO + "\n".join([*table, "", "## Labels", "", *meanings, "", *words, ""])


def exposed_name(family: Metric) -> str:
    """As queries have it."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def labels_of(family: Metric) -> set[str]:
    return {label for sample in family.samples for label in sample.labels} - {"le"}


def _labels(family: Metric) -> str:
    return ", ".join(f"`{label}`" for label in sorted(labels_of(family)))


def _example() -> Snapshot:
    context = ResidencyView(
        agent=AGENT,
        context="a",
        session="s",
        context_tokens=6,
        l1_tokens=1,
        l2_tokens=1,
        l3_tokens=1,
        unusable_tokens=1,
        missing_tokens=1,
        unknown_tokens=1,
        answered_at=0.0,
    )
    tier = TierView(
        tier="L1",
        capacity_tokens=1,
        held_tokens=1,
        holders=(HolderView(agent=AGENT, tokens=1),),
        held_states=1,
        state_slots=1,
        written_tokens=1,
        written_states=1,
        served_tokens=1,
    )
    return Snapshot(
        version="1",
        started_at=0.0,
        now=0.0,
        last_event_id=0,
        engine=EngineView(name="sglang", mode="ready"),
        agents=(AgentView(name=AGENT, window_tokens=1),),
        queue=QueueView(free_tokens=1, capacity_tokens=1),
        cache=CacheView(contexts=(context,), tiers=(tier,), canary=CanaryView(at=0.0, passed=True)),
        prefill=PrefillView(tokens_per_s=1.0, low=1.0, high=1.0, turns=1),
        store=StoreView(ok=True, pending=0, dropped=0),
    )


def _events() -> Iterable[events.AnyEvent]:
    yield events.PrefixLost(at=0.0, turn_id="t", agent=AGENT, cause="evicted", tokens=1, seconds=1.0)
    yield events.Compacted(
        at=0.0, turn_id="t", agent=AGENT, by="governor", outcome="accepted", before_tokens=2, after_tokens=1
    )
    yield events.TurnPaused(at=0.0, turn_id="t", agent=AGENT, reason="")
    yield events.TurnResumed(at=0.0, turn_id="t", agent=AGENT, paused_ms=1.0)


if __name__ == "__main__":
    sys.stdout.write(page())
