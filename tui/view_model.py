"""What the dashboard shows, as values: updates in, rows out. Pure: no clock, no I/O, no widget.

Figures come from the snapshot alone; events only fill the log. Unknown is ``-``, never 0.
"""

from __future__ import annotations

import math
import time

import msgspec

from governor import events
from governor.events import AnyEvent
from governor.snapshot import AgentView, Snapshot, TurnView
from governor.types import TurnState, Usage
from tui.cells import Cell, Column, Row, Table, Tone, external
from tui.client import Disconnected, Happened, Loaded, Update

LOG_ROWS = 500
_ALERT_LINES = 3
_STALE_AFTER_S = 30.0
_GOOD_ENDS = {TurnState.OK, TurnState.TRUNCATED}
_PHASES = ("decode", "prefill", "reading", "paused", "waiting")
"""An agent with several open turns is in the first of these that one of them is in."""


_STEPS = (
    events.TurnStarted,
    events.TurnQueued,
    events.TurnGranted,
    events.TurnFirstToken,
    events.TurnPaused,
    events.TurnResumed,
    events.TurnDecided,
)
"""The next snapshot shows these; the log is of ends."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known, at one moment."""

    snapshot: Snapshot | None = None
    lost: Disconnected | None = None
    """Set while nothing is heard: the snapshot is old then."""
    log: tuple[AnyEvent, ...] = ()
    """Ended turns and notices, newest first, at most :data:`LOG_ROWS`."""


def updated(picture: Picture, update: Update) -> Picture:
    """The picture after one update."""
    match update:
        case Loaded():
            return msgspec.structs.replace(picture, snapshot=update.snapshot, lost=None)
        case Disconnected():
            return msgspec.structs.replace(picture, lost=update)
        case Happened() if isinstance(update.event, _STEPS):
            return picture
        case Happened():
            return msgspec.structs.replace(picture, log=(update.event, *picture.log[: LOG_ROWS - 1]))


def head(picture: Picture, now: float) -> tuple[Row, ...]:
    """The lines on top: governor, engine, turn log, alerts. ``now`` is Unix time in seconds."""
    snapshot = picture.snapshot
    if snapshot is None:
        return ((Cell("governor", Tone.STRONG), *_link(picture, now)),)
    alerts = snapshot.alerts[:_ALERT_LINES]
    more = len(snapshot.alerts) - len(alerts)
    lines = [
        (
            Cell("governor", Tone.STRONG),
            external(snapshot.version),
            Cell(f"up {duration(snapshot.now - snapshot.started_at)}", Tone.DIM),
            *_link(picture, now),
        ),
        _engine(picture, snapshot),
        _store(snapshot),
        *((Cell("alert   ", Tone.WARN), external(alert)) for alert in alerts),
    ]
    if more:
        lines.append((Cell("alert   ", Tone.WARN), Cell(f"and {more} more")))
    return tuple(lines)


def agents(picture: Picture) -> Table:
    """One row an agent, by name."""
    snapshot = picture.snapshot
    rows = () if snapshot is None else tuple(_agent(view, snapshot) for view in snapshot.agents)
    return Table(
        columns=(
            Column(title="agent", grows=True, least=8),
            Column(title="state"),
            Column(title="run", right=True),
            Column(title="wait", right=True),
            Column(title="turns", right=True),
            Column(title="fail", right=True),
            Column(title="prompt", right=True),
            Column(title="cached", right=True),
            Column(title="out", right=True),
            Column(title="ttft", right=True),
            Column(title="policy", grows=True, least=6),
        ),
        rows=rows,
        empty="no agents yet" if snapshot else "-",
    )


def open_turns(picture: Picture, now: float) -> Table:
    """One row a turn that runs or waits, oldest first."""
    snapshot = picture.snapshot
    at = now if snapshot is None or picture.lost is None else snapshot.now
    rows = () if snapshot is None else tuple(_turn(view, at) for view in snapshot.turns)
    return Table(
        columns=(
            Column(title="agent", grows=True, least=8),
            Column(title="phase"),
            Column(title="for", right=True),
            Column(title="kind"),
            Column(title="prompt", right=True),
            Column(title="cap", right=True),
            Column(title="sent", right=True),
            Column(title="turn", wide=True, most=18),
            Column(title="waits for", grows=True, least=9),
        ),
        rows=rows,
        empty="no open turns" if snapshot else "-",
    )


