"""What the archive has been given and not yet written: bounded in records and in bytes.

Pure: no lock, no clock, no I/O. :mod:`governor.store.archive` guards it.
"""

from __future__ import annotations

from collections import deque

import msgspec

from governor.store.archive_model import Compaction, Head, LeftText


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction with all that it left behind, to be written together."""

    number: int
    """Counts the compactions given since the start."""
    compaction: Compaction
    head: Head | None = None
    left: tuple[LeftText, ...] = ()

    def size_bytes(self) -> int:
        """Of the texts; the rest is small."""
        head = 0 if self.head is None else sum(map(len, self.head.messages))
        return head + sum(len(one.body) for one in self.left)


class ArchiveBacklog:
    """At most ``most_records`` wait, of ``most_bytes`` together; one that finds no room is dropped and counted.

    The older ones stay: heads are made on top of each other, and a later one names what an earlier one left. One
    ``take`` holds about ``take_bytes``, or a single record.
    """

    def __init__(self, *, most_records: int, most_bytes: int, take_bytes: int) -> None:
        self.dropped = 0
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._take_bytes = take_bytes
        self._records: deque[Kept] = deque()
        self._bytes = 0
        self._number = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Kept) -> None:
        """Take a record, and number it."""
        size_bytes = record.size_bytes()
        if len(self._records) >= self._most_records or self._bytes + size_bytes > self._most_bytes:
            self.dropped += 1
            return
        self._number += 1
        self._records.append(msgspec.structs.replace(record, number=self._number))
        self._bytes += size_bytes

    def waiting(self) -> tuple[Kept, ...]:
        """The oldest first."""
        return tuple(self._records)

    def take(self, most: int) -> list[Kept]:
        """Remove and return the oldest, up to ``most``."""
        taken: list[Kept] = []
        taken_bytes = 0
        while self._records and len(taken) < most:
            size_bytes = self._records[0].size_bytes()
            if taken and taken_bytes + size_bytes > self._take_bytes:
                break
            taken.append(self._records.popleft())
            taken_bytes += size_bytes
        self._bytes -= taken_bytes
        return taken
