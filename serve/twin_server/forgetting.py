"""Keeps what the twin has read from growing for ever: tokens that no tier holds and no request uses are forgotten.

A twin at a hundredfold speed reads in an hour what an engine reads in four days.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serve.twin.engine_model import Ask, Ended, EngineEvent
from serve.twin.tiers import Tiers
from serve.twin.tiers_key import Key
from serve.twin_server.content import Content

_LEAST_TOKENS = 4_000_000
"""Below this, which is 16 MB and their names, nothing is forgotten."""


class Forgetting:
    """Listens to the service, after everybody else who names pages."""

    def __init__(self, content: Content, tiers: Tiers, *, least_tokens: int = _LEAST_TOKENS) -> None:
        self._content = content
        self._tiers = tiers
        self._least_tokens = self._limit = least_tokens
        self._live: dict[str, Ask] = {}

    def on_ask(self, ask: Ask) -> None:
        self._live[ask.rid] = ask

    def on_events(self, events: Sequence[EngineEvent]) -> None:
        ended = [event.rid for event in events if isinstance(event, Ended)]
        for rid in ended:
            self._live.pop(rid, None)
        if ended and self._content.kept_tokens > self._limit:
            self._content.keep_only({source for key in self._used() for source, _, _ in key.runs})
            # Looking through everything once for each doubling costs little.
            self._limit = max(self._least_tokens, 2 * self._content.kept_tokens)

    def _used(self) -> Iterator[Key]:
        for ask in self._live.values():
            yield ask.prompt
            yield ask.output
        for prefetch in self._tiers.prefetches.running:
            yield prefetch.key
        for node in self._tiers.tree.walk_nodes():
            yield node.key
        for span in self._tiers.storage.walk_spans():
            if span.missing < span.tokens:
                yield span.key
