"""What an engine has cached, page by page and tier by tier, put together from what it tells. The engine's own feeds are
read elsewhere; here a page is a number, and what nobody has told is not known, which is not the same as not there.

A page's number stands for all tokens up to its end (:mod:`governor.residency.names`), so equal numbers in two contexts
are one page.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import repeat
from typing import Final, Protocol

import msgspec

MOST_PAGES: Final = 1_000_000
"""Pages of 100 bytes of memory each; pages beyond that are in L3 only, and are not followed."""
MOST_CHANGES: Final = 100_000
"""Marks older than that are lost: to look back over more would hold up turns."""


class Tier(IntEnum):
    """Where a page can be: L1 is the GPU's memory, L2 the host's, L3 a disk."""

    L1 = 1
    L2 = 2
    L3 = 3


L1_KV: Final = 1
L2_KV: Final = 2
L3_KV: Final = 4
L1_STATE: Final = 8
L2_STATE: Final = 16
L3_STATE: Final = 32
NEAR_KV: Final = L1_KV | L2_KV
"""KV that a prompt matches without anything being read from L3."""
NEAR_STATE: Final = L1_STATE | L2_STATE
ANY_KV: Final = NEAR_KV | L3_KV

KV: Final = {Tier.L1: L1_KV, Tier.L2: L2_KV, Tier.L3: L3_KV}
"""A page's bit for its KV in a tier."""
STATE: Final = {Tier.L1: L1_STATE, Tier.L2: L2_STATE, Tier.L3: L3_STATE}
"""A page's bit for the state at its end in a tier; without one nothing of a hybrid model goes on from there."""


class Knowledge(msgspec.Struct, frozen=True, kw_only=True):
    """Of what the engine has, what can be known at all now."""

    page_tokens: int | None = None
    """``None``: no page was ever told of."""
    kv: bool = False
    """Pages in L1 and L2 are told of."""
    kv_whole: bool = False
    """All of them: nothing was there when listening began, or was lost since."""
    has_states: bool | None = None
    """The model keeps states beside KV (hybrid); ``None``: nobody has told."""
    states: bool = False
    """States in L1 and L2 are told of, and all are known."""
    l3: bool = False
    """All of L3 is known, that there is none included."""

    @property
    def tells_depth(self) -> bool:
        """Whether from where in a prompt the engine can go on can be said at all."""
        return self.kv and (self.has_states is False or (self.has_states is True and self.states))


class Watcher(Protocol):
    """Who is told of every change of a page, right after it."""

    def on_page(self, page: int, before: int, after: int, *, moved: bool) -> None:
        """``moved``: the engine has just done so; else it is only known from now on."""
        ...

    def on_forgotten(self, *, anew: bool) -> None:
        """What was told of KV in L1 and L2 will be told again. ``anew``: it is another engine, and what was told of
        states and L3 is of the one before."""
        ...


class Mark(msgspec.Struct, eq=False):
    """A moment to look back at; close it with :meth:`Blocks.release`."""

    at: int
    knowledge: Knowledge
    is_lost: bool = False
    """So much has changed since that it is not remembered."""


