"""How one agent's context changed: its turns and what served them, compactions, what was computed again, its price."""

from __future__ import annotations

from governor.context import FIRST_PROMPT, PLACELESS, PrefixBreak, words_of
from governor.events import PrefixLost, TurnEnded
from governor.snapshot import LossView, Snapshot
from governor.types import TurnState
from tui.cells import WIDE, Cell, Column, Part, Row, Table, Tone, bar_cell, external
from tui.figures import UNKNOWN, clock, figure, latency
from tui.picture import Picture
from tui.views.parts import GOOD_ENDS, SERVED_LEGEND, cap_use, served

MOST_TURNS = 24


def turns(picture: Picture, name: str) -> Table:
    """Its last turns, newest first: what their prompts were served from, to one scale."""
    ended = picture.ended.get(name, ())[:MOST_TURNS]
    whole = max((turn.usage.prompt_tokens or 0 for turn in ended), default=1)
    lost = {event.turn_id: event for event in reversed(picture.lost.get(name, ())) if event.cause != FIRST_PROMPT}
    return Table(
        title="turns",
        notes=SERVED_LEGEND,
        columns=(
            Column(title="at"),
            Column(title="prompt", right=True),
            Column(title="served from", grows=True, least=12, most=60),
            Column(title="new", right=True),
            Column(title="out", right=True),
            Column(title="cap", right=True),
            Column(title="ttft", right=True),
            Column(title="took", right=True),
            Column(title="end", grows=True, least=3),
        ),
        rows=tuple(_turn(turn, whole, lost.get(turn.turn_id)) for turn in ended),
        empty="no turn has ended yet",
    )


def _turn(turn: TurnEnded, whole: int, lost: PrefixLost | None) -> Row:
    usage = turn.usage
    good = turn.state in GOOD_ENDS
    said = turn.reason or (words_of(lost.cause) if lost else turn.state.value)
    tone = Tone.BAD if not good else Tone.WARN if lost or turn.state is TurnState.TRUNCATED else Tone.DIM
    return (
        Cell(clock(turn.at), Tone.DIM),
        Cell(figure(usage.prompt_tokens)),
        served(usage, whole),
        Cell(figure(usage.new_tokens)),
        Cell(figure(usage.completion_tokens)),
        cap_use((), turn),
        Cell(latency(turn.ttft_ms)),
        Cell(latency(turn.duration_ms)),
        external(said, tone),
    )


def compactions(picture: Picture, name: str) -> Table:
    """Before and after, newest first."""
    told = picture.compacted.get(name, ())
    whole = max((each.before_tokens or 0 for each in told), default=1)
    return Table(
        title="compactions",
        columns=(
            Column(title="at"),
            Column(title="by"),
            Column(title="outcome", most=18),
            Column(title="before", right=True),
            Column(title="after", right=True),
            Column(title="kept", grows=True, least=8, most=24),
            Column(title="detail", grows=True),
        ),
        rows=tuple(
            (
                Cell(clock(each.at), Tone.DIM),
                external(each.by),
                external(each.outcome, Tone.GOOD if each.outcome == "accepted" else Tone.WARN),
                Cell(figure(each.before_tokens)),
                Cell(figure(each.after_tokens)),
                Cell(UNKNOWN, Tone.DIM)
                if each.after_tokens is None or each.before_tokens is None
                else bar_cell(
                    Part(each.after_tokens, Tone.GOOD, "■"),
                    Part(max(0, each.before_tokens - each.after_tokens), Tone.NEW, "·"),
                    whole=whole,
                ),
                external(each.detail, Tone.DIM),
            )
            for each in told
        ),
        empty="none since the governor started",
    )


def breaks(picture: Picture, name: str) -> Table:
    """What it had to have computed again, the dearest cause first, with the price, and where that was last."""
    snapshot = picture.snapshot
    view = None if snapshot is None else next((each for each in snapshot.agents if each.name == name), None)
    losses = () if view is None else view.losses
    last = {event.cause: event for event in reversed(picture.lost.get(name, ()))}
    return Table(
        title="prefix losses",
        notes=_price(snapshot),
        columns=(
            Column(title="cause", grows=True, least=12),
            Column(title="times", right=True),
            Column(title="tokens", right=True),
            Column(title="time", right=True),
            Column(title="last at", grows=True, least=8),
            Column(title="detail", grows=True, from_width=WIDE),
        ),
        rows=tuple(_loss(loss, last.get(loss.cause)) for loss in losses),
        empty="none since the governor started",
    )


def _price(snapshot: Snapshot | None) -> Row:
    if snapshot is None or snapshot.prefill is None:
        return ()
    return (Cell(f"computed at {figure(snapshot.prefill.tokens_per_s)} tok/s lately", Tone.DIM),)


def _loss(loss: LossView, last: PrefixLost | None) -> Row:
    harmless, place = loss.cause == FIRST_PROMPT, UNKNOWN
    if last is not None and loss.cause not in PLACELESS:
        place = PrefixBreak(cause=last.cause, message=last.message, byte=last.byte).place
    return (
        external(words_of(loss.cause), Tone.DIM if harmless else Tone.WARN),
        Cell(f"{loss.count:,}"),
        Cell(figure(loss.tokens, at_least=loss.unmeasured > 0)),
        Cell(UNKNOWN if loss.seconds is None else f"~{latency(1000 * loss.seconds)}"),
        external(place),
        external("" if last is None else last.detail, Tone.DIM),
    )
