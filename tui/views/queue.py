"""Who holds L1, who waits for it and why, and whom the owner holds."""

from __future__ import annotations

from collections.abc import Mapping

from governor.snapshot import LeaseView, QueueView, Snapshot, TurnView, WaitingView
from tui.cells import FREE, WIDE, Bar, Cell, Column, Part, Row, Table, Tone, external
from tui.figures import UNKNOWN, duration, figure, share, size
from tui.picture import Picture
from tui.views.parts import OTHER, hues, named, phase_tone

MOST_ROWS = 100


def booked(picture: Picture) -> Table:
    """L1 as the scheduler books it: by agent, by what no lease explains, and what is free."""
    snapshot = picture.snapshot
    columns = (Column(title="of"), Column(title="booked", grows=True, least=20, most=400), Column(title="sum", most=40))
    if snapshot is None:
        return Table(title="L1 as booked", columns=columns, empty=UNKNOWN)
    queue = snapshot.queue
    return Table(
        title="L1 as booked",
        columns=columns,
        headed=False,
        rows=((Cell(figure(queue.capacity_tokens), Tone.STRONG), _ledger(queue, hues(snapshot)), _sum(queue)),),
    )


def _ledger(queue: QueueView, tones: Mapping[str, Tone]) -> Cell:
    by_agent = dict[str, int]()
    for lease in queue.leases:
        by_agent[lease.agent] = by_agent.get(lease.agent, 0) + lease.booked_tokens
    parts = [
        Part(tokens, tones.get(agent, Tone.PLAIN), label=external(agent).text) for agent, tokens in by_agent.items()
    ]
    alone = sum(by_agent.values())
    if alone > queue.booked_tokens:
        factor = queue.booked_tokens / alone
        parts = [Part(part.amount * factor, part.tone, label=part.label) for part in parts]
    parts.append(Part(queue.foreign_tokens, Tone.WARN, label="foreign"))
    whole = queue.capacity_tokens or max(1, queue.booked_tokens + queue.foreign_tokens)
    return Cell("", bar=Bar(tuple(part for part in parts if part.amount > 0), whole=whole, labelled=True, rest=FREE))


def _sum(queue: QueueView) -> Cell:
    foreign = f", {figure(queue.foreign_tokens)} foreign" if queue.foreign_tokens else ""
    return Cell(f"{figure(queue.booked_tokens)} booked{foreign}, {figure(queue.free_tokens)} free")


def leases(picture: Picture) -> Table:
    """Turns at the engine, in the order of their grants."""
    snapshot = picture.snapshot
    rows = () if snapshot is None else snapshot.queue.leases
    turns, tones = _turns(snapshot), hues(snapshot)
    at = 0.0 if snapshot is None else snapshot.now
    return _bounded(
        "running",
        (
            Column(title="agent", grows=True, least=8, most=24),
            Column(title="phase"),
            Column(title="for", right=True),
            Column(title="booked", right=True),
            Column(title="of L1", right=True),
            Column(title="to write", right=True),
            Column(title="prompt", right=True),
            Column(title="cap", right=True),
            Column(title="sent", right=True),
            Column(title="kind", from_width=WIDE),
            Column(title="turn", most=20, grows=True, least=6),
        ),
        tuple(_lease(lease, turns.get(lease.turn_id), snapshot, tones, at) for lease in rows),
        tuple(lease.turn_id for lease in rows),
        "nothing runs" if snapshot else UNKNOWN,
    )


def _lease(
    lease: LeaseView, turn: TurnView | None, snapshot: Snapshot | None, tones: Mapping[str, Tone], now: float
) -> Row:
    phase = "leaving" if lease.leaving else UNKNOWN if turn is None else turn.phase
    capacity = None if snapshot is None else snapshot.queue.capacity_tokens
    return (
        named(lease.agent, tones),
        external(phase, phase_tone(phase)),
        Cell(duration(now - lease.since)),
        Cell(figure(lease.booked_tokens)),
        Cell(share(lease.booked_tokens, capacity)),
        Cell(figure(lease.output_tokens)),
        Cell(figure(None if turn is None else turn.prompt_tokens)),
        Cell(figure(None if turn is None else turn.cap)),
        Cell(size(None if turn is None else turn.generated_bytes)),
        Cell((turn.kind if turn else None) or UNKNOWN),
        external(lease.turn_id, Tone.DIM),
    )


def waiting(picture: Picture) -> Table:
    """Turns that wait, in the order in which they are looked at."""
    snapshot = picture.snapshot
    rows = () if snapshot is None else snapshot.queue.waiting
    tones = hues(snapshot)
    at = 0.0 if snapshot is None else snapshot.now
    return _bounded(
        "waiting",
        (
            Column(title="#", right=True),
            Column(title="agent", grows=True, least=8, most=24),
            Column(title="for", right=True),
            Column(title="first in", right=True),
            Column(title="needs", right=True),
            Column(title="begun"),
            Column(title="why it waits now", grows=True, least=20),
            Column(title="turn", from_width=WIDE, most=20),
        ),
        tuple(_wait(view, tones, at) for view in rows),
        tuple(view.turn_id for view in rows),
        "nobody waits" if snapshot else UNKNOWN,
    )


def _wait(view: WaitingView, tones: Mapping[str, Tone], now: float) -> Row:
    left = view.due - now
    return (
        Cell(f"{view.position}", Tone.STRONG),
        named(view.agent, tones),
        Cell(duration(now - view.since)),
        Cell("now", Tone.WARN) if left <= 0 else Cell(duration(left)),
        Cell(figure(view.needs_tokens)),
        Cell("paused", Tone.WARN) if view.paused else Cell("no", Tone.DIM),
        external(view.reason, Tone.WARN),
        external(view.turn_id, Tone.DIM),
    )


def held(picture: Picture) -> Table:
    """Agents that the owner has paused."""
    snapshot = picture.snapshot
    views = () if snapshot is None else tuple(agent for agent in snapshot.agents if agent.held)
    tones = hues(snapshot)
    at = 0.0 if snapshot is None else snapshot.now
    return _bounded(
        "held by the owner",
        (
            Column(title="agent", grows=True, least=8, most=24),
            Column(title="for", right=True),
            Column(title="waiting", right=True),
            Column(title="its clients are told", grows=True, least=20),
        ),
        tuple(
            (
                named(view.name, tones),
                Cell(UNKNOWN if view.held_since is None else duration(at - view.held_since)),
                Cell(f"{view.waiting:,}"),
                external(view.held_reason or ""),
            )
            for view in views
        ),
        tuple(view.name for view in views),
        "no agent is held",
    )


def _turns(snapshot: Snapshot | None) -> Mapping[str, TurnView]:
    return {} if snapshot is None else {turn.turn_id: turn for turn in snapshot.turns}


def _bounded(
    title: str, columns: tuple[Column, ...], rows: tuple[Row, ...], keys: tuple[str, ...], empty: str
) -> Table:
    """Those over the bound share a row."""
    over = len(rows) - MOST_ROWS
    counted = f"{title} ({len(rows)})" if rows else title
    if over > 0:
        rows = (*rows[:MOST_ROWS], (Cell(OTHER, Tone.STRONG), Cell(f"{over:,} more")))
        keys = (*keys[:MOST_ROWS], "")
    return Table(title=counted, columns=columns, rows=rows, keys=keys, empty=empty)
