"""Pushing out of L1 what was asked before, so that the next question is answered from elsewhere.

As many tokens as L1 holds go through it. Fewer and shorter prompts would push out the states of a hybrid model, and the
engine would say that L2 served, but the KV would not have to be brought back, which is what takes the time.
"""

from __future__ import annotations

from math import ceil, lcm

from governor.errors import UpstreamError
from governor.measure.session import Session

STATE_GRID = 64
"""SGLang keeps a state at multiples of its recurrence's chunk, 64 in all models seen, and of the page."""
_LONGEST_TOKENS = 65_536
_SLOT_TOKENS = 64
_MARGIN = 1.05
"""Of an engine that keeps some of its pool back."""


class Flood:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._floods = 0

    @property
    def tokens(self) -> int:
        """It takes so many to push everything out; 0 where the engine does not tell."""
        return ceil((self._session.facts.device_tokens or 0) * _MARGIN)

    @property
    def room_tokens(self) -> int | None:
        """What L2 can keep beside a flood; ``None``: it does not tell."""
        facts = self._session.facts
        return None if not facts.has_host or facts.host_tokens is None else facts.host_tokens - self.tokens

    def why_impossible(self, keep_tokens: int) -> str | None:
        """Why prompts of so many tokens cannot be pushed out of L1 and be kept in L2."""
        facts = self._session.facts
        if facts.device_tokens is None and facts.slots is None:
            return "the engine does not tell how much its cache holds"
        if facts.has_host and facts.host_tokens is not None and facts.host_tokens < keep_tokens:
            return f"L2 holds {facts.host_tokens:,} tokens, the prompt has {keep_tokens:,}"
        return None

    async def push_out(self, keep_tokens: int) -> None:
        """Of L1, what was asked before. L2 keeps ``keep_tokens`` of it: where it has no room for both, the flood is
        smaller than L1. Raises :class:`~governor.errors.UpstreamError`."""
        session = self._session
        await self.settle()
        self._floods += 1
        for number, length in enumerate(self._lengths(keep_tokens)):
            prompt = await session.prompts.fresh(f"flood {self._floods}/{number}", length)
            await session.target.ask(prompt, 1)

    async def push_out_states(self) -> None:
        """As :meth:`push_out`, but only of what can be resumed: as many short prompts as L1 holds states. A hybrid
        model finds nothing without a state, whatever KV is left. Raises :class:`~governor.errors.UpstreamError`."""
        session, facts = self._session, self._session.facts
        await self.settle()
        self._floods += 1
        grid = lcm(STATE_GRID, facts.page_tokens)
        for number in range(facts.device_states or 0):
            prompt = await session.prompts.fresh(f"flood {self._floods}/{number}", grid + grid // 2)
            await session.target.ask(prompt, 1)

    async def settle(self) -> None:
        """Until copies have ended. Raises :class:`~governor.errors.UpstreamError`."""
        keeper = self._session.target.keeper
        if keeper is not None:
            await keeper.settle()

    async def empty(self) -> None:
        """L1 and L2. Raises :class:`~governor.errors.UpstreamError`, also where the engine knows no such thing."""
        keeper = self._session.target.keeper
        if keeper is None:
            raise UpstreamError("this engine cannot be told to empty L1 and L2")
        await keeper.settle()
        await keeper.flush()

    def _lengths(self, keep_tokens: int) -> list[int]:
        facts = self._session.facts
        if facts.device_tokens is None:  # the cache is what lies in the slots
            return [_SLOT_TOKENS] * (facts.slots or 1)
        total = self.tokens
        if facts.has_host and facts.host_tokens is not None:
            total = max(facts.page_tokens, min(total, facts.host_tokens - keep_tokens))
        each = min(_LONGEST_TOKENS, facts.window_tokens // 2, facts.device_tokens // 2)
        each = max(1, each // facts.page_tokens) * facts.page_tokens
        return [min(each, total - at) for at in range(0, total, each)]