def log(picture: Picture) -> Table:
    """Ended turns and what else happened, newest first."""
    return Table(
        columns=(
            Column(title="at"),
            Column(title="agent", grows=True, least=8),
            Column(title="end"),
            Column(title="kind", grows=True, least=5),
            Column(title="prompt", right=True),
            Column(title="cached", right=True),
            Column(title="out", right=True),
            Column(title="ttft", right=True),
            Column(title="took", right=True),
            Column(title="why", grows=True, least=8),
        ),
        rows=tuple(_logged(event) for event in picture.log),
        empty="no turn has ended yet" if picture.snapshot else "-",
    )


def figure(value: int | None, *, at_least: bool = False) -> str:
    """A count in at most six characters: ``950``, ``9,500``, ``95.0K``, ``9.50M``. ``+``: some was not reported."""
    if value is None:
        return "-"
    mark = "+" if at_least else ""
    if value < 10_000:
        return f"{value:,}{mark}"
    for unit in ("K", "M", "G"):
        value_in_unit = value / 1000 ** ("KMG".index(unit) + 1)
        if value_in_unit < 999.5 or unit == "G":
            digits = 2 if value_in_unit < 9.995 else 1 if value_in_unit < 99.95 else 0
            return f"{value_in_unit:.{digits}f}{unit}{mark}"
    raise AssertionError("the last unit takes all")


def share(part: int | None, whole: int | None) -> str:
    """``part`` of ``whole`` in percent; ``-`` while either is unknown or there is nothing to share."""
    if part is None or not whole:
        return "-"
    return f"{part / whole:.0%}"


def duration(seconds: float) -> str:
    """Whole time passed, in at most five characters: ``0s``, ``99s``, ``5m20``, ``3h05``, ``4d``."""
    whole = max(0, math.floor(seconds))
    if whole < 100:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 100:
        return f"{minutes}m{rest:02}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}" if hours < 48 else f"{hours // 24}d"


def latency(milliseconds: float | None) -> str:
    """A measured time: with tenths where they matter, ``-`` where it is unknown."""
    if milliseconds is None:
        return "-"
    return f"{milliseconds / 1000:.1f}s" if milliseconds < 9_950 else duration(milliseconds / 1000)


def _link(picture: Picture, now: float) -> Row:
    """Whether what is shown is of now."""
    snapshot, lost = picture.snapshot, picture.lost
    if lost is not None:
        age = () if snapshot is None else (Cell(f"figures are {duration(now - snapshot.now)} old", Tone.BAD),)
        return (Cell("not connected, retrying", Tone.BAD), *age, external(lost.why))
    if snapshot is None:
        return (Cell("connecting", Tone.DIM),)
    if now - snapshot.now > _STALE_AFTER_S:
        return (Cell(f"figures are {duration(now - snapshot.now)} old", Tone.WARN),)
    return (Cell("connected", Tone.GOOD),)


def _engine(picture: Picture, snapshot: Snapshot) -> Row:
    engine = snapshot.engine
    tone = Tone.DIM if picture.lost else Tone.GOOD if engine.mode == "ready" else Tone.BAD
    return (
        Cell("engine  ", Tone.STRONG),
        external(engine.name),
        external(engine.mode, tone),
        Cell(f"window {'-' if engine.window_tokens is None else f'{engine.window_tokens:,}'}", Tone.DIM),
        Cell(f"slots {figure(engine.slots)}", Tone.DIM),
        external(engine.detail, Tone.WARN),
        external(", ".join(engine.models[:8]) or "no model known"),
    )


def _store(snapshot: Snapshot) -> Row:
    store = snapshot.store
    return (
        Cell("turn log", Tone.STRONG),
        Cell("ok", Tone.GOOD) if store.ok else Cell("cannot write", Tone.BAD),
        Cell(f"{store.pending:,} pending", Tone.PLAIN if store.pending else Tone.DIM),
        Cell(f"{store.dropped:,} dropped", Tone.BAD if store.dropped else Tone.DIM),
        external("" if store.ok else store.last_error or ""),
    )


