"""Pieces of what there is to draw: a clock that stands still, a governor that has just started, turns, contexts."""

from __future__ import annotations

from typing import Any

import msgspec

from governor import events
from governor.snapshot import EngineView, ResidencyView, Snapshot, StoreView, TurnView
from governor.types import TurnKind, TurnState, Usage

NOW = 1_700_000_000.0
STORE = StoreView(ok=True, pending=0, dropped=0)
ENGINE = EngineView(
    name="sglang", mode="ready", version="0.5.23", models=("qwen3.5-27b",), window_tokens=196_608, slots=8
)
WINDOW = 196_608


def snapshot(**changes: object) -> Snapshot:
    """Of a governor that has just started, with ``changes``."""
    empty = Snapshot(
        version="0.1.0", started_at=NOW - 720, now=NOW, last_event_id=0, engine=ENGINE, agents=(), turns=(), store=STORE
    )
    return msgspec.structs.replace(empty, **changes)


def usage(prompt: int, device: int, host: int, storage: int, out: int = 900) -> Usage:
    """Of an engine that tells the tiers."""
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=out,
        cached_tokens=device + host + storage,
        cached_device_tokens=device,
        cached_host_tokens=host,
        cached_storage_tokens=storage,
    )


def line(agent: str, tokens: int, l1: int, l2: int, l3: int, **more: Any) -> ResidencyView:
    """Where a context is; what is in no tier is gone."""
    return ResidencyView(
        agent=agent,
        context=f"{agent}/1",
        session="s-1",
        context_tokens=tokens,
        usable_tokens=l1 + l2 + l3,
        l1_tokens=l1,
        l2_tokens=l2,
        l3_tokens=l3,
        unusable_tokens=0,
        missing_tokens=tokens - l1 - l2 - l3,
        shared_tokens=4_096,
        answered_at=NOW - 9,
        **more,
    )


def open_turn(
    turn_id: str,
    agent: str,
    phase: str,
    age_s: float,
    *,
    prompt: int | None = None,
    cap: int | None = None,
    sent: int = 0,
    waits: str | None = None,
) -> TurnView:
    return TurnView(
        turn_id=turn_id,
        agent=agent,
        route="/v1/chat/completions",
        phase=phase,
        since=NOW - age_s,
        kind=TurnKind.FINAL if phase == "decode" else TurnKind.TOOL_STEP,
        prompt_tokens=prompt,
        cap=cap,
        generated_bytes=sent,
        waits_for=waits,
    )


def ended(agent: str, number: int, told: Usage, **more: Any) -> events.TurnEnded:
    """A turn that ended well."""
    facts: dict[str, Any] = {
        "at": NOW - 400 + number,
        "turn_id": f"t-{agent}-{number}",
        "agent": agent,
        "state": TurnState.OK,
        "kind": TurnKind.TOOL_STEP,
        "usage": told,
        "cap_applied": 4_096,
        "finish_reason": "stop",
        "duration_ms": 21_500.0,
        "ttft_ms": 480.0,
    }
    return events.TurnEnded(**(facts | more))
