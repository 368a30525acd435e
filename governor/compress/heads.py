"""Which of a conversation's heads a prompt goes on with. Pure; what is kept here is bounded, and lost at no harm: the
archive has it too.

A head stands for the client's first messages behind the instructions, which stay the client's own: a clock in a system
prompt costs the cache, but not the cut. It is found by them: byte for byte, or else by what they mean, since
clients drop old reasoning, write arguments anew or leave out names when they send a history again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from hashlib import blake2b

import msgspec

from governor.compress.messages import INSTRUCTION_ROLES, RESULT_ROLES
from governor.compress.plan import Plan

_DIGEST_BYTES = 16


class Covering(msgspec.Struct, frozen=True, kw_only=True):
    """A head: what the engine is sent in place of a client's first ``covered`` messages behind the instructions."""

    covered: int
    chain: bytes
    """:func:`chain_of` the digests of these messages."""
    loose_chain: bytes
    """The same of their loose digests."""
    messages: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(map(len, self.messages))


class Found(msgspec.Struct, frozen=True):
    head: Covering
    exactly: bool
    """``False``: what it covers was sent in other bytes this time, and means the same."""


def leading(roles: Sequence[str]) -> int:
    """How many instructions a prompt begins with."""
    return next((index for index, role in enumerate(roles) if role not in INSTRUCTION_ROLES), len(roles))


def chain_of(digests: Sequence[bytes]) -> bytes:
    """Names a beginning of a conversation."""
    return blake2b(b"".join(digests), digest_size=_DIGEST_BYTES).digest()


def find(heads: Sequence[Covering], digests: Sequence[bytes], loosely: Callable[[], Sequence[bytes]]) -> Found | None:
    """The head that covers most of a prompt; among equals one that is found exactly, then the latest. ``digests``: of
    the prompt's messages behind its instructions; ``loosely``: the loose ones, asked for only where a head that covers
    more is not found without."""
    within = [head for head in heads if 0 < head.covered <= len(digests)]
    exact = _closest(within, lambda head: head.chain, digests)
    further = within if exact is None else [head for head in within if head.covered > exact.covered]
    loose = _closest(further, lambda head: head.loose_chain, loosely()) if further else None
    if loose is not None:
        return Found(loose, exactly=False)
    return None if exact is None else Found(exact, exactly=True)


def _closest(
    heads: Sequence[Covering], chain: Callable[[Covering], bytes], digests: Sequence[bytes]
) -> Covering | None:
    names: dict[int, bytes] = {}
    best: Covering | None = None
    for head in heads:
        if best is not None and head.covered < best.covered:
            continue
        name = names.get(head.covered)
        if name is None:
            name = names[head.covered] = chain_of(digests[: head.covered])
        if chain(head) == name:
            best = head
    return best


def frozen(before: Covering | None, made: Plan, roles: Sequence[str]) -> tuple[int, tuple[bytes, ...]]:
    """A new head from an accepted plan for a prompt that began with ``before``: how many of the client's messages it
    behind the instructions it stands for, and what stands there. ``roles``: of the messages that the plan was made for.

    It reaches over all that the plan has replaced something of, all of the old head, and results that directly follow:
    a client may later send these under other ids, and the calls that they answer would be in the head, under the old
    ones.
    """
    start = leading(roles)
    held = start + (0 if before is None else len(before.messages))
    reach = max(made.covered, held)
    while reach < len(roles) and roles[reach] in RESULT_ROLES:
        reach += 1
    behind = sum(1 for origin in made.origins if origin is not None and origin >= reach)
    messages = tuple(bytes(raw) for raw in made.messages[start : len(made.messages) - behind])
    return (0 if before is None else before.covered) + reach - held, messages


class HeadBook:
    """Heads by conversation. The least recently used conversations go first. To be used from one thread."""

    def __init__(self, most_bytes: int = 64 * 1024 * 1024, per_conversation: int = 8) -> None:
        self._most_bytes = most_bytes
        self._per_conversation = per_conversation
        self._heads: OrderedDict[Hashable, list[Covering]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._heads)

    def __contains__(self, conversation: Hashable) -> bool:
        """Whether it is known what heads it has, none included."""
        return conversation in self._heads

    def of(self, conversation: Hashable) -> Sequence[Covering]:
        """The latest last. It counts as used."""
        heads = self._heads.get(conversation)
        if heads is None:
            return ()
        self._heads.move_to_end(conversation)
        return tuple(heads)

    def add(self, conversation: Hashable, *heads: Covering) -> None:
        """Changes state. Called without heads it notes that there are none so far."""
        held = self._heads.setdefault(conversation, [])
        self._heads.move_to_end(conversation)
        for head in heads:
            self._bytes += head.size
            held.append(head)
        while len(held) > self._per_conversation:
            self._bytes -= held.pop(0).size
        while self._bytes > self._most_bytes or len(self._heads) > _MOST_CONVERSATIONS:
            _, gone = self._heads.popitem(last=False)
            self._bytes -= sum(head.size for head in gone)

    def check_integrity(self) -> None:
        """Raises :class:`AssertionError`. Changes nothing."""
        held = sum(head.size for head in self._all())
        if held != self._bytes or held > self._most_bytes:
            raise AssertionError(f"head book: {held} bytes held, {self._bytes} counted, {self._most_bytes} allowed")

    def _all(self) -> Iterator[Covering]:
        for heads in self._heads.values():
            yield from heads


_MOST_CONVERSATIONS = 2048
