"""The agents and their open turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from governor.context import FIRST_PROMPT
from governor.events import TurnEnded
from governor.snapshot import AgentView, ResidencyView, Snapshot, TurnView
from governor.types import TurnState
from tui.cells import FREE, ROOMY, WIDE, Cell, Column, Part, Row, Table, Tone, bar_cell, external
from tui.figures import UNKNOWN, curve, duration, figure, latency, share, size
from tui.picture import MOST_AGENTS, Picture
from tui.views.parts import (
    GOOD_ENDS,
    OTHER,
    RESIDENCY_LEGEND,
    cap_use,
    context_tone,
    hues,
    named,
    newest_lines,
    phase_tone,
    residency,
    state,
)

MOST_TURNS = 100
_CURVE = 12

_FEW = (
    Column(title="agent", grows=True, least=8, most=24),
    Column(title="state"),
    Column(title="context", right=True),
    Column(title="of", right=True),
    Column(title="where it is", grows=True, least=8, most=28),
    Column(title="hit", right=True),
    Column(title="ttft", right=True),
    Column(title="waits for", grows=True, least=9),
)
_ALL = (
    Column(title="agent", grows=True, least=12, most=24),
    Column(title="state"),
    Column(title="context", right=True),
    Column(title="of", right=True),
    Column(title="window", from_width=ROOMY, grows=True, least=8, most=16),
    Column(title="where it is", grows=True, least=14, most=40),
    Column(title="hit", right=True),
    Column(title="ttft", right=True),
    Column(title="cap", right=True),
    Column(title="prompts", from_width=WIDE),
    Column(title="turns", right=True, from_width=ROOMY),
    Column(title="fail", right=True),
    Column(title="out", right=True, from_width=ROOMY),
    Column(title="again", right=True, from_width=WIDE),
    Column(title="waits for", grows=True, least=9),
)


def agents(picture: Picture, *, brief: bool = False) -> Table:
    """One row an agent, by name; those over the bound share a row. ``brief``: beside other things on a screen."""
    snapshot = picture.snapshot
    if snapshot is None:
        return Table(title="agents", columns=_FEW, empty=UNKNOWN)
    shown = snapshot.agents if len(snapshot.agents) <= MOST_AGENTS else snapshot.agents[: MOST_AGENTS - 1]
    rest = snapshot.agents[len(shown) :]
    lines, tones, open_turns = newest_lines(snapshot), hues(snapshot), turns_by_agent(snapshot)
    rows = [
        _row(view, picture, snapshot, lines.get(view.name), open_turns.get(view.name, ()), tones, brief)
        for view in shown
    ]
    keys = [view.name for view in shown]
    if rest:
        rows.append(_others(rest, brief))
        keys.append("")
    return Table(
        title=f"agents ({len(snapshot.agents)})",
        notes=RESIDENCY_LEGEND,
        columns=_FEW if brief else _ALL,
        rows=tuple(rows),
        keys=tuple(keys),
        empty="no agents yet: 'governor agent add NAME' makes one",
    )


def turns_by_agent(snapshot: Snapshot) -> Mapping[str, tuple[TurnView, ...]]:
    turns = defaultdict[str, list[TurnView]](list)
    for turn in snapshot.turns:
        turns[turn.agent].append(turn)
    return {agent: tuple(own) for agent, own in turns.items()}


def _row(
    view: AgentView,
    picture: Picture,
    snapshot: Snapshot,
    line: ResidencyView | None,
    turns: tuple[TurnView, ...],
    tones: Mapping[str, Tone],
    brief: bool,
) -> Row:
    ended = picture.ended.get(view.name, ())
    tokens, window = context_tokens(view, line), view.window_tokens
    tone = Tone.PLAIN if tokens is None else context_tone(tokens, window, view.trigger_tokens)
    where = residency(line, snapshot.cache.unknown)
    begin = (named(view.name, tones), state(view, turns), Cell(figure(tokens)), Cell(share(tokens, window), tone))
    hit, ttft = Cell(share(view.cached_tokens, view.prompt_tokens)), Cell(latency(view.last_ttft_ms))
    if brief:
        return (*begin, where, hit, ttft, _waits(view, turns))
    failed = _failed(view)
    return (
        *begin,
        _window(tokens, window, view.trigger_tokens, tone),
        where,
        hit,
        ttft,
        cap_use(turns, ended[0] if ended else None),
        Cell(_prompts(ended, window), tones.get(view.name, Tone.PLAIN)),
        Cell(figure(sum(view.turns.values()))),
        Cell(figure(failed), Tone.BAD if failed else Tone.DIM),
        Cell(_out(view)),
        _again(view),
        _waits(view, turns),
    )


def context_tokens(view: AgentView, line: ResidencyView | None) -> int | None:
    """Of its newest line: its last prompt and answer, as the engine reported them."""
    if line is not None:
        return line.context_tokens
    usage = view.last_usage
    if usage is None or usage.prompt_tokens is None:
        return None
    return usage.prompt_tokens + (usage.completion_tokens or 0)


def _window(tokens: int | None, window: int | None, trigger: int | None, tone: Tone) -> Cell:
    if tokens is None or not window:
        return Cell(UNKNOWN, Tone.DIM)
    return bar_cell(Part(tokens, Tone.GOOD if tone is Tone.PLAIN else tone, "■"), whole=window, mark=trigger, rest=FREE)


def _prompts(ended: tuple[TurnEnded, ...], window: int | None) -> str:
    """Sizes of the last prompts, the newest at the right, against the window."""
    sizes = [turn.usage.prompt_tokens for turn in ended[:_CURVE] if turn.usage.prompt_tokens is not None]
    return curve(sizes[::-1], top=window)


def _lost(view: AgentView) -> int:
    """Tokens that were computed again, though they had been computed before."""
    return sum(loss.tokens for loss in view.losses if loss.cause != FIRST_PROMPT)


def _again(view: AgentView) -> Cell:
    lost = _lost(view)
    return Cell(figure(lost), Tone.WARN if lost else Tone.DIM)


def _failed(view: AgentView) -> int:
    return sum(count for end, count in view.turns.items() if end not in GOOD_ENDS)


def _out(view: AgentView) -> str:
    partly = view.unreported > view.turns.get(TurnState.REFUSED, 0)
    return figure(None if view.last_usage is None else view.completion_tokens, at_least=partly)


def _waits(view: AgentView, turns: tuple[TurnView, ...]) -> Cell:
    """For what; failing that, what is wrong with its policy."""
    if view.held:
        return external(view.held_reason or "", Tone.WARN)
    for turn in turns:
        if turn.waits_for:
            return external(turn.waits_for, Tone.WARN)
    return external(f"bad policy: {view.policy_problem}", Tone.BAD) if view.policy_problem else Cell("")


def _others(rest: tuple[AgentView, ...], brief: bool) -> Row:
    """All that have no row of their own, as one."""
    running, waiting = sum(view.running for view in rest), sum(view.waiting for view in rest)
    prompt = sum(view.prompt_tokens for view in rest)
    cached = [view.cached_tokens for view in rest if view.cached_tokens is not None]
    begin = (Cell(f"{OTHER} ({len(rest)})", Tone.STRONG), Cell(f"{running} run"), Cell(UNKNOWN), Cell(UNKNOWN))
    hit = Cell(share(sum(cached) if cached else None, prompt))
    waits = Cell(f"{waiting} wait" if waiting else "", Tone.WARN)
    if brief:
        return (*begin, Cell(""), hit, Cell(UNKNOWN), waits)
    failed = sum(map(_failed, rest))
    return (
        *begin,
        *(Cell(""), Cell(""), hit, Cell(UNKNOWN), Cell(UNKNOWN), Cell("")),
        Cell(figure(sum(sum(view.turns.values()) for view in rest))),
        Cell(figure(failed), Tone.BAD if failed else Tone.DIM),
        Cell(figure(sum(view.completion_tokens for view in rest))),
        Cell(figure(sum(map(_lost, rest)))),
        waits,
    )


def open_turns(picture: Picture, now: float) -> Table:
    """One row a turn that runs or waits, oldest first. ``now`` is Unix time in seconds."""
    snapshot = picture.snapshot
    at = now if snapshot is None or picture.gone is None else snapshot.now
    turns = () if snapshot is None else snapshot.turns
    shown, tones = turns[:MOST_TURNS], hues(snapshot)
    rows = [_turn(view, at, tones) for view in shown]
    keys = [view.turn_id for view in shown]
    if len(turns) > len(shown):
        rows.append((Cell(f"{OTHER} ({len(turns) - len(shown)})", Tone.STRONG),))
        keys.append("")
    return Table(
        title=f"open turns ({len(turns)})" if turns else "open turns",
        columns=(
            Column(title="agent", grows=True, least=8, most=24),
            Column(title="phase"),
            Column(title="for", right=True),
            Column(title="kind"),
            Column(title="prompt", right=True),
            Column(title="cap", right=True),
            Column(title="sent", right=True),
            Column(title="turn", from_width=WIDE, most=18),
            Column(title="waits for", grows=True, least=9),
        ),
        rows=tuple(rows),
        keys=tuple(keys),
        empty="no open turns" if snapshot else UNKNOWN,
    )


def _turn(view: TurnView, now: float, tones: Mapping[str, Tone]) -> Row:
    return (
        named(view.agent, tones),
        external(view.phase, phase_tone(view.phase)),
        Cell(duration(now - view.since)),
        Cell(view.kind or UNKNOWN),
        Cell(figure(view.prompt_tokens)),
        Cell(figure(view.cap)),
        Cell(size(view.generated_bytes)),
        external(view.turn_id, Tone.DIM),
        external(view.waits_for or "", Tone.WARN),
    )
