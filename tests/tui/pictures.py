"""Snapshots and events to draw: of a quiet governor, a busy one, and one whose every text is hostile."""

from __future__ import annotations

from pathlib import Path

import msgspec

from governor import events
from governor.events import AnyEvent
from governor.snapshot import AgentView, EngineView, Snapshot, StoreView, TurnView
from governor.types import TurnKind, TurnState, Usage

NOW = 1_700_000_000.0
_CASE = Path(__file__).parent / "data" / "68-markup-crash.json"


class _Variant(msgspec.Struct):
    strings: tuple[str, ...]


class _Case(msgspec.Struct):
    variants: tuple[_Variant, ...]


HOSTILE = (
    *msgspec.json.decode(_CASE.read_bytes(), type=_Case).variants[0].strings,
    "x" * 10_000,
    "温" * 10_000,
    "line\nbreak\r\x85\u2028tab\t\x00\x9b31m",
    "[red]a[/red] [link='http://x']b[/link] $primary",
    "שלום \u2066x\u2069",
    "",
)
"""Strings of case W68 and some more: markup, ANSI, OSC, C1, bidi, wide, long, empty."""

STORE = StoreView(ok=True, pending=0, dropped=0)
ENGINE = EngineView(name="sglang", mode="ready", models=("qwen3.5-27b",), window_tokens=196_608, slots=8)


def snapshot(**changes: object) -> Snapshot:
    """Of a governor that has just started, with ``changes``."""
    empty = Snapshot(
        version="0.1.0", started_at=NOW - 720, now=NOW, last_event_id=0, engine=ENGINE, agents=(), turns=(), store=STORE
    )
    return msgspec.structs.replace(empty, **changes)


def busy() -> Snapshot:
    """Three agents: one writes, one waits, one was never seen and has a bad policy."""
    return snapshot(
        agents=(
            AgentView(
                name="hermes",
                running=1,
                turns={TurnState.OK: 40, TurnState.TRUNCATED: 1, TurnState.CLIENT_ABORTED: 2},
                prompt_tokens=5_120_000,
                cached_tokens=4_900_000,
                completion_tokens=70_312,
                unreported=2,
                last_usage=Usage(prompt_tokens=123_000, completion_tokens=900, cached_tokens=122_000),
                last_ttft_ms=480.0,
                last_seen=NOW - 9,
            ),
            AgentView(
                name="openclaw",
                waiting=1,
                turns={TurnState.OK: 3},
                prompt_tokens=9_000,
                cached_tokens=0,
                completion_tokens=120,
                last_usage=Usage(prompt_tokens=3_000, completion_tokens=40, cached_tokens=0),
                last_ttft_ms=48_200.0,
                last_seen=NOW - 60,
            ),
            AgentView(name="script", policy_problem="policies/script.toml:3: output.cap: must be at least 1"),
        ),
        turns=(
            TurnView(
                turn_id="t-0123456789abcdef",
                agent="hermes",
                route="/v1/chat/completions",
                phase="decode",
                since=NOW - 320,
                kind=TurnKind.FINAL,
                prompt_tokens=123_900,
                cap=16_384,
                generated_bytes=48_211,
            ),
            TurnView(
                turn_id="t-fedcba9876543210",
                agent="openclaw",
                route="/v1/chat/completions",
                phase="waiting",
                since=NOW - 12,
                kind=TurnKind.TOOL_STEP,
                waits_for="a slot: 1 of 1 in use",
            ),
        ),
        alerts=("window: the engine reports 196,608 tokens, configured are 131,072",),
    )


def happened() -> tuple[AnyEvent, ...]:
    """One of each kind that the log shows, oldest first."""
    return (
        events.EngineChanged(at=NOW - 700, state="ready"),
        events.PolicyChanged(at=NOW - 600, agent="hermes"),
        events.PolicyChanged(at=NOW - 500, agent="script", problem="policies/script.toml:3: output.cap: at least 1"),
        events.TurnEnded(
            at=NOW - 400,
            turn_id="t-1",
            agent="hermes",
            state=TurnState.OK,
            kind=TurnKind.TOOL_STEP,
            usage=Usage(prompt_tokens=123_000, completion_tokens=900, cached_tokens=122_000),
            finish_reason="stop",
            duration_ms=21_500.0,
            ttft_ms=480.0,
        ),
        events.Alert(at=NOW - 300, name="window", detail="the engine reports 196,608 tokens"),
        events.TurnEnded(
            at=NOW - 200,
            turn_id="t-2",
            agent="openclaw",
            state=TurnState.UPSTREAM_ERROR,
            usage=Usage(prompt_tokens=3_000, cached_tokens=0),
            reason="the engine closed the connection in the middle of its answer",
        ),
    )


def hostile(text: str) -> Snapshot:
    """``text`` in each place of the head and the policies; each hostile string in the tables."""
    return snapshot(
        version=text,
        engine=EngineView(name=text, mode=text, detail=text, models=(text, text)),
        agents=(AgentView(name=text, policy_problem=text), *(AgentView(name=each) for each in HOSTILE)),
        turns=tuple(
            TurnView(turn_id=each, agent=each, route=each, phase=each, since=NOW, waits_for=each)
            for each in (text, *HOSTILE)
        ),
        store=StoreView(ok=False, pending=1, dropped=2, last_error=text),
        alerts=(text,),
    )


def hostile_events(text: str) -> tuple[AnyEvent, ...]:
    """``text`` in each place of the log."""
    return (
        events.EngineChanged(at=NOW, state=text, detail=text),
        events.PolicyChanged(at=NOW, agent=text, problem=text),
        events.Alert(at=NOW, name=text, detail=text),
        events.TurnEnded(
            at=NOW, turn_id=text, agent=text, state=TurnState.REFUSED, finish_reason=text, reason=text or None
        ),
    )
