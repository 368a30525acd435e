"""``governor queue``: who holds the engine's KV memory now, and who waits for it, for what."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.markup import escape
from rich.table import Table

from governor.cli.console import out, plain_table, print_json, shown, told_errors
from governor.cli.options import HomeOption, JsonOption
from governor.cli.status import ask, the_running
from governor.snapshot import QueueView, Snapshot, WaitingView

_ENGINE_PHASES = frozenset({"prefill", "decode"})


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is in the engine, or holds room there."""

    turn_id: str
    agent: str
    phase: str
    """``prefill``, ``decode``, or ``leaving``: it is over here, and the engine has not confirmed it."""
    since: float
    """Unix time of its last grant; of its arrival where it holds no lease."""
    booked_tokens: int | None
    """KV tokens; ``None``: its size is not known."""
    output_tokens: int | None
    """Of these, for what it may still write."""
    generated_bytes: int


def queue(home: HomeOption, as_json: JsonOption = False) -> None:
    """Show the turns that run, with what each has booked, and those that wait: place, reason, when they go first."""
    with told_errors():
        snapshot = msgspec.json.decode(ask(the_running(home), "/governor/state"), type=Snapshot)
        running, line = running_of(snapshot), snapshot.queue
        if as_json:
            figures = {name: getattr(line, name) for name in QueueView.__struct_fields__ if name.endswith("_tokens")}
            print_json({"now": snapshot.now, "running": running, "waiting": line.waiting, **figures})
            return
        out.print(ledger_line(line))
        out.print(_running(running, snapshot.now) if running else "nothing runs")
        out.print(_waiting(line.waiting, snapshot.now) if line.waiting else "nothing waits")


def running_of(snapshot: Snapshot) -> list[Running]:
    """In the order of their grants."""
    open_turns = {turn.turn_id: turn for turn in snapshot.turns}
    running = []
    for lease in snapshot.queue.leases:
        turn = open_turns.pop(lease.turn_id, None)
        running.append(
            Running(
                turn_id=lease.turn_id,
                agent=lease.agent,
                phase="leaving" if lease.leaving or turn is None else turn.phase,
                since=lease.since,
                booked_tokens=lease.booked_tokens,
                output_tokens=lease.output_tokens,
                generated_bytes=0 if turn is None else turn.generated_bytes,
            )
        )
    for turn in open_turns.values():
        if turn.phase in _ENGINE_PHASES:
            running.append(
                Running(
                    turn_id=turn.turn_id,
                    agent=turn.agent,
                    phase=turn.phase,
                    since=turn.since,
                    booked_tokens=None,
                    output_tokens=None,
                    generated_bytes=turn.generated_bytes,
                )
            )
    return running


def ledger_line(line: QueueView) -> str:
    """Booked, free and foreign KV tokens of what there is."""
    if line.capacity_tokens is None:
        return f"KV       {line.booked_tokens:,} tokens booked; the engine does not tell how many it has"
    return (
        f"KV       {line.booked_tokens:,} tokens booked, {shown(line.free_tokens)} free,"
        f" {line.foreign_tokens:,} foreign of {line.capacity_tokens:,}"
    )


def _running(running: Sequence[Running], now: float) -> Table:
    table = plain_table("runs", "agent", "phase", "for", "booked", "to write", "sent")
    for each in running:
        table.add_row(
            each.turn_id,
            escape(each.agent),
            each.phase,
            f"{now - each.since:.0f} s",
            shown(each.booked_tokens),
            shown(each.output_tokens),
            f"{each.generated_bytes:,} B",
        )
    return table


def _waiting(waiting: Sequence[WaitingView], now: float) -> Table:
    table = plain_table("place", "waits", "agent", "waited", "first in", "needs", "why")
    for each in waiting:
        left_s = each.due - now
        table.add_row(
            str(each.position),
            each.turn_id + (" (paused)" if each.paused else ""),
            escape(each.agent),
            f"{now - each.since:.0f} s",
            f"{left_s:.0f} s" if left_s > 0 else "now",
            shown(each.needs_tokens),
            escape(each.reason),
        )
    table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
    return table
