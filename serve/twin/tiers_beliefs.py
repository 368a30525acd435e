"""What an engine without L2 believes L3 to have, so that it does not write the same again.

Follows ``buffer_mode/storage_existence_cache.py``: pages and states by their whole prefix, written ones and those being
written. Its bound of 524,288 pages is left out: that is 33 million tokens with pages of 64.
"""

from __future__ import annotations

from collections.abc import Iterator

from serve.twin.tiers_key import Key
from serve.twin.tiers_node import Believed, Node


class Beliefs:
    """One engine's, from its start on: a flush keeps them, a restart does not."""

    def __init__(self, page_tokens: int) -> None:
        self._page = page_tokens
        self._root = Believed(Key(), None)

    def of(self, node: Node) -> Believed:
        """The span that ends where ``node`` ends; it begins where the node begins or later."""
        if node.parent is None:
            return self._root
        if node.believed is not None:
            return node.believed
        path = [node]
        while path[-1].above.parent is not None and path[-1].above.believed is None:
            path.append(path[-1].above)
        span = path[-1].above.believed or self._root
        for part in reversed(path):
            span = part.believed = self._reach(span, part.key)
        return span

    def has_pages(self, end: Believed, tokens: int) -> bool:
        """Whether the last ``tokens`` before ``end`` are there, or on their way."""
        return all(span.stored or span.in_flight for span in _spans(end, tokens))

    def has_state(self, end: Believed) -> bool:
        return end.stored_state or end.states_in_flight > 0

    def write(self, end: Believed, tokens: int, states: int) -> None:
        """A write of these begins."""
        for span in _spans(end, tokens):
            span.in_flight += 1
        end.states_in_flight += states

    def written(self, end: Believed, tokens: int, states: int) -> None:
        for span in _spans(end, tokens):
            span.in_flight -= 1
            span.stored = True
        if states:
            end.states_in_flight -= states
            end.stored_state = True

    def forget_writes(self) -> None:
        """Those under way will not be told of any more."""
        for span in self._below(self._root):
            span.in_flight = span.states_in_flight = 0

    def learn(self, key: Key, start: int, stop: int, *, has_state: bool) -> None:
        """L3 has shown pages ``[start, stop)``, and the state at their end where it was read."""
        if stop <= start:
            return
        end = self._reach(self._reach(self._root, key.cut(0, start)), key.cut(start, stop))
        for span in _spans(end, stop - start):
            span.stored = True
        end.stored_state = end.stored_state or has_state

    def doubt(self, key: Key, start: int, *, pages: bool) -> None:
        """L3 has none of what follows ``start`` on this chain: no pages, or no states."""
        span, at = self._reach(self._root, key.cut(0, start)), start
        while at < len(key):
            child = span.children.get(key.page(at, self._page))
            if child is None:
                return
            same = child.key.common(key, at)
            same -= same % self._page
            if same < child.tokens:
                child = self._split(span, child, same)
            child.stored = child.stored and not pages
            child.stored_state = child.stored_state and pages
            span, at = child, at + same

    def _reach(self, span: Believed, key: Key) -> Believed:
        """The span that ends where ``key`` ends, made where it is not there."""
        at = 0
        while at < len(key):
            child = span.children.get(key.page(at, self._page))
            if child is None:
                child = Believed(key.cut(at, len(key)), span)
                span.children[key.page(at, self._page)] = child
            same = child.key.common(key, at)
            same -= same % self._page
            span = child if same == child.tokens else self._split(span, child, same)
            at += same
        return span

    def _split(self, parent: Believed, lower: Believed, tokens: int) -> Believed:
        upper = Believed(lower.key.cut(0, tokens), parent)
        upper.stored, upper.in_flight = lower.stored, lower.in_flight
        parent.children[lower.key.page(0, self._page)] = upper
        lower.parent = upper
        lower.key = lower.key.cut(tokens, lower.tokens)
        lower.tokens -= tokens
        upper.children[lower.key.page(0, self._page)] = lower
        return upper

    def _below(self, span: Believed) -> Iterator[Believed]:
        stack = [span]
        while stack:
            each = stack.pop()
            yield each
            stack.extend(each.children.values())


def _spans(end: Believed, tokens: int) -> Iterator[Believed]:
    """The last ``tokens`` before ``end``, which begin where a span begins."""
    span: Believed | None = end
    while tokens > 0 and span is not None:
        yield span
        tokens -= span.tokens
        span = span.parent
