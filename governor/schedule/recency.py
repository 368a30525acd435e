"""What L1 probably still holds, from the order in which our own turns used it. Pure; an estimate and nothing more.

SGLang evicts what was used least recently. A conversation is therefore still in L1 as long as what others have used
since, its own size added, is no more than what fits (the stack distance of an LRU cache; each conversation counts once,
however many turns it had, and what the cache had of its very first prompt, which others share, not at all). Errors on
both sides are known: states fall apart from KV, and clients beside the governor are not seen. What is counted is what
there will be once all that runs has its room: a context may still be there and be lost to a turn granted just now.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from governor.types import TurnId

MOST_CONTEXTS = 2048


class _Use(msgspec.Struct):
    tokens: int
    """What no other context has."""
    shared: int | None = None
    """What others have, too; ``None`` until its first turn has told."""
    held: int = 0
    """Turns that run on it: it cannot be evicted."""


class Recency:
    """Contexts by last use."""

    def __init__(self) -> None:
        self.capacity_tokens: int | None = None
        """Of L1; ``None`` while nobody knows it."""
        self._uses: OrderedDict[str, _Use] = OrderedDict()
        self._held: dict[TurnId, tuple[str, int]] = {}
        """Of each turn that runs its context, and how large that was when it began."""

    def __len__(self) -> int:
        return len(self._uses)

    def forget(self) -> None:
        """The engine is another one: nothing is there."""
        self._uses.clear()
        self._held.clear()

    def hold(self, turn_id: TurnId, context: str, tokens: int) -> None:
        """A turn runs on this context, which is so large."""
        use = self._uses.setdefault(context, _Use(0))
        use.tokens = max(use.tokens, tokens - (use.shared or 0))
        use.held += 1
        self._held[turn_id] = context, tokens
        self._uses.move_to_end(context)
        while len(self._uses) > MOST_CONTEXTS and not next(iter(self._uses.values())).held:
            self._uses.popitem(last=False)

    def grow(self, turn_id: TurnId, written_tokens: int) -> None:
        """A turn has written so much since it began to run. An unknown one changes nothing."""
        context, tokens = self._held.get(turn_id, ("", 0))
        use = self._uses.get(context)
        if use is not None:
            use.tokens = max(use.tokens, tokens + written_tokens - (use.shared or 0))

    def let_go(self, turn_id: TurnId) -> None:
        """It runs no more, for now or for ever; what it had stays. An unknown turn changes nothing."""
        context, _ = self._held.pop(turn_id, ("", 0))
        use = self._uses.get(context)
        if use is not None:
            use.held -= 1
            self._uses.move_to_end(context)

    def end(self, turn_id: TurnId, tokens: int | None = None, cached_tokens: int | None = None) -> None:
        """It has ended. ``tokens``: what it has left, ``cached_tokens``: what the cache had of its prompt; ``None``:
        unknown. An unknown turn changes nothing."""
        context, _ = self._held.get(turn_id, ("", 0))
        self.let_go(turn_id)
        use = self._uses.get(context)
        if use is None:
            return
        if use.shared is None:  # of its first turn alone: later ones find what it has left itself
            use.shared = cached_tokens or 0
            use.tokens = max(0, use.tokens - use.shared)
        if tokens is not None:
            use.tokens = max(0, tokens - use.shared)

    def distance(self, context: str) -> int | None:
        """Tokens used since the context was, its own included; ``None``: it is not known. Stops counting where it is
        far beyond what fits."""
        mine = self._uses.get(context)
        if mine is None:
            return None
        tokens = mine.tokens + sum(self._uses[each].tokens for each in self._running() - {context})
        enough = 2 * (self.capacity_tokens or 0)
        for name in reversed(self._uses):
            use = self._uses[name]
            if name == context or tokens > enough:
                break
            tokens += 0 if use.held else use.tokens
        return tokens

    def holds(self, context: str) -> bool:
        """Whether it is probably in L1."""
        distance = self.distance(context)
        capacity = self.capacity_tokens
        return capacity is not None and distance is not None and distance <= capacity

    def _running(self) -> set[str]:
        return {context for context, _ in self._held.values()}

    def check_integrity(self) -> None:
        """Raises ``AssertionError``."""
        held = [context for context, _ in self._held.values()]
        if any(use.held != held.count(name) for name, use in self._uses.items()):
            raise AssertionError("contexts are held by turns that do not run")
