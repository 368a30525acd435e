"""What there is to draw: of a governor that has just started, a busy one, one with too many agents, and one whose every
text is hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from governor import events
from governor.context import ContextPage
from governor.events import AnyEvent
from governor.pages import EngineLogPage, PolicyPage
from governor.snapshot import (
    AgentView,
    CacheView,
    CanaryTierView,
    CanaryView,
    EngineView,
    HolderView,
    LeaseView,
    LossView,
    PredictionView,
    QueueView,
    ResidencyView,
    Snapshot,
    StoreView,
    TierView,
    TurnView,
    WaitingView,
)
from governor.types import TurnKind, TurnState, Usage, Verdict
from tests.tui import agent_pages

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
ENGINE = EngineView(
    name="sglang", mode="ready", version="0.5.23", models=("qwen3.5-27b",), window_tokens=196_608, slots=8
)
WINDOW = 196_608


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """All that the admin API answers."""

    snapshot: Snapshot
    happened: tuple[AnyEvent, ...] = ()
    """Oldest first."""
    context: ContextPage | None = None
    policy: PolicyPage | None = None
    engine_log: EngineLogPage = EngineLogPage(why_none="the engine has written nothing yet")


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


def busy() -> Snapshot:
    """Five agents: one writes, one waits, one is held, of one nobody knows where it is, one was never seen and has a
    bad policy."""
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
                last_usage=usage(123_000, 90_000, 32_000, 0),
                last_ttft_ms=480.0,
                last_seen=NOW - 9,
                window_tokens=WINDOW,
                trigger_tokens=150_000,
                losses=(
                    LossView(cause="volatile", count=3, tokens=160_000, seconds=118.0, unmeasured=1),
                    LossView(cause="evicted", count=1, tokens=4_000, seconds=3.0),
                    LossView(cause="first_prompt", count=1, tokens=50_000, seconds=36.0),
                ),
            ),
            AgentView(
                name="nightly",
                turns={TurnState.OK: 12},
                prompt_tokens=90_000,
                cached_tokens=None,
                completion_tokens=1_200,
                last_usage=Usage(prompt_tokens=30_000, completion_tokens=100),
                last_ttft_ms=1_210.0,
                last_seen=NOW - 300,
                window_tokens=65_536,
                held=True,
                held_reason="paused by the owner",
                held_since=NOW - 90,
                waiting=1,
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
                window_tokens=WINDOW,
            ),
            AgentView(
                name="research",
                turns={TurnState.OK: 7},
                prompt_tokens=700_000,
                cached_tokens=650_000,
                completion_tokens=9_000,
                last_usage=usage(187_000, 5_760, 90_112, 66_944),
                last_ttft_ms=2_102.0,
                last_seen=NOW - 20,
                window_tokens=WINDOW,
                trigger_tokens=150_000,
            ),
            AgentView(name="script", policy_problem="policies/script.toml:3: output.cap: must be at least 1"),
        ),
        turns=(
            _turn("t-0123456789abcdef", "hermes", "decode", 320, prompt=123_900, cap=16_384, sent=48_211),
            _turn("t-fedcba9876543210", "openclaw", "waiting", 12, waits="needs 181,439 KV tokens, 45,343 too many"),
            _turn("t-00000000000000aa", "nightly", "waiting", 80, waits="paused by the owner"),
        ),
        queue=QueueView(
            leases=(
                LeaseView(
                    turn_id="t-0123456789abcdef",
                    agent="hermes",
                    since=NOW - 318,
                    booked_tokens=140_284,
                    output_tokens=4_096,
                ),
            ),
            waiting=(
                WaitingView(
                    turn_id="t-fedcba9876543210",
                    agent="openclaw",
                    position=1,
                    since=NOW - 12,
                    due=NOW + 28,
                    reason="needs 181,439 KV tokens, 45,343 too many",
                    needs_tokens=181_439,
                ),
                WaitingView(
                    turn_id="t-00000000000000aa",
                    agent="nightly",
                    position=2,
                    since=NOW - 80,
                    due=NOW - 40,
                    reason="paused by the owner",
                    paused=True,
                ),
            ),
            booked_tokens=140_284,
            foreign_tokens=9_000,
            free_tokens=82_588,
            capacity_tokens=231_872,
        ),
        cache=CacheView(
            contexts=(
                line("hermes", 123_900, 90_000, 33_000, 0),
                line("research", 187_900, 5_760, 90_112, 66_944),
                ResidencyView(
                    agent="nightly",
                    context="nightly/1",
                    session="s-2",
                    context_tokens=30_100,
                    unknown_tokens=30_100,
                    why_unknown="events were lost",
                    answered_at=NOW - 300,
                ),
                line("hermes", 60_000, 4_096, 0, 0, why_unknown=None),
            ),
            tiers=(
                TierView(
                    tier="L1",
                    capacity_tokens=231_872,
                    held_tokens=150_000,
                    holders=(
                        HolderView(agent=None, tokens=9_000),
                        HolderView(agent="hermes", tokens=90_000),
                        HolderView(agent="research", tokens=5_760),
                    ),
                    held_states=14,
                    state_slots=72,
                    written_tokens=9_000_000,
                    served_tokens=6_000_000,
                    served_per_written=0.67,
                ),
                TierView(
                    tier="L2",
                    capacity_tokens=424_000,
                    held_tokens=424_000,
                    holders=(HolderView(agent="research", tokens=300_000), HolderView(agent="hermes", tokens=33_000)),
                    held_states=70,
                    state_slots=134,
                    written_tokens=4_000_000,
                    served_tokens=7_200_000,
                    served_per_written=1.8,
                    written_bytes=2.1e11,
                    served_bytes=3.4e11,
                    held_bytes=2.6e10,
                    write_amplification=1.2,
                ),
                TierView(
                    tier="L3",
                    written_tokens=3_000_000,
                    served_tokens=0,
                    served_per_written=0.0,
                    complaint="has taken 157 GB and given nothing back",
                ),
            ),
            predicted=PredictionView(turns=320, within_page=312, tier_turns=310, tier_right=300, unknown=4),
            predicted_lately=PredictionView(turns=200, within_page=196, tier_turns=190, tier_right=186),
            canary=CanaryView(
                at=NOW - 3_600,
                passed=False,
                engine_version="0.5.23",
                model="qwen3.5-27b",
                tiers=(
                    CanaryTierView(tier="L1", verdict="SERVED"),
                    CanaryTierView(tier="L2", verdict="SERVED"),
                    CanaryTierView(tier="L3", verdict="EMPTY", reason="0 of 8,192 tokens came back"),
                ),
            ),
        ),
        alerts=("window: the engine reports 196,608 tokens, configured are 131,072",),
    )


def _turn(
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


def happened() -> tuple[AnyEvent, ...]:
    """One of each kind that the log shows, and some turns, oldest first."""
    return (
        events.EngineChanged(at=NOW - 700, state="ready"),
        events.PolicyChanged(at=NOW - 600, agent="hermes"),
        events.PolicyChanged(at=NOW - 500, agent="script", problem="policies/script.toml:3: output.cap: at least 1"),
        ended("hermes", 0, usage(60_000, 4_096, 0, 0), ttft_ms=24_000.0),
        ended("hermes", 1, usage(80_000, 59_000, 0, 0), state=TurnState.TRUNCATED, finish_reason="length"),
        ended("hermes", 2, usage(100_000, 4_096, 60_000, 15_000, out=4_000)),
        events.PrefixLost(
            at=NOW - 399,
            turn_id="t-hermes-0",
            agent="hermes",
            cause="volatile",
            tokens=55_904,
            seconds=41.0,
            message=0,
            byte=812,
            detail="a time of day",
        ),
        events.Compacted(
            at=NOW - 397,
            turn_id="t-9",
            agent="hermes",
            by="governor",
            outcome="accepted",
            before_tokens=155_000,
            after_tokens=92_000,
            detail="reasoning, repeated results",
        ),
        events.Compacted(
            at=NOW - 396,
            turn_id="t-8",
            agent="hermes",
            by="client",
            outcome="no_gain",
            before_tokens=140_000,
            after_tokens=None,
        ),
        ended("hermes", 5, usage(123_000, 90_000, 32_000, 0)),
        ended("nightly", 6, Usage(prompt_tokens=30_000, completion_tokens=100)),
        ended("openclaw", 7, Usage(prompt_tokens=3_000, completion_tokens=40, cached_tokens=0)),
        ended("research", 8, Usage(prompt_tokens=187_000, completion_tokens=700, cached_tokens=150_000)),
        events.Alert(at=NOW - 300, name="window", detail="the engine reports 196,608 tokens"),
        events.TurnEnded(
            at=NOW - 200,
            turn_id="t-2",
            agent="openclaw",
            state=TurnState.UPSTREAM_ERROR,
            usage=Usage(prompt_tokens=3_000, cached_tokens=0),
            reason="the engine closed the connection in the middle of its answer",
        ),
        events.OwnerActed(
            at=NOW - 90, who="owner via top", action="pause", target="nightly", outcome="done", detail="it waits"
        ),
        events.TurnDecided(
            at=NOW - 12,
            turn_id="t-fedcba9876543210",
            agent="openclaw",
            verdict=Verdict.QUEUED,
            why="needs 181,439 KV tokens, 45,343 too many",
            position=1,
            waiting=2,
            running=1,
            needs_tokens=181_439,
            booked_tokens=140_284,
            free_tokens=82_588,
        ),
    )


def many(count: int = 64) -> Snapshot:
    """So many agents, each with a turn that runs or waits and a context somewhere."""
    names = [f"agent-{number:02}" for number in range(count)]
    return snapshot(
        agents=tuple(
            AgentView(
                name=name,
                running=number % 2,
                waiting=1 - number % 2,
                turns={TurnState.OK: number, TurnState.REFUSED: number % 3},
                prompt_tokens=1_000 * number + 1,
                cached_tokens=900 * number,
                completion_tokens=10 * number,
                last_usage=usage(3_000 * number, 1_000 * number, 1_000 * number, 900 * number),
                last_ttft_ms=100.0 * number,
                last_seen=NOW - number,
                window_tokens=WINDOW,
            )
            for number, name in enumerate(names)
        ),
        turns=tuple(
            _turn(f"t-{number}", name, "decode" if number % 2 else "waiting", number, cap=4_096, sent=number * 100)
            for number, name in enumerate(names)
        ),
        queue=QueueView(
            leases=tuple(
                LeaseView(turn_id=f"t-{number}", agent=name, since=NOW - number, booked_tokens=3_000, output_tokens=512)
                for number, name in enumerate(names)
                if number % 2
            ),
            waiting=tuple(
                WaitingView(
                    turn_id=f"t-{number}",
                    agent=name,
                    position=number // 2 + 1,
                    since=NOW - number,
                    due=NOW + 40 - number,
                    reason=f"{number} turns are before it",
                    needs_tokens=3_000,
                )
                for number, name in enumerate(names)
                if not number % 2
            ),
            booked_tokens=3_000 * (count // 2),
            free_tokens=231_872 - 3_000 * (count // 2),
            capacity_tokens=231_872,
        ),
        cache=CacheView(
            contexts=tuple(
                line(name, 3_000 * number + 100, 1_000 * number, 1_000 * number, 900 * number)
                for number, name in enumerate(names)
            ),
            tiers=tuple(
                TierView(
                    tier=tier,
                    capacity_tokens=231_872,
                    held_tokens=200_000,
                    holders=tuple(HolderView(agent=name, tokens=50 * number) for number, name in enumerate(names)),
                )
                for tier in ("L1", "L2", "L3")
            ),
        ),
        alerts=tuple(f"alert {number}" for number in range(20)),
    )


def scenes() -> dict[str, Scene]:
    """Those whose pictures are kept."""
    normal = Scene(
        snapshot=busy(),
        happened=happened(),
        context=agent_pages.context("hermes", NOW),
        policy=agent_pages.policy("hermes"),
        engine_log=EngineLogPage(lines=("--- starting: process 7 is loading", "WARN slow disk", "--- ready")),
    )
    return {
        "empty": Scene(snapshot=snapshot()),
        "normal": normal,
        "hostile": spoiled(normal, "\x1b[31m[/] 温 [@click=app.quit]\x07"),
        "many": Scene(
            snapshot=many(),
            happened=tuple(ended(f"agent-{n:02}", n, usage(3_000 * n + 1, 1_000 * n, 0, 0)) for n in range(64)),
        ),
    }


def spoiled(value: Any, text: str) -> Any:
    """The same with ``text`` in each place where any text may be: enumerations and the like are as they were."""
    if type(value) is str:
        return text
    if isinstance(value, tuple):
        return tuple(spoiled(each, text) for each in value)
    if isinstance(value, msgspec.Struct):
        fields = {name: spoiled(getattr(value, name), text) for name in value.__struct_fields__}
        return type(value)(**fields)
    return value


def hostile(text: str) -> Snapshot:
    """``text`` in each place of a busy governor, and each hostile string as the name of an agent, too."""
    named = tuple(AgentView(name=each, policy_problem=each) for each in HOSTILE)
    spoilt: Snapshot = spoiled(busy(), text)
    return msgspec.structs.replace(spoilt, agents=(*spoilt.agents, *named))


def hostile_events(text: str) -> tuple[AnyEvent, ...]:
    """``text`` in each place of the log."""
    told: tuple[AnyEvent, ...] = spoiled(happened(), text)
    return told
