"""Governors to draw: a busy one, and one with too many agents."""

from __future__ import annotations

from governor.snapshot import (
    AgentView,
    CacheView,
    CanaryTierView,
    CanaryView,
    HolderView,
    LeaseView,
    LossView,
    PredictionView,
    QueueView,
    ResidencyView,
    Snapshot,
    TierView,
    WaitingView,
)
from governor.types import TurnState, Usage
from tests.tui.pieces import NOW, WINDOW, line, open_turn, snapshot, usage

NO_ROOM = "needs 181,439 KV tokens, 45,343 too many"


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
            open_turn("t-0123456789abcdef", "hermes", "decode", 320, prompt=123_900, cap=16_384, sent=48_211),
            open_turn(
                "t-fedcba9876543210", "openclaw", "waiting", 12, waits="needs 181,439 KV tokens, 45,343 too many"
            ),
            open_turn("t-00000000000000aa", "nightly", "waiting", 80, waits="paused by the owner"),
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
                    reason=NO_ROOM,
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
            open_turn(f"t-{number}", name, "decode" if number % 2 else "waiting", number, cap=4_096, sent=number * 100)
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