class Blocks:
    """Pages of one engine. Synchronous, for one thread; nothing here raises for what an engine says."""

    def __init__(self, watchers: Iterable[Watcher] = (), *, most_pages: int = MOST_PAGES) -> None:
        self._watchers = tuple(watchers)
        self._most_pages = most_pages
        self._flags: dict[int, int] = {}
        self.knowledge = Knowledge()
        self._marks: list[Mark] = []
        self._changed_pages: array[int] = array("q")
        self._changed_from = bytearray()
        self._first_change = 0
        """Number of the oldest change that is remembered."""
        self._unfollowed = False
        self.engines = 0
        """Engines that have told of themselves, one after the other."""
        self.clearings = 0
        """How often one has forgotten all of L1 and L2."""

    def places(self, pages: Iterable[int]) -> bytes:
        """Of each page, the bits of where it and a state at its end are."""
        return bytes(map(self._flags.get, pages, repeat(0)))

    def __len__(self) -> int:
        return len(self._flags)

    # KV in L1 and L2

    def on_reset(self) -> None:
        """What was told of KV does not hold any more; what there is will be told, as far as it is remembered."""
        self._drop(NEAR_KV)
        self._know(kv=True, kv_whole=False)
        self._tell_forgotten(anew=False)

    def on_kv_lost(self) -> None:
        """Nobody tells of KV any more."""
        self._drop(NEAR_KV)
        self._know(kv=False, kv_whole=False)

    def on_cleared(self) -> None:
        """The engine has forgotten all of L1 and L2: from here on all is known."""
        self.clearings += 1
        self._drop(NEAR_KV)
        self._know(kv=True, kv_whole=True)

    def on_stored(self, tier: Tier, pages: Iterable[int], page_tokens: int) -> None:
        """May be told again."""
        if page_tokens != self.knowledge.page_tokens:
            self._know(page_tokens=page_tokens)
        self._set(pages, KV[tier])

    def on_removed(self, tier: Tier, pages: Iterable[int]) -> None:
        self._unset(pages, KV[tier])

    def on_computed(self, pages: Iterable[int]) -> None:
        """An answer of these pages has ended, so its KV is in L1. Only of use where not all is known."""
        if self.knowledge.kv and not self.knowledge.kv_whole:
            self._set(pages, L1_KV, moved=False)

    # States in L1 and L2

    def on_model(self, *, page_tokens: int, has_states: bool) -> None:
        """What the engine's model is like. Without states all is known of them."""
        self._know(page_tokens=page_tokens, has_states=has_states)

    def on_states(self, states: Iterable[tuple[int, Iterable[Tier]]]) -> None:
        """All states there are; replaces what was known."""
        self._drop(NEAR_STATE)
        for page, tiers in states:
            for tier in tiers:
                self._set((page,), STATE[tier], moved=False)
        self._know(states=True)

    def on_state(self, page: int, tiers: Iterable[Tier]) -> None:
        """Where a state is now."""
        here = 0
        for tier in tiers:
            here |= STATE[tier]
        self._change(page, (self._flags.get(page, 0) & ~NEAR_STATE) | here)

    def on_states_lost(self) -> None:
        """Nobody tells of states any more, nor of L3."""
        self._drop(NEAR_STATE)
        self._know(states=False, l3=False)

    # L3

    def on_l3_written(self, pages: Iterable[int], states: Iterable[int] = ()) -> None:
        """Also of pages that were there already."""
        if len(self._flags) >= self._most_pages:
            self._unfollowed = True
            self._know(l3=False)
            pages, states = ([page for page in each if page in self._flags] for each in (pages, states))
        self._set(pages, L3_KV)
        self._set(states, L3_STATE)

    def on_l3_evicted(self, page: int, *, is_state: bool) -> None:
        self._unset((page,), L3_STATE if is_state else L3_KV)

    def on_l3_cleared(self) -> None:
        self._drop(L3_KV | L3_STATE)
        self._unfollowed = False
        self._know(l3=True)

    def on_l3_unsure(self) -> None:
        """L3 may have other pages than were told of."""
        self._know(l3=False)

    def on_l3_listed(self, pages: set[int], states: set[int]) -> None:
        """All that L3 has."""
        self._unfollowed = False
        for bit, listed in ((L3_KV, pages), (L3_STATE, states)):
            gone = [page for page, here in self._flags.items() if here & bit and page not in listed]
            self._unset(gone, bit)
            room = max(0, self._most_pages - len(self._flags))
            new = [page for page in listed if page not in self._flags]
            self._unfollowed = self._unfollowed or len(new) > room
            self._set(listed.intersection(self._flags), bit, moved=False)
            self._set(new[:room], bit, moved=False)
        self._know(l3=not self._unfollowed)

    def on_anew(self, *, keeps_l3: bool) -> None:
        """It is another engine. What it has in L1 and L2 is told of by itself; what L3 has stays there where it is on
        a disk."""
        self.engines += 1
        self._drop(NEAR_STATE | (0 if keeps_l3 else L3_KV | L3_STATE))
        self._know(has_states=None, states=False, l3=False)
        self._tell_forgotten(anew=True)

    # Looking back

    def mark(self) -> Mark:
        """Now, to look back at later."""
        mark = Mark(self._first_change + len(self._changed_pages), self.knowledge)
        self._marks.append(mark)
        return mark

    def places_at(self, mark: Mark, pages: Sequence[int]) -> bytes | None:
        """The same at that moment; ``None`` where the mark is lost."""
        if mark.is_lost:
            return None
        since = slice(mark.at - self._first_change, None)
        changed = zip(reversed(self._changed_pages[since]), reversed(self._changed_from[since]), strict=True)
        then = dict(changed)  # of a page's changes the first one is put last, and stays
        now = self.places(pages)
        return bytes(map(then.get, pages, now)) if then else now

    def release(self, mark: Mark) -> None:
        """It is not looked back at any more. May be repeated."""
        if mark in self._marks:
            self._marks.remove(mark)
        self._trim(min((each.at for each in self._marks), default=self._first_change + len(self._changed_pages)))

    # Parts

    def _set(self, pages: Iterable[int], bit: int, *, moved: bool = True) -> None:
        flags = self._flags
        for page in pages:
            here = flags.get(page, 0)
            if not here & bit:
                self._change(page, here | bit, moved=moved)

    def _unset(self, pages: Iterable[int], bit: int) -> None:
        flags = self._flags
        for page in pages:
            here = flags.get(page, 0)
            if here & bit:
                self._change(page, here & ~bit)

    def _drop(self, bits: int) -> None:
        for page in [page for page, here in self._flags.items() if here & bits]:
            self._change(page, self._flags[page] & ~bits)

    def _change(self, page: int, after: int, *, moved: bool = True) -> None:
        before = self._flags.get(page, 0)
        if before == after:
            return
        if after:
            self._flags[page] = after
        else:
            del self._flags[page]
        if self._marks:
            self._changed_pages.append(page)
            self._changed_from.append(before)
            if len(self._changed_pages) > MOST_CHANGES:
                self._lose_oldest()
        for watcher in self._watchers:
            watcher.on_page(page, before, after, moved=moved)

    def _know(self, **known: bool | int | None) -> None:
        after = msgspec.structs.replace(self.knowledge, **known)
        if after != self.knowledge:
            self.knowledge = after

    def _tell_forgotten(self, *, anew: bool) -> None:
        for watcher in self._watchers:
            watcher.on_forgotten(anew=anew)

    def _lose_oldest(self) -> None:
        """Forget the older half of what has changed, and the marks that need it."""
        keeps_from = self._first_change + len(self._changed_pages) // 2
        for mark in [each for each in self._marks if each.at < keeps_from]:
            mark.is_lost = True
            self._marks.remove(mark)
        self._trim(keeps_from)

    def _trim(self, keeps_from: int) -> None:
        gone = keeps_from - self._first_change
        if gone > 0:
            del self._changed_pages[:gone]
            del self._changed_from[:gone]
            self._first_change = keeps_from
