"""The engine: what it is, what its tiers were proven to do, what has happened to it, and its own words."""

from __future__ import annotations

import msgspec

from governor import events
from governor.snapshot import CanaryView
from tui.cells import Cell, Column, Row, Table, Tone, external
from tui.figures import UNKNOWN, duration
from tui.picture import Picture
from tui.views.log import happenings
from tui.views.parts import old

_NOTICES = (events.EngineChanged, events.Alert)
_MOST_NOTICES = 20


def proven(picture: Picture, now: float) -> Table:
    """What ``governor canary`` found. ``now`` is Unix time in seconds."""
    snapshot = picture.snapshot
    found = None if snapshot is None else snapshot.cache.canary
    return Table(
        title="canary",
        notes=() if found is None else _when(found, now),
        columns=(Column(title="tier"), Column(title="verdict"), Column(title="why", grows=True, least=20)),
        rows=() if found is None else _verdicts(found),
        empty="not run yet: 'governor canary' proves that each tier gives back what was put in",
    )


def _when(found: CanaryView, now: float) -> Row:
    word = Cell("passed", Tone.GOOD) if found.passed else Cell("failed", Tone.BAD)
    of = external(f"{found.model}, {found.engine_version}", Tone.DIM)
    return (word, Cell(f"{duration(now - found.at)} ago", Tone.DIM), of)


def _verdicts(found: CanaryView) -> tuple[Row, ...]:
    tones = {"SERVED": Tone.GOOD, "SKIPPED": Tone.DIM}
    rows: tuple[Row, ...] = tuple(
        (
            external(tier.tier, Tone.STRONG),
            external(tier.verdict.lower(), tones.get(tier.verdict, Tone.BAD)),
            external(tier.reason),
        )
        for tier in found.tiers
    )
    return rows + tuple((Cell("!", Tone.BAD), external(problem, Tone.BAD)) for problem in found.problems)


def notices(picture: Picture) -> Table:
    """Its changes and the alerts, newest first, those that stand on top."""
    told = tuple(event for event in picture.log if isinstance(event, _NOTICES))
    table = happenings(msgspec.structs.replace(picture, log=told), most=_MOST_NOTICES)
    alerts = () if picture.snapshot is None else picture.snapshot.alerts
    standing = tuple((Cell(""), Cell("now", Tone.BAD), Cell("alert", Tone.BAD), external(each)) for each in alerts[:8])
    return Table(
        title="changes and alerts",
        columns=(
            Column(title="at"),
            Column(title="of", grows=True, least=6, most=24),
            Column(title="what", grows=True, least=5),
            Column(title="detail", grows=True, least=20),
        ),
        rows=standing + table.rows,
        empty="nothing has happened to it",
        headed=False,
    )


def log_tail(picture: Picture) -> Table:
    """The engine's last lines, newest first."""
    page = picture.engine_log
    lines = () if page is None else page.lines
    why = picture.missing.get("engine log") or (UNKNOWN if page is None else page.why_none)
    return Table(
        title=f"engine log, newest first ({len(lines)})" if lines else "engine log",
        notes=old(picture, "engine log") if lines else (),
        columns=(Column(title="line", grows=True),),
        rows=tuple((external(line, _tone(line)),) for line in reversed(lines)),
        empty=external(why or "the engine has written nothing yet").text,
        headed=False,
    )


def _tone(line: str) -> Tone:
    low = line.casefold()
    if any(word in low for word in ("error", "traceback", "exception", "fatal", "oom")):
        return Tone.BAD
    return Tone.WARN if "warn" in low else Tone.PLAIN
