"""What the admin API says of one agent: its context, the policy in force."""

from __future__ import annotations

from governor.context import (
    CauseTotal,
    ContextKind,
    ContextPage,
    ContextReport,
    Growth,
    Held,
    KindShare,
    LargeItem,
    Piece,
    PrefixBreak,
    TurnGrowth,
)
from governor.pages import PolicyPage, PolicyValueView


def context(agent: str, now: float) -> ContextPage:
    return ContextPage(
        agent=agent,
        session="s-1",
        now=now,
        report=ContextReport(
            messages=212,
            tool_schemas=31,
            tokens=123_000,
            margin=0,
            margin_below=0,
            source="reported",
            exact_parts=True,
            client_tokens=155_000,
            engine_tokens=92_000,
            window_tokens=196_608,
            trigger_tokens=150_000,
            target_tokens=98_304,
            mode="enforce",
            kinds=(
                KindShare(kind=ContextKind.SYSTEM, tokens=9_000, items=1),
                KindShare(
                    kind=ContextKind.TOOLS,
                    tokens=14_000,
                    items=31,
                    pieces=(
                        Piece(name="terminal", tokens=2_000, items=1),
                        Piece(name="read_file", tokens=900, items=1),
                    ),
                    more_pieces=29,
                ),
                KindShare(kind=ContextKind.USER, tokens=3_000, items=9),
                KindShare(kind=ContextKind.ASSISTANT, tokens=11_000, items=90),
                KindShare(kind=ContextKind.RESULTS, tokens=86_000, items=88),
            ),
            largest=(
                LargeItem(
                    index=41,
                    role="tool",
                    kind=ContextKind.RESULTS,
                    tool="read_file",
                    tokens=12_345,
                    hold="free",
                    begins="import asyncio [bold]",
                ),
                LargeItem(
                    index=0, role="system", kind=ContextKind.SYSTEM, tokens=9_000, hold="verbatim", begins="You are"
                ),
            ),
            held=Held(fixed=14_000, verbatim=9_000, open=0, policy=0, recent=20_000, free=80_000),
            stages=None,
        ),
        growth=Growth(
            turns=(
                TurnGrowth(
                    turn_id="t-hermes-0",
                    at=now - 400,
                    prompt_tokens=60_000,
                    estimated=False,
                    growth_tokens=None,
                    cached_tokens=4_096,
                    messages=100,
                    shared_messages=1,
                    losses=(PrefixBreak(cause="volatile", message=0, byte=812, lost_tokens=55_904),),
                ),
            ),
            causes=(
                CauseTotal(
                    cause="volatile",
                    count=3,
                    lost_tokens=160_000,
                    unknown=1,
                    last_turn="t-hermes-0",
                    last_place="message 0, byte 812",
                    last_detail="a time of day",
                ),
                CauseTotal(
                    cause="not_cached", count=1, lost_tokens=4_000, unknown=0, last_turn="t-hermes-2", last_place=""
                ),
            ),
            window_tokens=196_608,
        ),
    )


def policy(agent: str) -> PolicyPage:
    values = (
        ("class", '"normal"', "default.toml:6", False),
        ("compression.mode", '"enforce"', f"policies/{agent}.toml:3", True),
        ("compression.trigger", "150000", f"policies/{agent}.toml:4", True),
        ("context.ceiling_tokens", "null", "built-in", False),
        ("output.final", "16384", "default.toml:12", False),
    )
    return PolicyPage(
        agent=agent,
        values=tuple(
            PolicyValueView(key=key, value=value, source=source, own=own) for key, value, source, own in values
        ),
    )
