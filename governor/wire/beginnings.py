"""The bodies that were read last, so that a request that goes on with one is read from where that ended. Pure.

Agents send all of their history with each turn. Where a body begins with the very bytes of an earlier one, up to the
end of a message, those messages are what they were: to compare bytes costs a fiftieth of reading them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import count

import msgspec

from governor.wire.jsonobject import JsonObject, Span

_BEHIND = re.compile(rb"\s*(?:,(?=\s*[^\s\]])|(?=\]))")
"""A message: the comma before another one, or the end of the list."""
_BETWEEN = re.compile(rb"[\s,]*")


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a body begins with, as they were read before."""

    span: Span
    """Of the body: where they stand, the comma behind them included."""
    messages: tuple[bytes, ...]
    roles: tuple[str, ...]
    digests: tuple[bytes, ...]
    ends: tuple[int, ...]
    """Where in the body each of them ends."""
    replaces: int | None
    """The body that has nothing else; for :meth:`Beginnings.note`."""


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """A body that was read."""

    number: int
    key: Hashable
    body: memoryview
    list_start: int
    """Of its messages, behind the bracket."""
    messages: tuple[bytes, ...]
    roles: tuple[str, ...]
    digests: tuple[bytes, ...]
    ends: tuple[int, ...]

    def shares(self, messages: int, body: bytes) -> bool:
        """``body`` begins as this one does, to the end of so many messages."""
        return body.startswith(self.body[: self.ends[messages - 1]])

    def most_shared(self, body: bytes) -> int:
        """The most messages to whose end ``body`` begins as this one does."""
        whole = len(self.ends)
        if self.shares(whole, body):
            return whole
        return bisect_left(range(1, whole), True, key=lambda messages: not self.shares(messages, body))


class Beginnings:
    """Bodies by a key that says whose they are and how they are written. The least recently used go first. To be used
    from one thread."""

    def __init__(self, most_bytes: int = 32 * 1024 * 1024, most_of_one: int = 64) -> None:
        """``most_of_one``: bodies of one key, which are compared one after the other."""
        self._most_bytes = most_bytes
        self._most_of_one = most_of_one
        self._by_key: dict[Hashable, OrderedDict[int, _Read]] = {}
        self._all: OrderedDict[int, _Read] = OrderedDict()
        self._numbers = count()
        self.held_bytes = 0
        """Of bodies, now."""

    def find(self, key: Hashable, body: bytes) -> Known | None:
        """What ``body`` begins with. Changes nothing."""
        best, most = None, 0
        for read in reversed(self._by_key.get(key, {}).values()):
            if len(read.ends) <= most or not read.shares(most + 1, body):
                continue
            best, most = read, read.most_shared(body)
            if most == len(read.ends):
                break
        behind = None if best is None else _BEHIND.match(body, best.ends[most - 1])
        if best is None or behind is None:
            return None
        return Known(
            span=Span(best.list_start, behind.end()),
            messages=best.messages[:most],
            roles=best.roles[:most],
            digests=best.digests[:most],
            ends=best.ends[:most],
            replaces=best.number if most == len(best.ends) else None,
        )

    def note(
        self,
        key: Hashable,
        json: JsonObject,
        messages: tuple[bytes, ...],
        roles: tuple[str, ...],
        digests: Sequence[bytes],
        known: Known | None,
    ) -> None:
        """A body was read; ``messages`` is the list in its field of that name. ``known``: what was found of it. Changes
        state."""
        list_start = json.value_start("messages") + 1
        ends = [] if known is None else list(known.ends)
        at = ends[-1] if ends else list_start
        for message in messages[len(ends) :]:
            between = _BETWEEN.match(json.body, at)
            at = (between.end() if between else at) + len(message)
            ends.append(at)
        replaced = None if known is None or known.replaces is None else self._all.get(known.replaces)
        if replaced is not None:
            self._forget(replaced)
        read = _Read(
            number=next(self._numbers),
            key=key,
            body=memoryview(json.body),
            list_start=list_start,
            messages=messages,
            roles=roles,
            digests=tuple(digests),
            ends=tuple(ends),
        )
        of_key = self._by_key.setdefault(key, OrderedDict())
        of_key[read.number] = self._all[read.number] = read
        self.held_bytes += len(read.body)
        if len(of_key) > self._most_of_one:
            self._forget(next(iter(of_key.values())))
        while self.held_bytes > self._most_bytes:
            self._forget(next(iter(self._all.values())))

    def _forget(self, read: _Read) -> None:
        del self._all[read.number]
        of_key = self._by_key[read.key]
        del of_key[read.number]
        if not of_key:
            del self._by_key[read.key]
        self.held_bytes -= len(read.body)
