"""A prompt with the head that stands for its beginning: from memory, and once a conversation from the archive."""

from __future__ import annotations

from collections.abc import Sequence

from governor.compress.heads import Found, HeadBook, find
from governor.store.archive_model import Archive, Head
from governor.tokens.digests import digest_loosely
from governor.types import AgentName, SessionId

_MOST_LOOSE = 65_536


class Heads:
    """One per governor, on its event loop."""

    def __init__(self, archive: Archive, book: HeadBook | None = None) -> None:
        self._archive = archive
        self.book = book or HeadBook()
        self._loose: dict[bytes, bytes] = {}
        """Loose digest of a message by its exact one."""

    async def find(
        self, agent: AgentName, session: SessionId, messages: Sequence[bytes], digests: Sequence[bytes]
    ) -> Found | None:
        """``messages``: behind the instructions; ``digests``: exact ones of them. Asks the archive for a conversation
        that was not seen since the start."""
        conversation = (agent, session)
        if conversation not in self.book:
            stored = await self._archive.heads(agent, session)
            if conversation not in self.book:  # another turn of it may have asked, and made a head since
                self.book.add(conversation, *stored)
        heads = self.book.of(conversation)
        return find(heads, digests, lambda: self.loosely(messages, digests)) if heads else None

    def add(self, head: Head) -> None:
        self.book.add((head.agent, head.session), head)

    def loosely(self, messages: Sequence[bytes], digests: Sequence[bytes]) -> list[bytes]:
        """Digests of what the messages mean. Each is computed once."""
        if len(self._loose) > _MOST_LOOSE:
            self._loose.clear()
        found = []
        for raw, digest in zip(messages, digests, strict=True):
            loose = self._loose.get(digest)
            if loose is None:
                loose = self._loose[digest] = digest_loosely(raw)
            found.append(loose)
        return found
