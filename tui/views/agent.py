"""One agent: what its context is made of and how it changes, what its turns were served from, what holds for it."""

from __future__ import annotations

from collections.abc import Mapping

from governor.context import ContextKind, ContextPage, ContextReport
from governor.snapshot import AgentView, ResidencyView, Snapshot
from governor.types import TurnState
from tui.cells import FREE, HUES, Bar, Cell, Column, Part, Row, Table, Tone, bar_cell, external
from tui.figures import UNKNOWN, duration, figure, latency, share
from tui.picture import Picture
from tui.views.agents import context_tokens, turns_by_agent
from tui.views.parts import (
    GOOD_ENDS,
    RESIDENCY_LEGEND,
    cap_use,
    context_tone,
    hues,
    named,
    newest_lines,
    old,
    residency,
    state,
)

MOST_TURNS = 24
_MOST_LINES = 6
_KINDS: Mapping[ContextKind, Tone] = {kind: HUES[index % len(HUES)] for index, kind in enumerate(ContextKind)}


def head(picture: Picture, name: str) -> tuple[Row, ...]:
    """Who it is and how it fares."""
    snapshot = picture.snapshot
    view = None if snapshot is None else next((each for each in snapshot.agents if each.name == name), None)
    if snapshot is None or view is None:
        why = UNKNOWN if snapshot is None else "is not there any more"
        return ((external(name, Tone.STRONG), Cell(why, Tone.WARN)),)
    turns = turns_by_agent(snapshot).get(name, ())
    ended = picture.ended.get(name, ())
    tokens = context_tokens(view, newest_lines(snapshot).get(name))
    window = "" if view.window_tokens is None else f" of {view.window_tokens:,}"
    trigger = "" if view.trigger_tokens is None else f", made shorter from {view.trigger_tokens:,}"
    size = UNKNOWN if tokens is None else f"{tokens:,}"
    tone = Tone.PLAIN if tokens is None else context_tone(tokens, view.window_tokens, view.trigger_tokens)
    failed = sum(count for end, count in view.turns.items() if end not in GOOD_ENDS)
    partly = view.unreported > view.turns.get(TurnState.REFUSED, 0)
    waits = [turn.waits_for for turn in turns if turn.waits_for]
    lines: list[Row] = [
        (
            named(name, hues(snapshot)),
            state(view, turns),
            Cell(f"context {size}{window} ({share(tokens, view.window_tokens)}){trigger}", tone),
            *(external(f"waits for {each}", Tone.WARN) for each in waits[:1]),
        ),
        (
            Cell(f"{sum(view.turns.values()):,} turns"),
            Cell(f"{failed:,} failed", Tone.BAD if failed else Tone.DIM),
            Cell(f"hit {share(view.cached_tokens, view.prompt_tokens)}"),
            Cell(f"ttft {latency(view.last_ttft_ms)}"),
            Cell(f"cap used {cap_use(turns, ended[0] if ended else None).text}"),
            Cell(f"out {figure(None if view.last_usage is None else view.completion_tokens, at_least=partly)}"),
            Cell(_seen(view, snapshot.now), Tone.DIM),
        ),
    ]
    if view.held:
        lines.append((Cell("held", Tone.BAD), external(view.held_reason or "")))
    if view.policy_problem:
        lines.append((Cell("policy", Tone.BAD), external(view.policy_problem)))
    return tuple(lines)


def _seen(view: AgentView, now: float) -> str:
    return "unseen" if view.last_seen is None else f"seen {duration(now - view.last_seen)} ago"


def page_of(picture: Picture, name: str) -> ContextPage | None:
    page = picture.context
    return page if page is not None and page.agent == name else None


def contents(picture: Picture, name: str) -> Table:
    """The prompt by kind, as a bar and as figures."""
    page = page_of(picture, name)
    report = None if page is None else page.report
    why = picture.missing.get("context") or (UNKNOWN if page is None else page.why_no_report)
    return Table(
        title="context by kind",
        notes=() if report is None else (*_measured(report), *old(picture, "context")),
        columns=(
            Column(title="kind"),
            Column(title="tokens", right=True),
            Column(title="of it", right=True),
            Column(title="items", right=True),
            Column(title="share", grows=True, least=10, most=24),
            Column(title="largest parts", grows=True),
        ),
        rows=() if report is None else tuple(_kinds(report)),
        empty=external(f"unknown: {why}").text,
    )


