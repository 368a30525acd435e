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
from governor.snapshot import AgentView, Snapshot
from governor.types import TurnState, Usage, Verdict
from tests.tui import agent_pages
from tests.tui.governors import busy, many
from tests.tui.pieces import NOW, ended, line, snapshot, usage

__all__ = ["NOW", "busy", "ended", "line", "many", "snapshot", "usage"]
"""Of the modules below, so that a test needs only this one."""

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


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """All that the admin API answers."""

    snapshot: Snapshot
    happened: tuple[AnyEvent, ...] = ()
    """Oldest first."""
    context: ContextPage | None = None
    policy: PolicyPage | None = None
    engine_log: EngineLogPage = EngineLogPage(why_none="the engine has written nothing yet")


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
