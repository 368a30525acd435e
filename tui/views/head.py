"""The line on top of every screen, and the one under it when something is wrong."""

from __future__ import annotations

from tui.cells import Cell, Row, Tone, external
from tui.figures import duration
from tui.picture import Picture

_STALE_AFTER_S = 30.0


def link(picture: Picture, now: float) -> Row:
    """Whether what is shown is of now. ``now`` is Unix time in seconds."""
    snapshot = picture.snapshot
    if picture.gone is not None:
        return (Cell("○ not connected, retrying", Tone.BAD),)
    if snapshot is None:
        return (Cell("○ connecting", Tone.DIM),)
    if now - snapshot.now > _STALE_AFTER_S:
        return (Cell(f"◌ figures are {duration(now - snapshot.now)} old", Tone.WARN),)
    return (
        Cell("● connected", Tone.GOOD),
        external(f"governor {snapshot.version}", Tone.DIM),
        Cell(f"up {duration(snapshot.now - snapshot.started_at)}", Tone.DIM),
    )


def trouble(picture: Picture, now: float) -> tuple[Row, ...]:
    """Why nothing is heard of the governor, and how old what is shown is; nothing while all is well."""
    snapshot, gone = picture.snapshot, picture.gone
    if gone is None:
        return ()
    age = () if snapshot is None else (Cell(f"figures are {duration(now - snapshot.now)} old", Tone.BAD),)
    return ((*age, external(gone.why, Tone.BAD)),)