def _measured(report: ContextReport) -> Row:
    about = "" if report.margin == 0 else "~"
    engine = (
        (Cell(f"the engine sees {report.engine_tokens:,}", Tone.WARN),)
        if report.engine_tokens is not None and report.engine_tokens != report.tokens
        else ()
    )
    how = report.source if report.margin == 0 else "estimate"
    return (external(f"{about}{report.tokens:,} tokens, {how}; compression {report.mode}", Tone.DIM), *engine)


def _kinds(report: ContextReport) -> list[Row]:
    stacked = Bar(
        tuple(Part(each.tokens, _KINDS[each.kind], label=each.kind.value) for each in report.kinds),
        whole=report.window_tokens or report.tokens or 1,
        labelled=True,
        rest=FREE,
        mark=None if report.mode == "off" else report.trigger_tokens,
    )
    rows: list[Row] = [(Cell("", bar=stacked),)]
    largest = max((each.tokens for each in report.kinds), default=0)
    for each in report.kinds:
        tone = _KINDS[each.kind]
        more = f", {each.more_pieces} more" if each.more_pieces else ""
        parts = ", ".join(f"{piece.name} {figure(piece.tokens)}" for piece in each.pieces)
        rows.append(
            (
                Cell(each.kind.value, tone),
                Cell(figure(each.tokens)),
                Cell(share(each.tokens, report.tokens)),
                Cell(f"{each.items:,}"),
                bar_cell(Part(each.tokens, tone, "■"), whole=largest),
                external(f"{parts}{more}", Tone.DIM),
            )
        )
    return rows


def largest(picture: Picture, name: str) -> Table:
    """The largest messages of the prompt."""
    page = page_of(picture, name)
    items = () if page is None or page.report is None else page.report.largest
    return Table(
        title="largest items",
        columns=(
            Column(title="#", right=True),
            Column(title="kind"),
            Column(title="tool", most=16),
            Column(title="tokens", right=True),
            Column(title="held"),
            Column(title="begins", grows=True, least=10),
        ),
        rows=tuple(
            (
                Cell(f"{item.index}", Tone.DIM),
                Cell(item.kind.value, _KINDS[item.kind]),
                external(item.tool),
                Cell(figure(item.tokens)),
                external(item.hold, Tone.DIM),
                external(item.begins, Tone.DIM),
            )
            for item in items
        ),
        empty=UNKNOWN,
    )


def lines(picture: Picture, name: str) -> Table:
    """Where each line of its conversations is."""
    snapshot = picture.snapshot
    mine = () if snapshot is None else tuple(each for each in snapshot.cache.contexts if each.agent == name)
    shown = mine[:_MOST_LINES]
    whole = max((each.context_tokens for each in shown), default=1)
    rows = tuple(_line(each, snapshot, whole) for each in shown if snapshot is not None)
    if len(mine) > len(shown):
        rows += ((Cell(f"and {len(mine) - len(shown)} older", Tone.DIM),),)
    unknown = None if snapshot is None else snapshot.cache.unknown
    return Table(
        title="where its contexts are",
        notes=RESIDENCY_LEGEND,
        columns=(
            Column(title="line", most=20),
            Column(title="tokens", right=True),
            Column(title="where", grows=True, least=12, most=60),
            Column(title="usable", right=True),
            Column(title="shared", right=True),
            Column(title="gone", right=True),
            Column(title="age", right=True),
        ),
        rows=rows,
        empty=external(f"unknown: {unknown}" if unknown else "no turn has been answered yet").text,
    )


def _line(line: ResidencyView, snapshot: Snapshot, whole: int) -> Row:
    return (
        external(line.context),
        Cell(figure(line.context_tokens)),
        residency(line, None, whole),
        Cell(share(line.usable_tokens, line.context_tokens)),
        Cell(figure(line.shared_tokens)),
        Cell(figure(line.missing_tokens)),
        Cell(duration(snapshot.now - line.answered_at)),
    )


def policy(picture: Picture, name: str) -> Table:
    """What is in force, its own file's values first."""
    page = picture.policy if picture.policy is not None and picture.policy.agent == name else None
    values = () if page is None else sorted(page.values, key=lambda each: not each.own)
    why = picture.missing.get("policy", UNKNOWN)
    return Table(
        title="policy in force",
        notes=(Cell("s sets a key", Tone.DIM), *(old(picture, "policy") if values else ())),
        columns=(
            Column(title="key", most=36),
            Column(title="value", grows=True, least=8),
            Column(title="from", grows=True, least=8),
        ),
        rows=tuple(
            (
                external(each.key, Tone.STRONG if each.own else Tone.PLAIN),
                external(UNKNOWN if each.value == "null" else each.value),
                external(each.source.rpartition("/")[2], Tone.DIM),
            )
            for each in values
        ),
        empty=external(why).text,
    )
