"""Records that wait to be written: bounded, in order, one entry a turn, and what is given up when there is no room.

Pure: no lock, no clock, no I/O. :mod:`governor.store.turnlog` guards it and empties it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from governor.events import PrefixLost, TurnDecided
from governor.store.model import TurnClosed, TurnOpened
from governor.types import TurnId


@dataclass(slots=True)
class Entry:
    """What is to be written of one turn: an opening, an ending with or without it, decisions with their numbers,
    losses."""

    turn_id: TurnId
    opened: TurnOpened | None = None
    closed: TurnClosed | None = None
    decided: list[tuple[int, TurnDecided]] = field(default_factory=list)
    lost: list[PrefixLost] = field(default_factory=list)

    @property
    def notes(self) -> int:
        """Records that explain the turn."""
        return len(self.decided) + len(self.lost)

    @property
    def records(self) -> int:
        return (self.opened is not None) + (self.closed is not None) + self.notes


class Backlog:
    """At most ``capacity`` turns wait, and as many decisions and losses. When full:

    * a new opening is dropped: nothing is lost if the turn's ending finds room later, for an ending is written
      together with the opening, which is remembered while the turn runs;
    * an ending takes the place of the newest turn that waits without one, for the same reason;
    * an ending is dropped when only endings wait. The older ones stay, because their rows are the likelier ones to
      stand in the database as open, and a row that says open about an ended turn is worse than a turn not listed;
    * a new decision or loss is dropped: it explains a turn, whose row has what it used.

    ``dropped`` counts the records given up, ``anomalies`` second endings of a turn that still waits.
    """

    def __init__(self, capacity: int) -> None:
        self.dropped = 0
        self.anomalies = 0
        self._capacity = capacity
        self._entries: OrderedDict[TurnId, Entry] = OrderedDict()
        self._unclosed: OrderedDict[TurnId, None] = OrderedDict()
        self._running: OrderedDict[TurnId, TurnOpened] = OrderedDict()
        self._notes = 0
        """Decisions and losses that wait."""
        self._number = 0

    def __len__(self) -> int:
        """Turns waiting."""
        return len(self._entries)

    def add_opened(self, record: TurnOpened) -> None:
        """Take an opening. A second one for a turn that waits or runs changes nothing."""
        turn_id = record.turn_id
        if turn_id in self._running:
            return
        waiting = self._entries.get(turn_id)
        if waiting is not None:
            waiting.opened = waiting.opened or record
            return
        self._running[turn_id] = record
        if len(self._running) > self._capacity:
            self._running.popitem(last=False)
        if len(self._entries) >= self._capacity:
            self.dropped += 1
            return
        self._entries[turn_id] = Entry(turn_id, opened=record)
        self._unclosed[turn_id] = None

    def add_closed(self, record: TurnClosed) -> None:
        """Take an ending. The first one of a turn counts."""
        turn_id = record.turn_id
        opened = self._running.pop(turn_id, None)
        entry = self._entries.get(turn_id)
        if entry is not None:
            if entry.closed is not None:
                self.anomalies += 1
                return
            entry.opened, entry.closed = entry.opened or opened, record
            del self._unclosed[turn_id]
            return
        if len(self._entries) >= self._capacity:
            if not self._unclosed:
                self.dropped += 1
                return
            evicted, _ = self._unclosed.popitem()
            given_up = self._entries.pop(evicted)
            self.dropped += given_up.records
            self._notes -= given_up.notes
        self._entries[turn_id] = Entry(turn_id, opened=opened, closed=record)

    def add_decided(self, record: TurnDecided) -> None:
        """Take a decision."""
        entry = self._noted(TurnId(record.turn_id))
        if entry is not None:
            self._number += 1
            entry.decided.append((self._number, record))

    def add_lost(self, record: PrefixLost) -> None:
        """Take a loss."""
        entry = self._noted(TurnId(record.turn_id))
        if entry is not None:
            entry.lost.append(record)

    def take(self, most: int) -> list[Entry]:
        """Remove and return the oldest entries, up to ``most``."""
        taken: list[Entry] = []
        while self._entries and len(taken) < most:
            turn_id, entry = self._entries.popitem(last=False)
            self._unclosed.pop(turn_id, None)
            self._notes -= entry.notes
            taken.append(entry)
        return taken

    def _noted(self, turn_id: TurnId) -> Entry | None:
        """Where another note of the turn goes; ``None``: there is no room."""
        entry = self._entries.get(turn_id)
        if self._notes >= self._capacity or (entry is None and len(self._entries) >= self._capacity):
            self.dropped += 1
            return None
        if entry is None:
            entry = self._entries[turn_id] = Entry(turn_id)
            self._unclosed[turn_id] = None
        self._notes += 1
        return entry
