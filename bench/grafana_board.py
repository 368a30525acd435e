"""``grafana/governor.json``, a dashboard that Grafana imports, out of a short table of panels::

    python -m bench.grafana_board > grafana/governor.json

Schema: Grafana 10's dashboard JSON model (``schemaVersion`` 39); the data source is asked for at the import.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

import msgspec

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDE, _HIGH = 24, 8
_AGENT: Final = '{agent=~"$agent"}'


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One picture. ``queries``: legend to PromQL."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    stacked: bool = False
    text: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    panels: tuple[Panel, ...]


def _rate(name: str, by: str, selector: str = _AGENT) -> str:
    return f"sum by ({by}) (rate({name}{selector}[$__rate_interval]))"


def _share(name: str, by: str, part: str, whole: str) -> str:
    """Of the rates of two selections of one counter."""
    return " / ".join(_rate(name, by, f"{{{selector}}}") for selector in (part, whole))


ROWS: Final = (
    Row(
        title="Engine",
        panels=(
            Panel(title="Engine", queries={"ready": "governor_engine_ready"}, kind="stat", width=3),
            Panel(title="Alerts", queries={"alerts": "governor_alerts"}, kind="stat", width=3),
            Panel(title="Canary passed", queries={"passed": "governor_canary_passed"}, kind="stat", width=3),
            Panel(
                title="Prefill speed",
                queries={"tokens a second": "governor_prefill_tokens_per_second"},
                kind="stat",
                width=3,
                text="What turns met lately, with what ran beside them.",
            ),
            Panel(
                title="KV of L1",
                queries={"{{state}}": "governor_kv_tokens", "capacity": "governor_kv_capacity_tokens"},
                width=6,
                stacked=True,
            ),
            Panel(
                title="Tokens a second",
                queries={"{{type}}": _rate("governor_tokens_total", "type")},
                width=6,
            ),
        ),
    ),
    Row(
        title="Tiers",
        panels=(
            Panel(
                title="Held, by whom",
                queries={"{{tier}} {{agent}}": f"governor_cache_agent_tokens{_AGENT}"},
                stacked=True,
            ),
            Panel(
                title="Held of what there is room for",
                queries={"{{tier}}": "governor_cache_held_tokens / governor_cache_capacity_tokens"},
                unit="percentunit",
            ),
            Panel(
                title="States of what there is room for",
                queries={"{{tier}}": "governor_cache_held_states / governor_cache_state_slots"},
                unit="percentunit",
            ),
            Panel(
                title="Written",
                queries={
                    "{{tier}}": _rate("governor_cache_written_tokens_total", "tier", ""),
                    "{{tier}} states": _rate("governor_cache_written_states_total", "tier", ""),
                },
            ),
            Panel(title="Served", queries={"{{tier}}": _rate("governor_cache_served_tokens_total", "tier", "")}),
            Panel(
                title="Predicted right",
                queries={
                    "{{of}}": _share("governor_cache_predictions_total", "of", 'outcome="right"', 'outcome!="unknown"'),
                    "not predicted": _share(
                        "governor_cache_predictions_total", "of", 'of="tokens",outcome="unknown"', 'of="tokens"'
                    ),
                },
                unit="percentunit",
                text="Cached tokens to within a page; each tier to within a page. "
                "Turns that nothing was predicted of are in neither.",
            ),
            Panel(
                title="Written a lot, served nothing",
                queries={"{{tier}}": "governor_cache_flagged"},
                kind="stat",
            ),
        ),
    ),
    Row(
        title="Agents",
        panels=(
            Panel(
                title="Newest context, by place",
                queries={"{{agent}} {{place}}": f"governor_agent_context_tokens{_AGENT}"},
                stacked=True,
                width=12,
            ),
            Panel(
                title="Context of what it may use",
                queries={
                    "{{agent}}": f"sum by (agent) (governor_agent_context_tokens{_AGENT}) / "
                    f"max by (agent) (governor_agent_window_tokens{_AGENT})"
                },
                unit="percentunit",
                width=12,
            ),
            Panel(
                title="Hit share",
                queries={
                    "{{agent}}": _share(
                        "governor_tokens_total",
                        "agent",
                        'agent=~"$agent",type="cached"',
                        'agent=~"$agent",type="prompt"',
                    )
                },
                unit="percentunit",
            ),
            Panel(
                title="First token, 95th percentile",
                queries={
                    "{{agent}}": "histogram_quantile(0.95, sum by (agent, le) (rate(governor_ttft_seconds_bucket"
                    f"{_AGENT}[$__rate_interval])))"
                },
                unit="s",
            ),
            Panel(
                title="Turns a minute, by how they ended",
                queries={"{{agent}} {{state}}": f"60 * {_rate('governor_turns_total', 'agent, state')}"},
            ),
            Panel(title="Held by the owner", queries={"{{agent}}": f"governor_agent_held{_AGENT}"}, kind="stat"),
            Panel(
                title="Engine told no usage",
                queries={"{{agent}}": _rate("governor_turns_without_usage_total", "agent")},
            ),
            Panel(title="Oddities", queries={"{{flag}}": _rate("governor_anomalies_total", "flag", "")}),
        ),
    ),
    Row(
        title="Queue",
        panels=(
            Panel(
                title="Turns",
                queries={
                    "running": "governor_turns_running",
                    "waiting": "governor_turns_waiting",
                    "open": "governor_turns_open",
                    "leases": "governor_kv_leases",
                },
                width=6,
            ),
            Panel(
                title="Waiting, by agent",
                queries={"{{agent}}": 'governor_agent_turns{agent=~"$agent",phase="waiting"}'},
                width=6,
            ),
            Panel(title="Oldest wait", queries={"oldest": "governor_queue_oldest_wait_seconds"}, unit="s", width=6),
            Panel(
                title="Wait for admission, 95th percentile",
                queries={
                    "{{agent}}": "histogram_quantile(0.95, sum by (agent, le) (rate(governor_queue_seconds_bucket"
                    f"{_AGENT}[$__rate_interval])))"
                },
                unit="s",
                width=6,
            ),
            Panel(title="Decisions", queries={"{{verdict}}": _rate("governor_decisions_total", "verdict", "")}),
            Panel(
                title="Pauses a minute",
                queries={"{{agent}}": f"60 * {_rate('governor_pauses_total', 'agent')}"},
            ),
            Panel(title="Share of time paused", queries={"{{agent}}": _rate("governor_paused_seconds_total", "agent")}),
        ),
    ),
    Row(
        title="What was computed twice",
        panels=(
            Panel(
                title="Tokens a second, by cause",
                queries={
                    "{{cause}}": "sum by (cause) (rate(governor_prefix_lost_tokens_total"
                    '{agent=~"$agent",cause!="first_prompt"}[$__rate_interval]))'
                },
                stacked=True,
            ),
            Panel(
                title="Share of the engine's time, by agent",
                queries={
                    "{{agent}}": "sum by (agent) (rate(governor_prefix_lost_seconds_total"
                    '{agent=~"$agent",cause!="first_prompt"}[$__rate_interval]))'
                },
                unit="percentunit",
                stacked=True,
            ),
            Panel(
                title="Times in an hour, by agent and cause",
                queries={
                    "{{agent}} {{cause}}": "sum by (agent, cause) (increase(governor_prefix_losses_total"
                    '{agent=~"$agent",cause!="first_prompt"}[1h]))'
                },
                kind="bargauge",
            ),
        ),
    ),
    Row(
        title="Compactions, logs",
        panels=(
            Panel(
                title="Compactions in an hour",
                queries={"{{by}} {{outcome}}": "sum by (by, outcome) (increase(governor_compactions_total[1h]))"},
                kind="bargauge",
                width=6,
            ),
            Panel(
                title="Tokens freed in an hour",
                queries={
                    "{{agent}} by the {{by}}": "sum by (agent, by) "
                    f"(increase(governor_compaction_freed_tokens_total{_AGENT}[1h]))"
                },
                kind="bargauge",
                width=6,
            ),
            Panel(
                title="Records waiting, dropped",
                queries={
                    "{{log}} waiting": "governor_log_pending_records",
                    "{{log}} dropped": "governor_log_dropped_records_total",
                },
                width=6,
            ),
            Panel(title="Logs can write", queries={"{{log}}": "governor_log_writes"}, kind="stat", width=3),
            Panel(title="Archive", queries={"bytes": "governor_archive_bytes"}, unit="bytes", kind="stat", width=3),
            Panel(title="Refused at the door", queries={"{{code}}": _rate("governor_http_refused_total", "code", "")}),
        ),
    ),
)


def board() -> dict[str, Any]:
    """The dashboard."""
    return {
        "title": "Governor",
        "uid": "agent-governor",
        "tags": ["llm", "agents"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0},
                {
                    "name": "agent",
                    "label": "Agent",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": {"query": "label_values(governor_agent_held, agent)", "refId": "agents"},
                    "definition": "label_values(governor_agent_held, agent)",
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
                    "refresh": 2,
                    "sort": 1,
                },
            ]
        },
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(), start=1)],
    }


def _panels() -> Iterator[dict[str, Any]]:
    y = 0
    for row in ROWS:
        yield {
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _WIDE, "h": 1},
        }
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > _WIDE:
                x, y = 0, y + _HIGH
            yield _panel(panel, x, y)
            x += panel.width
        y += _HIGH


def _panel(panel: Panel, x: int, y: int) -> dict[str, Any]:
    custom = {"fillOpacity": 40, "stacking": {"mode": "normal", "group": "A"}} if panel.stacked else {"fillOpacity": 5}
    targets = [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend, "range": True}
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": _HIGH},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, **({"custom": custom} if panel.kind == "timeseries" else {})},
            "overrides": [],
        },
        "options": {"legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"}}
        if panel.kind == "timeseries"
        else {"reduceOptions": {"calcs": ["lastNotNull"]}},
        "targets": targets,
    }


def text() -> str:
    """The file."""
    return json.dumps(board(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
