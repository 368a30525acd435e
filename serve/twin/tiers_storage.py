"""L3: which pages and states are on disk.

A page is found by the whole prefix that ends with it, as SGLang's chained hashes do, so the disk is a second radix tree
that only grows. Pages fall in the order of last use, and nobody looks whether a later page of the same chain stays:
what lies behind a hole cannot be reached (``storage/file/lru_file_evictor.py``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from serve.twin.tiers_key import Key
from serve.twin.tiers_model import TierSettings
from serve.twin.tiers_node import Node, Stored
from serve.twin.tiers_observer import TiersObserver


class Storage:
    """Grows by :meth:`put`, shrinks by its own limit only."""

    def __init__(self, settings: TierSettings) -> None:
        self.page = settings.page_tokens
        self.limit = settings.storage_tokens
        self.state_tokens = settings.storage_state_tokens
        self.observer: TiersObserver | None = None
        self.used_tokens = 0
        """States included, each as ``storage_state_tokens``."""
        self._root = Stored(Key())
        self._root.missing = 0
        self._order: OrderedDict[Stored, None] = OrderedDict()

    def put(self, node: Node, *, has_state: bool) -> None:
        """Store a node's pages, and the state at its end."""
        path: list[Node] = [node]
        while path[-1].above.parent is not None and path[-1].above.stored is None:
            path.append(path[-1].above)
        span = path[-1].above.stored or self._root
        for part in reversed(path):
            span = part.stored = self._reach(span, part.key, fills=part is node)
        if has_state and not span.has_state:
            span.has_state = True
            self.used_tokens += self.state_tokens
        self._shrink()

    def find(self, key: Key, anchor: Node, start: int, *, needs_state: bool) -> int:
        """How many tokens of ``key`` from ``start``, which is ``anchor``'s end, can be restored: whole pages without a
        hole, and a state at their end."""
        span, at = (anchor.stored, start) if anchor.stored else (self._root, 0)
        end = len(key) - len(key) % self.page
        usable = start
        while at < end:
            child = span.children.get(key.page(at, self.page))
            if child is None:
                break
            same = min(child.key.common(key, at), end - at)
            same -= same % self.page
            if child.missing and at + same > start and max(start - at, 0) < child.missing:
                break
            at += same
            if at > start:
                if not needs_state or (same == child.tokens and child.has_state):
                    usable = at
                if child in self._order:
                    self._order.move_to_end(child)
            if same < child.tokens:
                break
            span = child
        return usable - start

    def walk_spans(self) -> Iterator[Stored]:
        """All, a parent before its children."""
        stack = list(self._root.children.values())
        while stack:
            span = stack.pop()
            yield span
            stack.extend(span.children.values())

    def _reach(self, span: Stored, key: Key, *, fills: bool) -> Stored:
        """The span that ends where ``key`` ends, made where it is not there."""
        at = 0
        while at < len(key):
            child = span.children.get(key.page(at, self.page))
            if child is None:
                child = Stored(key.cut(at, len(key)), span)
                span.children[key.page(at, self.page)] = child
                same = child.tokens
            else:
                same = child.key.common(key, at)
                same -= same % self.page
                if same < child.tokens:
                    child = self._split(span, child, same)
            if fills:
                self.used_tokens += child.missing
                child.missing = 0
                self._order[child] = None
                self._order.move_to_end(child)
            span = child
            at += same
        return span

    def _split(self, parent: Stored, lower: Stored, tokens: int) -> Stored:
        upper = Stored(lower.key.cut(0, tokens), parent)
        lower.parent = upper
        parent.children[lower.key.page(0, self.page)] = upper
        upper.missing = min(lower.missing, tokens)
        lower.key = lower.key.cut(tokens, lower.tokens)
        lower.tokens -= tokens
        lower.missing -= upper.missing
        upper.children[lower.key.page(0, self.page)] = lower
        if lower in self._order:
            # The upper part was written first, so it is the older of two equals.
            self._order[upper] = None
            self._order.move_to_end(lower)
        return upper

    def _shrink(self) -> None:
        while self.limit is not None and self.used_tokens > self.limit and self._order:
            oldest = next(iter(self._order))
            excess = self.used_tokens - self.limit
            fallen = min(oldest.tokens - oldest.missing, -(-excess // self.page) * self.page)
            start = oldest.missing
            oldest.missing += fallen
            self.used_tokens -= fallen
            drops_state = oldest.missing == oldest.tokens and oldest.has_state
            if oldest.missing == oldest.tokens:
                del self._order[oldest]
            if drops_state:
                oldest.has_state = False
                self.used_tokens -= self.state_tokens
            if self.observer is not None:
                self.observer.storage_dropped(oldest, start, oldest.missing, has_state=drops_state)
