"""Summaries written ahead, in idle time: after a turn that has left its history long and in the cache, before the next
one needs it shorter.

The moment is the best there is: the prompt is still in L1, nobody waits for it, and where an agent's next question
leads into a long chain of calls, none can be written until its end. A summary that is not needed has cost one answer
that nobody waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from governor.compress.heads import chain_of
from governor.compress.limits import Limits, limits_of
from governor.compress.plan import wants_summary
from governor.compress.stages.drop import Summary
from governor.compress.summary import Rejection, asked_about
from governor.gateway.shaped import Shaped
from governor.gateway.summary import Summariser, SummaryAsked, Written
from governor.gateway.turn import Turn
from governor.gateway.weights import Weights
from governor.policy.model import CompressionMode, CompressionPolicy, CompressionStage, Policy
from governor.schedule.loop import Admission
from governor.types import AgentName, SessionId, TokenCount

log = logging.getLogger(__name__)

SETTLE_S = 0.5
"""After a turn, before a summary begins. Clients that go on at once, or ask for a title, do so within it."""
MOST_SUMMARIES = 256
_MOST_PENDING = 8
"""Each holds a request."""
_BYTES_PER_TOKEN = 4

Key = tuple[AgentName, SessionId]
Weigh = Callable[[Shaped, TokenCount, Policy], Awaitable[Weights]]


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A summary that waits for the prompt that needs it."""

    chain: bytes
    """:func:`~governor.compress.heads.chain_of` the messages that it was written about, as the engine was sent them."""
    written: Written
    summary: Summary


class PreparedBook:
    """The last summary of each conversation; the least recently used go first. To be used from one thread."""

    def __init__(self, most: int = MOST_SUMMARIES) -> None:
        self._most = most
        self._prepared: OrderedDict[Key, Prepared] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prepared)

    def keep(self, key: Key, prepared: Prepared) -> None:
        """Changes state. It takes the place of the conversation's last one."""
        self._prepared[key] = prepared
        self._prepared.move_to_end(key)
        while len(self._prepared) > self._most:
            self._prepared.popitem(last=False)

    def find(self, key: Key, digests: Sequence[bytes]) -> Prepared | None:
        """The one that was written about the beginning of a prompt with these digests."""
        prepared = self._prepared.get(key)
        if prepared is None or not 0 < prepared.summary.covered <= len(digests):
            return None
        self._prepared.move_to_end(key)
        return prepared if chain_of(digests[: prepared.summary.covered]) == prepared.chain else None

    def forget(self, key: Key) -> None:
        """May be repeated."""
        self._prepared.pop(key, None)


