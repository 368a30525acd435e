"""Token ids to the tiers' runs and back: what makes equal beginnings of two requests equal keys.

All that was ever read is kept as a tree of sources: a source is a stretch of tokens that begins on a page's border of
another one, or at the start. A context is walked by comparing it to what is kept, so a conversation that comes again
costs one comparison of memory, and its key is as many runs as it has branches. Two contexts that begin with the same
pages are in the same sources; within their last page, where they may not be, SGLang shares nothing either.

Pages are named as SGLang 0.5.23 names them (``mem_cache/utils.py``): SHA-256 over the name before and the page's ids as
32-bit little-endian words. Names are made when somebody asks.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable

import msgspec

from serve.twin.tiers_key import Key, Run
from serve.twin.tiers_model import BrokenBooks
from serve.twin_server.pieces import Ids

_FIRST_COMPARISON_TOKENS = 1024


class Namespace(msgspec.Struct, frozen=True):
    """Requests of different namespaces share nothing."""

    extra_key: str | None = None
    cache_salt: str | None = None

    @property
    def storage_seed(self) -> bytes:
        """What L3's names begin with (``storage_namespace_seed``)."""
        if self.extra_key is None and self.cache_salt is None:
            return b""
        digest = hashlib.sha256(b"sglang-cache-namespace-v1")
        for part in (self.extra_key, self.cache_salt):
            if part is None:
                digest.update(b"\x00")
            else:
                encoded = part.encode()
                digest.update(b"\x01" + len(encoded).to_bytes(8, "little") + encoded)
        return digest.digest()

    @property
    def event_seed(self) -> bytes:
        """What events' hashes begin with: ``extra_key`` is not in them (``compute_node_event_hash_values``)."""
        if self.cache_salt is None:
            return b""
        return hashlib.sha256(b"sglang-cache-salt-v1\0" + self.cache_salt.encode()).digest()


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """Whole pages as KV events tell them."""

    block_hashes: list[int]
    parent_block_hash: int | None
    """``None`` at the start of a context."""
    token_ids: list[int]
    cache_salt: str | None


class _Source:
    """Whole pages nobody has said before, after ``start`` tokens of the parent."""

    def __init__(self, number: int, namespace: Namespace, parent: _Source | None, start: int) -> None:
        self.number = number
        self.namespace = namespace
        self.parent = parent
        self.start = start
        self.tokens: Ids = array("I")
        self.children: dict[tuple[int, bytes], _Source] = {}
        """By the offset they begin at, and their first page."""
        self.event_digests: list[bytes] = []
        self.storage_digests: list[bytes] = []


class Context:
    """A request's tokens. They only grow."""

    def __init__(self, content: Content, namespace: Namespace) -> None:
        self._content = content
        self._namespace = namespace
        self.ids: Ids = array("I")
        self.key = Key()

    def append(self, ids: Ids) -> None:
        """Say more. The runs of whole pages stay; the last page's may be others when it becomes whole."""
        page = self._content.page_tokens
        settled = len(self.ids) - len(self.ids) % page
        self.ids.extend(ids)
        self.key = self._content.extend(self._namespace, self.key.cut(0, settled), self.ids)


