"""Agents that talk to the tiers in tokens, so that pages have names: what :mod:`tests.twin.play` does with runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random

from serve.twin.engine_model import Admitted, Ask, Cached, Ended, EndReason, EngineEvent, Wrote
from serve.twin.tiers import Tiers
from serve.twin.tiers_model import Tier, TierSettings
from serve.twin.tiers_observer import TiersObserver
from serve.twin_server.content import Content
from serve.twin_server.feeds import Feeds
from serve.twin_server.service import Listener

_CHUNK_TOKENS = 256
_AGENTS = 3
_LONGEST_TOKENS = 1200

Residency = dict[Tier, set[int]]
"""Pages by their names in KV events."""
States = dict[str, tuple[int, frozenset[Tier]]]
"""By the page before each: depth and places."""


def tier_settings(*, slots: int = 24, storage_tokens: int | None = 4096) -> TierSettings:
    """A few contexts large, so that all is under pressure."""
    return TierSettings(
        device_tokens=4096,
        device_slots=slots,
        host_tokens=3072,
        host_slots=slots,
        storage_tokens=storage_tokens,
        page_tokens=64,
        track_interval_tokens=64,
        prefetch_tokens=64,
    )


class Truth:
    """What the tiers have, by names of pages."""

    def __init__(self, tiers: Tiers, content: Content) -> None:
        self._tiers = tiers
        self._content = content

    def residency(self) -> Residency:
        """Of whole pages; what is on its way to L2 is not there yet."""
        coming = {node.number for write in self._tiers.host.writes.values() if write.tokens for node in write.nodes}
        found: Residency = {Tier.L1: set(), Tier.L2: set()}
        for node in self._tiers.tree.walk_nodes():
            names = {name for run in node.key.runs for name in self._content.blocks(run).block_hashes}
            if node.device:
                found[Tier.L1] |= names
            if node.host and node.number not in coming:
                found[Tier.L2] |= names
        return found

    def states(self) -> States:
        coming = {write.nodes[-1].number for write in self._tiers.host.writes.values() if write.states}
        found: States = {}
        for node in self._tiers.tree.walk_nodes():
            places = {Tier.L1} if node.state_device else set()
            if node.state_host and node.number not in coming:
                places.add(Tier.L2)
            if places:
                found[self._content.storage_names(node.key.runs[-1])[-1]] = (node.depth, frozenset(places))
        return found

    def stored(self) -> tuple[set[str], set[str]]:
        """L3's pages and states."""
        pages: set[str] = set()
        states: set[str] = set()
        for span in self._tiers.storage.walk_spans():
            if span.missing == span.tokens:
                continue
            names = [name for run in span.key.runs for name in self._content.storage_names(run)]
            pages |= set(names[span.missing // self._content.page_tokens :])
            states |= {names[-1]} if span.has_state else set()
        return pages, states


class Talk:
    """Three agents with a common beginning. A turn is one request, from its prompt to its end."""

    def __init__(self, settings: TierSettings, content: Content, feeds: Feeds, seed: int) -> None:
        self.content = content
        self.feeds = feeds
        self.listeners: list[Listener] = [feeds]
        observer: TiersObserver = feeds
        self.tiers = Tiers(settings, observer=observer)
        self.truth = Truth(self.tiers, content)
        self._random = Random(seed)  # noqa: S311 - a game, not a secret
        self._head = self._words(200)
        self._said = [array("I", self._head) for _ in range(_AGENTS)]
        self._numbers = 0

    def turns(self, count: int) -> Iterator[str]:
        """Do so many; the name of each when it has ended."""
        for _ in range(count):
            yield self._turn(self._random.randrange(_AGENTS))

    def flush(self) -> None:
        self.tiers.settle()
        self.tiers.flush()
        self._tell()

    def _turn(self, agent: int) -> str:
        tiers, chance = self.tiers, self._random
        self._numbers += 1
        rid = f"r{self._numbers:05}"
        said = self._said[agent]
        if len(said) > _LONGEST_TOKENS or chance.random() < 0.1:
            said = array("I", self._head)
        said = said + self._words(chance.randint(1, 300))
        prompt_tokens, output = len(said), self._words(chance.randint(1, 200))
        said.extend(output)
        self._said[agent] = said
        key = self.content.context(said).key
        prompt = key.cut(0, prompt_tokens)
        ask = Ask(
            rid=rid,
            prompt=prompt,
            output=key.cut(prompt_tokens, len(key)),
            writes_tokens=len(output),
            max_new_tokens=len(output),
        )
        for listener in self.listeners:
            listener.on_ask(ask)
        tiers.settle()
        prefetch = tiers.prefetch(prompt)
        gained = 0
        if prefetch is not None and (tokens := tiers.prefetches.answer(prefetch)):
            gained = tiers.prefetches.finish(prefetch, tokens)
        request = tiers.admit(prompt)
        host = request.host_hit_tokens
        cached = Cached(device=request.device_hit_tokens, host=host - min(host, gained), storage=min(host, gained))
        self._tell(Admitted(at=0, rid=rid, cached=cached, waited_s=0))
        while request.left_tokens:
            tiers.extend(request, min(_CHUNK_TOKENS, request.left_tokens))
            tiers.checkpoint(request)
            if chance.random() < 0.5:
                tiers.settle()
        written = 0
        while written < len(output):
            step = min(chance.randint(1, 20), len(output) - written)
            tiers.decode(request, ask.output.cut(written, written + step))
            self._tell(Wrote(at=0, rid=rid, start=written, stop=written + step))
            written += step
        tiers.finish(request)
        if chance.random() < 0.2:
            tiers.evict(tokens=chance.randint(1, 2000), states=chance.randint(0, 4))
        self._tell(
            Ended(
                at=0,
                rid=rid,
                reason=EndReason.STOP,
                prompt_tokens=prompt_tokens,
                completion_tokens=written,
                cached=cached,
            )
        )
        return rid

    def _tell(self, *events: EngineEvent) -> None:
        for listener in self.listeners:
            listener.on_events(events)

    def _words(self, tokens: int) -> array[int]:
        return array("I", [self._random.randrange(1, 50_000) for _ in range(tokens)])
