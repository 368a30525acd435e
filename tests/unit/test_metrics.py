"""Prometheus: bounded labels, no series for what is unknown, and a page that says what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bench.grafana_board import board, text
from bench.metrics_page import LABELS, exposed_name, families, labels_of, page
from governor import events
from governor.gateway.cache_metrics import CacheMetrics
from governor.gateway.event_metrics import OTHER
from governor.gateway.metrics import Metrics
from governor.gateway.state_metrics import StateMetrics
from governor.snapshot import (
    AgentView,
    CacheView,
    EngineView,
    HolderView,
    QueueView,
    ResidencyView,
    Snapshot,
    StoreView,
    TierView,
    WaitingView,
)
from governor.store.archive_model import ArchiveHealth

ROOT = Path(__file__).parents[2]
ODD = 'x"}\ngovernor_turns_total{agent="y"} 1'


def read(page: bytes) -> dict[str, float]:
    """Series to their values."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def snapshot(**facts: Any) -> Snapshot:
    plain: dict[str, Any] = {
        "version": "1",
        "started_at": 5.0,
        "now": 100.0,
        "last_event_id": 0,
        "engine": EngineView(name="e", mode="ready"),
        "store": StoreView(ok=True, pending=3, dropped=4),
    }
    return Snapshot(**plain | facts)


def told(now: Snapshot, known: frozenset[str] = frozenset({"ada", "bob"})) -> dict[str, float]:
    registry = CollectorRegistry()
    health = ArchiveHealth(ok=False, pending=1, dropped=2, bytes_kept=None)
    registry.register(StateMetrics(lambda: now, lambda: health, lambda name: name if name in known else OTHER))
    return read(generate_latest(registry))


def context(agent: str, tokens: int, **facts: Any) -> ResidencyView:
    return ResidencyView(agent=agent, context="c", session="s", context_tokens=tokens, answered_at=0.0, **facts)


def test_the_page_in_the_docs_is_what_there_is() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == page()
    used = {label for family in families() for label in labels_of(family)}
    assert used == set(LABELS)
    assert all(family.documentation.endswith(".") for family in families())


def test_the_dashboard_is_what_its_table_says_and_asks_for_what_there_is() -> None:
    file = ROOT / "grafana" / "governor.json"
    assert file.read_text() == text()
    assert json.loads(file.read_text()) == board()
    ids = [panel["id"] for panel in board()["panels"]]
    assert len(set(ids)) == len(ids) > 30


def test_queries_and_legends_use_labels_that_there_are() -> None:
    """A misspelt label selects nothing and says nothing."""
    labels = {exposed_name(family): labels_of(family) for family in families()}
    targets = [target for panel in board()["panels"] for target in panel.get("targets", ())]
    for target in targets:
        query = target["expr"]
        for name, selector in re.findall(r"(governor_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)(?:=~|!=|=)", selector)) <= labels[name.removesuffix("_bucket")], query
        shown = (labels[name.removesuffix("_bucket")] for name in re.findall(r"\bgovernor_\w+", query))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= set().union(*shown), target


def test_what_is_unknown_has_no_series() -> None:
    page = told(snapshot())
    assert not [name for name in page if "prefill" in name or "canary" in name or "capacity" in name or "bytes" in name]
    assert "governor_kv_tokens{state=free}" not in page
    assert "governor_kv_tokens{state=foreign}" not in page
    assert page["governor_kv_tokens{state=booked}"] == 0
    places = told(snapshot(cache=CacheView(contexts=(context("ada", 9, unknown_tokens=9),))))
    assert {name: value for name, value in places.items() if "context_tokens" in name} == {
        "governor_agent_context_tokens{agent=ada,place=unknown}": 9
    }


def test_logs_and_queue() -> None:
    waits = WaitingView(turn_id="t", agent="ada", position=1, since=40.0, due=200.0, reason="kv")
    page = told(snapshot(queue=QueueView(waiting=(waits,), booked_tokens=7, free_tokens=5, capacity_tokens=12)))
    assert page["governor_queue_oldest_wait_seconds"] == 60
    assert page["governor_kv_tokens{state=free}"] == 5
    assert page["governor_kv_tokens{state=foreign}"] == 0
    assert page["governor_log_pending_records{log=turns}"] == 3
    assert page["governor_log_dropped_records_total{log=archive}"] == 2
    assert page["governor_log_writes{log=archive}"] == 0