class Content:
    """What was read by one engine and its successors. Sources are forgotten by :meth:`keep_only` alone."""

    def __init__(self, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self._roots: dict[Namespace, _Source] = {}
        self._sources: dict[int, _Source] = {}
        self._next = 0

    @property
    def kept_tokens(self) -> int:
        """Over all sources: four bytes each, without their names."""
        return sum(len(source.tokens) for source in self._sources.values())

    def context(self, ids: Ids, *, extra_key: str | None = None, cache_salt: str | None = None) -> Context:
        """A request's prompt, or its prompt and all that it will write: cut its key where the prompt ends."""
        context = Context(self, Namespace(extra_key, cache_salt))
        context.append(ids)
        return context

    def extend(self, namespace: Namespace, settled: Key, ids: Ids) -> Key:
        """The key of ``ids``, whose first pages are ``settled``."""
        page = self.page_tokens
        runs = list(settled.runs)
        at, whole = len(settled), len(ids) - len(ids) % page
        if runs:
            source, offset = self._sources[runs[-1][0]], runs[-1][2]
        else:
            source, offset = self._root(namespace), 0
        while at < whole:
            same = _common(ids, at, source.tokens, offset)
            if offset + same == len(source.tokens):
                source.tokens.extend(ids[at + same : whole])
                same = whole - at
            same = min(same, whole - at)
            same -= same % page
            if same:
                runs.append((source.number, offset, offset + same))
            at, offset = at + same, offset + same
            if at < whole:
                source, offset = self._child(source, offset, ids[at : at + page]), 0
        rest = ids[whole:]
        if rest == source.tokens[offset : offset + len(rest)]:
            runs.append((source.number, offset, offset + len(rest)))
        else:
            runs.append((self._take_number(), 0, len(rest)))
        return Key(runs)

    def tokens(self, run: Run) -> Ids:
        number, start, stop = run
        return self._sources[number].tokens[start:stop]

    def blocks(self, run: Run) -> Blocks:
        """The run's whole pages as KV events tell them."""
        source, first, last = self._pages(run)
        page = self.page_tokens
        digests = self._named(source).event_digests
        before = digests[first - 1] if first else self._before(source)[0]
        return Blocks(
            block_hashes=[event_hash(digest) for digest in digests[first:last]],
            parent_block_hash=None if first == source.start == 0 else event_hash(before),
            token_ids=source.tokens[first * page : last * page].tolist(),
            cache_salt=source.namespace.cache_salt,
        )

    def storage_names(self, run: Run) -> list[str]:
        """What L3 calls the run's whole pages."""
        source, first, last = self._pages(run)
        return [digest.hex() for digest in self._named(source).storage_digests[first:last]]

    def keep_only(self, sources: Iterable[int]) -> None:
        """Forget what stands in none of these and before none of these. Keys with other runs must not be used again,
        and contexts with such keys must not grow."""
        kept: set[int] = set()
        for number in sources:
            source = self._sources.get(number)
            while source and source.number not in kept:
                kept.add(source.number)
                source = source.parent
        for number in self._sources.keys() - kept:
            gone = self._sources.pop(number)
            if gone.parent is None:
                del self._roots[gone.namespace]
            elif gone.parent.number in kept:
                del gone.parent.children[self._place(gone)]

    def check_integrity(self) -> None:
        """Raises :class:`BrokenBooks`."""
        for source in self._sources.values():
            parent = source.parent
            if len(source.tokens) % self.page_tokens:
                raise BrokenBooks(f"source {source.number} ends within a page")
            if parent is None:
                if self._roots.get(source.namespace) is not source:
                    raise BrokenBooks(f"root {source.number} is not one")
                continue
            if source.start % self.page_tokens or source.start >= len(parent.tokens):
                raise BrokenBooks(f"source {source.number} begins at {source.start} of {len(parent.tokens)}")
            if parent.children.get(self._place(source)) is not source:
                raise BrokenBooks(f"source {source.number} is not found from its parent")
            if source.start == 0 and parent.parent:
                raise BrokenBooks(f"source {source.number} begins where its parent does")
            if parent.tokens[source.start : source.start + self.page_tokens] == source.tokens[: self.page_tokens]:
                raise BrokenBooks(f"source {source.number} says what its parent says")

    def _root(self, namespace: Namespace) -> _Source:
        if namespace not in self._roots:
            self._roots[namespace] = self._new(namespace, None, 0)
        return self._roots[namespace]

    def _child(self, parent: _Source, start: int, first_page: Ids) -> _Source:
        """Where contexts go on that have another page than ``parent`` at ``start``."""
        place = start, first_page.tobytes()
        if place not in parent.children:
            child = parent.children[place] = self._new(parent.namespace, parent, start)
            child.tokens.extend(first_page)
        return parent.children[place]

    def _new(self, namespace: Namespace, parent: _Source | None, start: int) -> _Source:
        number = self._take_number()
        source = self._sources[number] = _Source(number, namespace, parent, start)
        return source

    def _take_number(self) -> int:
        self._next += 1
        return self._next

    def _place(self, source: _Source) -> tuple[int, bytes]:
        return source.start, source.tokens[: self.page_tokens].tobytes()

    def _pages(self, run: Run) -> tuple[_Source, int, int]:
        number, start, stop = run
        return self._sources[number], -(-start // self.page_tokens), stop // self.page_tokens

    def _named(self, source: _Source) -> _Source:
        """With the names of all its pages, and of those before it."""
        lineage = [source]
        while parent := lineage[-1].parent:
            lineage.append(parent)
        for each in reversed(lineage):
            events, storage = self._before(each)
            has_two = each.namespace != Namespace()
            _name(each.event_digests, events, each.tokens, self.page_tokens)
            if has_two:
                _name(each.storage_digests, storage, each.tokens, self.page_tokens)
            else:
                each.storage_digests = each.event_digests
        return source

    def _before(self, source: _Source) -> tuple[bytes, bytes]:
        """Digests of the page before its first, or what stands for it at the start: for events, for L3."""
        parent, page = source.parent, source.start // self.page_tokens
        if parent is None or page == 0:  # only a root has another page beside its first
            return source.namespace.event_seed, source.namespace.storage_seed
        return parent.event_digests[page - 1], parent.storage_digests[page - 1]


def event_hash(digest: bytes) -> int:
    """A page's name in KV events (``hash_str_to_int64``)."""
    return int.from_bytes(digest[:8], "big", signed=True)


def _name(digests: list[bytes], before: bytes, tokens: Ids, page_tokens: int) -> None:
    """Add the digests of the pages that have none."""
    digest = digests[-1] if digests else before
    for start in range(len(digests) * page_tokens, len(tokens), page_tokens):
        digest = hashlib.sha256(digest + tokens[start : start + page_tokens].tobytes()).digest()
        digests.append(digest)


def _common(left: Ids, left_at: int, right: Ids, right_at: int) -> int:
    """How many tokens are the same from there on, by comparisons of memory."""
    limit = min(len(left) - left_at, len(right) - right_at)

    def is_same(start: int, stop: int) -> bool:
        return left[left_at + start : left_at + stop] == right[right_at + start : right_at + stop]

    same, step = 0, _FIRST_COMPARISON_TOKENS
    while same < limit and is_same(same, min(same + step, limit)):
        same = min(same + step, limit)
        step *= 2
    low, high = same, min(same + step, limit)
    while low < high:
        middle = (low + high + 1) // 2
        if is_same(low, middle):
            low = middle
        else:
            high = middle - 1
    return low
