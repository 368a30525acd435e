"""The log: turns that ended and what else happened, or what the scheduler decided; filtered by a word."""

from __future__ import annotations

from functools import lru_cache

from governor import events
from governor.context import FIRST_PROMPT, words_of
from governor.events import AnyEvent
from governor.types import TurnState, Usage
from tui.cells import WIDE, Cell, Column, Row, Table, Tone, external
from tui.figures import UNKNOWN, clock, figure, latency
from tui.picture import LOG_ROWS, Picture
from tui.views.parts import GOOD_ENDS, hues, served

_COLUMNS = (
    Column(title="at"),
    Column(title="who", grows=True, least=8, most=24),
    Column(title="what", grows=True, least=5, most=15),
    Column(title="kind", grows=True, least=5),
    Column(title="prompt", right=True),
    Column(title="cached", right=True),
    Column(title="served from", from_width=WIDE, grows=True, least=8, most=16),
    Column(title="out", right=True),
    Column(title="ttft", right=True),
    Column(title="took", right=True),
    Column(title="why", grows=True, least=8),
)


def happenings(picture: Picture, *, needle: str = "", most: int = LOG_ROWS) -> Table:
    """Ended turns and notices, newest first, those only that have ``needle`` in a cell."""
    return _table("log", picture.log, picture, needle, most)


def decisions(picture: Picture, *, needle: str = "") -> Table:
    """What the scheduler decided, newest first."""
    return _table("decisions", picture.decisions, picture, needle, LOG_ROWS)


def _table(title: str, told: tuple[AnyEvent, ...], picture: Picture, needle: str, most: int) -> Table:
    tones, wanted = hues(picture.snapshot), needle.casefold()
    rows = list[Row]()
    for event in told:
        agent = getattr(event, "agent", "")
        row = _row(event, tones.get(agent, Tone.STRONG))
        if wanted and not any(wanted in cell.text.casefold() for cell in row):
            continue
        rows.append(row)
        if len(rows) == most:
            break
    counted = f" ({len(rows)})" if rows else ""
    none = f"nothing has {needle!r}" if needle else "no turn has ended yet"
    return Table(
        title=f"{title}{counted}",
        notes=(external(f"with '{needle}'", Tone.WARN),) if needle else (),
        columns=_COLUMNS,
        rows=tuple(rows),
        empty=external(none).text if picture.snapshot else UNKNOWN,
    )


@lru_cache(maxsize=4 * LOG_ROWS)
def _row(event: AnyEvent, agent: Tone) -> Row:
    match event:
        case events.TurnEnded():
            return _ended(event, agent)
        case events.TurnDecided():
            place = "" if event.position is None else f" (place {event.position} of {event.waiting})"
            what = external(event.verdict.value, Tone.WARN if event.position is not None else Tone.PLAIN)
            return _notice(event.at, external(event.agent, agent), what, f"{event.why}{place}")
        case events.Compacted():
            good = event.outcome == "accepted"
            sizes = f"{figure(event.before_tokens)} -> {figure(event.after_tokens)}"
            said = f"by the {event.by}: {event.outcome}, {sizes} tokens {event.detail}"
            tone = Tone.GOOD if good else Tone.WARN
            return _notice(event.at, external(event.agent, agent), Cell("compacted", tone), said)
        case events.PrefixLost():
            harmless = event.cause == FIRST_PROMPT
            price = "" if event.seconds is None else f", ~{latency(1000 * event.seconds)}"
            said = f"{figure(event.tokens)} tokens{price}: {words_of(event.cause)} {event.detail}"
            what = Cell("first prompt", Tone.DIM) if harmless else Cell("prefix lost", Tone.WARN)
            return _notice(event.at, external(event.agent, agent), what, said)
        case events.EngineChanged():
            tone = Tone.GOOD if event.state == "ready" else Tone.WARN
            return _notice(event.at, Cell("engine", Tone.DIM), external(event.state, tone), event.detail)
        case events.PolicyChanged():
            word = Cell("policy", Tone.DIM) if event.problem is None else Cell("policy", Tone.BAD)
            return _notice(event.at, external(event.agent, agent), word, event.problem or "in force")
        case events.OwnerActed():
            tone = Tone.BAD if event.outcome == "refused" else Tone.DIM
            said = f"{event.action} {event.target}: {event.detail}"
            return _notice(event.at, external(event.who), external(event.outcome, tone), said)
        case events.Alert():
            return _notice(event.at, external(event.name), Cell("alert", Tone.WARN), event.detail)
        case events.Gap():
            return _notice(0.0, Cell(""), Cell("gap", Tone.DIM), "earlier events are gone")
    return _notice(event.at, external(event.agent, agent), Cell(UNKNOWN), "")


def _ended(event: events.TurnEnded, agent: Tone) -> Row:
    usage = event.usage
    good = event.state in GOOD_ENDS
    tone = Tone.GOOD if event.state is TurnState.OK else Tone.WARN if good else Tone.BAD
    who = (Cell(clock(event.at), Tone.DIM), external(event.agent, agent), Cell(event.state.value, tone))
    if not good and usage == Usage():
        return (*who, Cell(event.kind or UNKNOWN), external(event.reason or UNKNOWN))
    return (
        *who,
        Cell(event.kind or UNKNOWN),
        Cell(figure(usage.prompt_tokens)),
        Cell(figure(usage.cached_tokens)),
        served(usage),
        Cell(figure(usage.completion_tokens)),
        Cell(latency(event.ttft_ms)),
        Cell(latency(event.duration_ms)),
        external(event.reason or event.finish_reason or "", Tone.DIM if good else Tone.PLAIN),
    )


def _notice(at: float, who: Cell, what: Cell, text: str) -> Row:
    return (Cell(clock(at), Tone.DIM), who, what, external(text))