def test_of_an_agents_contexts_the_newest_counts() -> None:
    contexts = (context("ada", 10, l1_tokens=10), context("ada", 99, l1_tokens=99), context("bob", 4, l1_tokens=0))
    page = told(snapshot(cache=CacheView(contexts=contexts)))
    assert page["governor_agent_context_tokens{agent=ada,place=l1}"] == 10
    assert page["governor_agent_context_tokens{agent=bob,place=l1}"] == 0


def test_names_that_are_not_on_file_are_one_other() -> None:
    agents = (
        AgentView(name="ada", running=1, window_tokens=8),
        AgentView(name=ODD, running=2),
        AgentView(name="z", running=3),
    )
    cache = CacheView(contexts=(context(ODD, 5, l1_tokens=5), context("z", 6, l1_tokens=6)))
    page = told(snapshot(agents=agents, cache=cache))
    assert page["governor_agent_turns{agent=other,phase=running}"] == 5
    assert page["governor_agent_context_tokens{agent=other,place=l1}"] == 11
    assert {
        name for name in page if "agent=" in name and "agent=ada" not in name and "agent=other" not in name
    } == set()
    registry = CollectorRegistry()
    holders = tuple(HolderView(agent=name, tokens=2) for name in (ODD, "z", "ada", None))
    view = CacheView(tiers=(TierView(tier="L1", holders=holders),))
    registry.register(CacheMetrics(lambda: view, lambda name: name if name == "ada" else OTHER))
    held = {name: value for name, value in read(generate_latest(registry)).items() if "agent_tokens" in name}
    assert held == {
        "governor_cache_agent_tokens{agent=other,tier=L1}": 4,
        "governor_cache_agent_tokens{agent=ada,tier=L1}": 2,
        "governor_cache_agent_tokens{agent=(shared),tier=L1}": 2,
    }


def test_what_happens_is_counted_under_bounded_labels() -> None:
    metrics = Metrics(lambda: {"ada"})
    before = read(metrics.page()).keys()
    for agent, cause in (("ada", "evicted"), (ODD, "evicted"), ("ada", ODD)):
        lost = events.PrefixLost(at=0.0, turn_id="t", agent=agent, cause=cause, tokens=100, seconds=0.5)
        metrics.on_event(lost)
    metrics.on_event(events.PrefixLost(at=0.0, turn_id="t", agent="ada", cause="evicted", tokens=None))
    metrics.on_event(events.PrefixLost(at=0.0, turn_id="t", agent="ada", cause="edited", tokens=None))
    for outcome, after in (("accepted", 40), ("no_result", None), (ODD, None)):
        metrics.on_event(
            events.Compacted(
                at=0.0, turn_id="t", agent="ada", by="governor", outcome=outcome, before_tokens=100, after_tokens=after
            )
        )
    metrics.on_event(events.TurnResumed(at=0.0, turn_id="t", agent="ada", paused_ms=1500))
    page = read(metrics.page())
    assert page["governor_prefix_lost_tokens_total{agent=ada,cause=evicted}"] == 100
    assert page["governor_prefix_losses_total{agent=ada,cause=evicted}"] == 2
    assert page["governor_prefix_losses_total{agent=ada,cause=edited}"] == 1
    assert "governor_prefix_lost_tokens_total{agent=ada,cause=edited}" not in page
    assert "governor_prefix_lost_seconds_total{agent=ada,cause=edited}" not in page
    assert page["governor_prefix_lost_seconds_total{agent=other,cause=evicted}"] == 0.5
    assert page["governor_prefix_lost_tokens_total{agent=ada,cause=other}"] == 100
    assert page["governor_compactions_total{by=governor,outcome=accepted}"] == 1
    assert page["governor_compactions_total{by=governor,outcome=other}"] == 1
    assert page["governor_compactions_total{by=client,outcome=grew}"] == 0
    assert page["governor_compaction_freed_tokens_total{agent=ada,by=governor}"] == 60
    assert page["governor_paused_seconds_total{agent=ada}"] == 1.5
    agents = {series.partition("agent=")[2].partition(",")[0].rstrip("}") for series in page.keys() - before}
    assert agents <= {"ada", "other", ""}