class _Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that may be worth a summary."""

    turn: Turn
    shaped: Shaped
    count: TokenCount
    policy: Policy
    window_tokens: int
    tokens: int
    """Of its prompt and its answer."""


class _Vain(msgspec.Struct, frozen=True):
    """Summaries of a conversation that came to nothing, since the last one that came to something."""

    times: int
    tokens: int
    """Of the conversation at the last."""


class Preparer:
    """:meth:`run` until cancelled. One per governor, on its event loop; writes one summary at a time."""

    def __init__(self, summariser: Summariser, admission: Admission, weigh: Weigh, settle_s: float = SETTLE_S) -> None:
        self.book = PreparedBook()
        self._summariser = summariser
        self._admission = admission
        self._weigh = weigh
        self._settle_s = settle_s
        self._pending: OrderedDict[Key, _Pending] = OrderedDict()
        self._vain: OrderedDict[Key, _Vain] = OrderedDict()
        self._has_pending = asyncio.Event()

    def find(self, agent: AgentName, shaped: Shaped) -> Prepared | None:
        """The summary that was prepared for this prompt, if there is one. Changes nothing."""
        return self.book.find((agent, shaped.located.session_id), shaped.located.digests)

    def on_used(self, agent: AgentName, shaped: Shaped) -> None:
        """It is part of an accepted compaction, or was tried in vain."""
        self.book.forget((agent, shaped.located.session_id))

    def on_answered(
        self, turn: Turn, shaped: Shaped, count: TokenCount, policy: Policy, window_tokens: int | None
    ) -> None:
        """A turn of the main line (no side call) has been answered; ``shaped`` is what the engine was sent, ``count``
        what it was thought to be. Returns at once and raises nothing."""
        answer, key = turn.answer, (turn.agent, shaped.located.session_id)
        self._pending.pop(key, None)
        is_final = answer.ended_well and answer.finish_reason == "stop" and not answer.tool_bytes
        if window_tokens is None or not is_final or not may_prepare(policy.compression):
            return
        prompt_tokens = count.tokens if answer.usage.prompt_tokens is None else answer.usage.prompt_tokens
        tokens = prompt_tokens + (answer.usage.completion_tokens or 0)
        limits = limits_of(policy.compression, window_tokens)
        if tokens < limits.trigger_tokens - margin_tokens(policy.compression, limits):
            self._vain.pop(key, None)
            return
        if self._is_vain(key, tokens, policy.compression):
            return
        prepared = self.find(turn.agent, shaped)
        uncovered = sum(map(len, shaped.prompt.messages[prepared.summary.covered :])) if prepared else 0
        if prepared is not None and uncovered < policy.compression.cooldown_tokens * _BYTES_PER_TOKEN:
            return
        known = TokenCount(tokens=prompt_tokens, source="usage") if answer.usage.prompt_tokens is not None else count
        self._pending[key] = _Pending(
            turn=turn, shaped=shaped, count=known, policy=policy, window_tokens=window_tokens, tokens=tokens
        )
        while len(self._pending) > _MOST_PENDING:
            self._pending.popitem(last=False)
        self._has_pending.set()

    async def run(self) -> None:
        while True:
            await self._has_pending.wait()
            await asyncio.sleep(self._settle_s)
            if not self._pending:
                self._has_pending.clear()
                continue
            key, pending = self._pending.popitem()
            try:
                await self._prepare(key, pending)
            except Exception:
                log.exception("a summary could not be prepared")

    async def _prepare(self, key: Key, pending: _Pending) -> None:
        if self._admission.waiting:
            return
        shaped, policy = pending.shaped, pending.policy
        about = asked_about(shaped.request.messages)
        weights = await self._weigh(shaped, pending.count, policy)
        wanted = await asyncio.to_thread(
            wants_summary,
            shaped.prompt.messages,
            weights.sizes,
            size_of=weights.size_of,
            fixed_tokens=weights.fixed_tokens,
            policy=policy.compression,
            limits=msgspec.structs.replace(limits_of(policy.compression, pending.window_tokens), trigger_tokens=1),
            covered=about,
        )
        if wanted is None:
            return
        asked = SummaryAsked(
            agent=pending.turn.agent,
            parent=pending.turn,
            request=shaped.request,
            located=shaped.located,
            count=pending.count,
            weights=weights,
            policy=policy,
            window_tokens=pending.window_tokens,
            idle=True,
        )
        written = await self._summariser.write(asked)
        if written.summary is None:
            log.info("no summary was prepared for %s: %s", pending.turn.agent, written.rejected)
            self._note_vain(key, pending.tokens, written)
            return
        self._vain.pop(key, None)
        chain = chain_of(shaped.located.digests[: written.summary.covered])
        self.book.keep(key, Prepared(chain=chain, written=written, summary=written.summary))

    def _is_vain(self, key: Key, tokens: int, policy: CompressionPolicy) -> bool:
        """What failed so often, or just now, would fail again."""
        vain = self._vain.get(key)
        return vain is not None and (vain.times >= policy.attempts or tokens - vain.tokens < policy.cooldown_tokens)

    def _note_vain(self, key: Key, tokens: int, written: Written) -> None:
        if written.rejected is not None and written.rejected.reason is Rejection.BROKEN_OFF:
            return
        vain = self._vain.pop(key, _Vain(0, 0))
        self._vain[key] = _Vain(vain.times + 1, tokens)
        while len(self._vain) > MOST_SUMMARIES:
            self._vain.popitem(last=False)


def may_prepare(policy: CompressionPolicy) -> bool:
    """The policy makes prompts shorter, by a summary if need be."""
    return policy.mode is CompressionMode.ENFORCE and CompressionStage.SUMMARY in policy.stages


def margin_tokens(policy: CompressionPolicy, limits: Limits) -> int:
    """How far below its trigger a history is already worth a summary: what the policy takes for the growth after which
    there is something to gain again, since the next question's chain of calls adds as much, and in it no summary may
    be written."""
    return max(policy.cooldown_tokens, limits.gain_tokens)