def _agent(view: AgentView, snapshot: Snapshot) -> Row:
    ended = sum(view.turns.values())
    failed = sum(count for state, count in view.turns.items() if state not in _GOOD_ENDS)
    reported = view.last_usage is not None
    partly = view.unreported > view.turns.get(TurnState.REFUSED, 0)
    problem = view.policy_problem
    return (
        external(view.name, Tone.STRONG),
        _state(view, snapshot),
        Cell(f"{view.running:,}"),
        Cell(f"{view.waiting:,}", Tone.WARN if view.waiting else Tone.PLAIN),
        Cell(figure(ended)),
        Cell(figure(failed), Tone.BAD if failed else Tone.PLAIN),
        Cell(figure(view.prompt_tokens if reported else None, at_least=partly)),
        Cell(share(view.cached_tokens, view.prompt_tokens)),
        Cell(figure(view.completion_tokens if reported else None, at_least=partly)),
        Cell(latency(view.last_ttft_ms)),
        Cell("ok", Tone.DIM) if problem is None else external(f"bad: {problem}", Tone.BAD),
    )


def _state(view: AgentView, snapshot: Snapshot) -> Cell:
    phases = {turn.phase for turn in snapshot.turns if turn.agent == view.name}
    for phase in _PHASES:
        if phase in phases:
            return Cell(phase, _phase_tone(phase))
    if phases:
        return external(min(phases))
    return Cell("unseen" if view.last_seen is None else "idle", Tone.DIM)


def _phase_tone(phase: str) -> Tone:
    return {"decode": Tone.GOOD, "prefill": Tone.GOOD, "waiting": Tone.WARN, "paused": Tone.WARN}.get(phase, Tone.PLAIN)


def _turn(view: TurnView, now: float) -> Row:
    return (
        external(view.agent, Tone.STRONG),
        external(view.phase, _phase_tone(view.phase)),
        Cell(duration(now - view.since)),
        Cell(view.kind or "-"),
        Cell(figure(view.prompt_tokens)),
        Cell(figure(view.cap)),
        Cell(f"{figure(view.generated_bytes)}B"),
        external(view.turn_id, Tone.DIM),
        external(view.waits_for or "", Tone.WARN),
    )


def _logged(event: AnyEvent) -> Row:
    match event:
        case events.TurnEnded():
            return _ended(event)
        case events.EngineChanged():
            tone = Tone.GOOD if event.state == "ready" else Tone.WARN
            return _notice(event.at, Cell("engine", Tone.DIM), external(event.state, tone), event.detail)
        case events.PolicyChanged():
            word = Cell("policy", Tone.DIM) if event.problem is None else Cell("policy", Tone.BAD)
            return _notice(event.at, external(event.agent), word, event.problem or "in force")
        case events.OwnerActed():
            tone = Tone.BAD if event.outcome == "refused" else Tone.DIM
            said = f"{event.action} {event.target}: {event.detail}"
            return _notice(event.at, external(event.who), external(event.outcome, tone), said)
        case events.Alert():
            return _notice(event.at, external(event.name), Cell("alert", Tone.WARN), event.detail)
        case events.Gap():
            return _notice(0.0, Cell(""), Cell("gap", Tone.DIM), "earlier events are gone")
    return _notice(event.at, external(event.agent), Cell("-"), "")


def _ended(event: events.TurnEnded) -> Row:
    usage = event.usage
    good = event.state in _GOOD_ENDS
    tone = Tone.GOOD if event.state is TurnState.OK else Tone.WARN if good else Tone.BAD
    who = (Cell(_clock(event.at), Tone.DIM), external(event.agent, Tone.STRONG), Cell(event.state.value, tone))
    if not good and usage == Usage():
        return (*who, Cell(event.kind or "-"), external(event.reason or "-"))
    return (
        *who,
        Cell(event.kind or "-"),
        Cell(figure(usage.prompt_tokens)),
        Cell(figure(usage.cached_tokens)),
        Cell(figure(usage.completion_tokens)),
        Cell(latency(event.ttft_ms)),
        Cell(latency(event.duration_ms)),
        external(event.reason or event.finish_reason or "", Tone.DIM if good else Tone.PLAIN),
    )


def _notice(at: float, who: Cell, what: Cell, text: str) -> Row:
    return (Cell(_clock(at), Tone.DIM), who, what, external(text))


def _clock(at: float) -> str:
    """Wall-clock time of this machine; nothing for an event without a time."""
    return time.strftime("%H:%M:%S", time.localtime(at)) if at else ""
