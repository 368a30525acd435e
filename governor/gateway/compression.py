"""Compression in the way of a turn: the frozen head goes in, and a prompt over its trigger is made shorter, or stays.

The order: head -> count -> may it be tried -> plan -> exact count of what came out -> accepted or not. Only an accepted
plan changes what is sent; it is frozen as the conversation's next head and archived with all that left the prompt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

import msgspec

from governor import events
from governor.clock import Clock
from governor.compress.client_model import Advice, limits_for
from governor.compress.heads import chain_of, frozen, leading
from governor.compress.limits import Limits, limits_of
from governor.compress.verify import Attempt, Outcome, Permit, Record, can_try, digest_prompt, judge, on_prompt
from governor.errors import ContextOverflow, UpstreamError
from governor.gateway.drafting import Case, Drafted, Drafting
from governor.gateway.exact import exact_count
from governor.gateway.heads import Heads
from governor.gateway.planner import Planner, prompt_of
from governor.gateway.requested import Requested
from governor.gateway.shaped import Shaped
from governor.gateway.turn import Turn
from governor.output.caps import effective_window, wanted_cap
from governor.output.kinds import turn_kind
from governor.policy.model import CompressionMode, Exhausted, Policy
from governor.store.archive_model import Archive, CompactedBy, Compaction, Head
from governor.tokens.chain import Located
from governor.tokens.digests import digest_message
from governor.types import MAIN_KINDS, TokenCount
from governor.wire.request import with_beginning
from serve.engine import Endpoint, Engine, ModelCard

log = logging.getLogger(__name__)

_MOST_LINES = 1024
_REFUSALS = 2
"""After which a line has its own prompts again. One may have been for something else in the request."""
_REFUSED = frozenset({400, 422})
_UNDER_WAY = "its history is being made shorter for another turn"


class _Line(msgspec.Struct):
    """What is remembered of the attempts on one line of a conversation; a branch begins with what its parent has had.
    Others in the same session, such as a helper's, tell nothing about it."""

    record: Record = Record()
    told: bool = False
    """The client has had its overflow for this row of misses."""
    refused: int = 0
    """Times in a row that the engine has refused a prompt with a head in it."""
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    """Held while a prompt is made shorter. A retry, or the turn after, goes on with what came of it."""


class Compressor:
    """One per governor, on its event loop."""

    def __init__(
        self,
        engine: Engine,
        planner: Planner,
        heads: Heads,
        drafting: Drafting,
        archive: Archive,
        requested: Requested,
        event_log: events.EventLog,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._planner = planner
        self.heads = heads
        self._drafting = drafting
        self._archive = archive
        self._requested = requested
        self._events = event_log
        self._clock = clock
        self._lines: OrderedDict[int, _Line] = OrderedDict()
        """By their paths in the session index."""

    async def shaped(self, turn: Turn, sent: Shaped, advice: Advice, card: ModelCard, policy: Policy) -> Shaped:
        """``advice``: what is to be done for a client that compacts in vain. Raises
        :class:`~governor.errors.ContextOverflow` once for a history that cannot be made shorter."""
        wanted = policy.compression
        window = effective_window(card.window_tokens, policy)
        if sent.request.endpoint is not Endpoint.CHAT or wanted.mode is CompressionMode.OFF or window is None:
            return sent
        line = self._line(sent.located)
        if line.refused >= _REFUSALS:
            turn.note(
                "compressed_head_refused: the engine does not take what was made shorter; sent as the client has it"
            )
            return sent
        if turn_kind(sent.request) not in MAIN_KINDS:
            return await self._begun(turn, sent, policy)
        if line.lock.locked():
            turn.on_queued(_UNDER_WAY)
        async with line.lock:
            return await self._main(turn, sent, line, advice, policy, window)

    def on_accepted(self, shaped: Shaped) -> None:
        """The engine has answered a prompt."""
        line = self._lines.get(shaped.line) if shaped.line is not None else None
        if line is not None:
            line.refused = 0

    def on_refused(self, shaped: Shaped, error: UpstreamError) -> None:
        """The engine has not answered it."""
        line = self._lines.get(shaped.line) if shaped.line is not None else None
        if line is not None and error.status in _REFUSED:
            line.refused += 1

    async def _main(
        self, turn: Turn, sent: Shaped, line: _Line, advice: Advice, policy: Policy, window_tokens: int
    ) -> Shaped:
        """The next prompt of a line."""
        wanted = policy.compression
        now = await self._begun(turn, sent, policy)
        count = now.estimate or await self._planner.count(now.prompt, now.located)
        now = msgspec.structs.replace(now, estimate=count)
        asked_for = self._requested.take(turn.agent)
        own = limits_of(wanted, window_tokens)
        limits = _limits(own, count, advice, asked_for=asked_for)
        line.record = on_prompt(line.record, count.upper, limits)
        line.told = line.told and line.record.misses > 0
        if count.upper < limits.trigger_tokens or (line.record.misses >= wanted.attempts and not asked_for):
            return now
        if not count.exact:
            count = await exact_count(self._engine, now.request, policy) or count
        now = msgspec.structs.replace(now, count=count if count.exact else None)
        digest = digest_prompt(now.prompt.messages, now.prompt.tools)
        permit = can_try(
            line.record,
            digest,
            count.tokens,
            limits=limits,
            attempts=wanted.attempts,
            cooldown_tokens=wanted.cooldown_tokens,
        )
        if permit is not Permit.TRY and not asked_for:
            return now
        cap, _ = wanted_cap(policy, turn_kind(now.request), now.request.requested_cap)
        case = Case(
            turn=turn,
            now=now,
            count=count,
            policy=policy,
            limits=limits,
            trigger_tokens=own.trigger_tokens,
            is_asked_for=asked_for,
            window_tokens=window_tokens,
            cap_tokens=cap,
        )
        return await self._tried(sent, case, digest, line)

    async def _tried(self, sent: Shaped, case: Case, digest: bytes, line: _Line) -> Shaped:
        turn, now, count, limits, policy = case.turn, case.now, case.count, case.limits, case.policy
        began = self._clock.monotonic()
        drafted = None
        try:
            drafted = await self._drafting.drafted(case)
        except Exception as error:
            # It is done for the turn, and must not cost it: a miss as any other, so that it is not tried for ever.
            log.exception("turn %s: its prompt could not be made shorter", turn.turn_id)
            drafted = Drafted(detail=f"failed with {type(error).__name__}; the log says how")
        finally:
            if drafted is None and case.is_asked_for:
                self._requested.ask(turn.agent)
        if drafted is None:
            return now
        took_ms = (self._clock.monotonic() - began) * 1000
        attempt = Attempt(
            before_digest=digest,
            before_tokens=count.tokens,
            after_digest=None if drafted.shaped is None else drafted.digest,
            after_tokens=drafted.after_tokens or 0,
        )
        compaction = self._compaction(turn, now, count, drafted, took_ms)
        if policy.compression.mode is CompressionMode.OBSERVE:
            # Not tried again before the prompt has grown, as an accepted one would not be.
            line.record = msgspec.structs.replace(line.record, last_tokens=count.tokens)
            self._tell(turn, msgspec.structs.replace(compaction, outcome="would" if drafted.plan else "no_result"))
            return now
        outcome, line.record = judge(line.record, attempt, limits)
        compaction = msgspec.structs.replace(compaction, outcome=outcome.value)
        if outcome is Outcome.ACCEPTED and drafted.shaped is not None:
            return self._accepted(turn, sent, now, drafted, compaction)
        self._tell(turn, compaction)
        exhausted = line.record.misses >= policy.compression.attempts
        if exhausted and case.is_due and policy.compression.exhausted is Exhausted.OVERFLOW and not line.told:
            line.told = True
            raise ContextOverflow(
                prompt_tokens=count.tokens,
                window_tokens=case.window_tokens,
                reserve_tokens=max(case.cap_tokens, case.window_tokens - case.trigger_tokens),
                detail=f"(The governor could not make it shorter: {compaction.detail or outcome.value}.)",
            )
        return now

    def _accepted(self, turn: Turn, sent: Shaped, now: Shaped, drafted: Drafted, compaction: Compaction) -> Shaped:
        """Freeze what came out as the conversation's head, and keep what left."""
        plan, shaped = drafted.plan, drafted.shaped
        if plan is None or shaped is None:
            raise ValueError("nothing was accepted")
        covered, messages = frozen(now.head, plan, now.request.roles)
        start = leading(sent.request.roles)
        digests = sent.located.digests[start : start + covered]
        loose = self.heads.loosely(sent.prompt.messages[start : start + covered], digests)
        head = Head(
            agent=turn.agent,
            session=sent.located.session_id,
            covered=covered,
            chain=chain_of(digests),
            loose_chain=chain_of(loose),
            messages=messages,
            made_at=compaction.at,
            before_tokens=compaction.before_tokens or 0,
            after_tokens=compaction.after_tokens or 0,
        )
        self.heads.add(head)
        self._archive.keep(head, drafted.left, compaction)
        self._publish(compaction)
        located = self._planner.locate_as_sent_on(turn.agent, shaped.request, shaped.prompt, sent.located.session_id)
        done = f"compressed: {compaction.before_tokens:,} -> {compaction.after_tokens:,} tokens ({compaction.stages})"
        return msgspec.structs.replace(
            shaped, located=located, head=head, line=sent.located.path, edits=(*sent.edits, done)
        )

    async def _begun(self, turn: Turn, sent: Shaped, policy: Policy) -> Shaped:
        """The prompt with the head that stands for its beginning, if there is one."""
        if policy.compression.mode is not CompressionMode.ENFORCE:
            return sent
        start, located = leading(sent.request.roles), sent.located
        messages, digests = sent.prompt.messages[start:], located.digests[start:]
        found = await self.heads.find(turn.agent, located.session_id, messages, digests)
        if found is None:
            return sent
        head = found.head
        if not found.exactly:
            turn.note("compressed_head_rewritten: the client sent what it covers in other bytes")
        instructions = sent.prompt.messages[:start]
        request = with_beginning(sent.request, (*instructions, *head.messages), start + head.covered)
        prompt = prompt_of(request)
        digests = (*located.digests[:start], *map(digest_message, head.messages), *digests[head.covered :])
        located = self._planner.locate_as_sent_on(turn.agent, request, prompt, located.session_id, digests)
        edits = (*sent.edits, f"head: {len(head.messages)} for {head.covered} messages")
        return Shaped(request=request, prompt=prompt, located=located, head=head, line=sent.located.path, edits=edits)

    def _line(self, located: Located) -> _Line:
        line = self._lines.get(located.path)
        if line is None:
            parent = None if located.parent is None else self._lines.get(located.parent)
            line = self._lines[located.path] = _Line(parent.record, parent.told, parent.refused) if parent else _Line()
        self._lines.move_to_end(located.path)
        while len(self._lines) > _MOST_LINES:
            self._lines.popitem(last=False)
        return line

    def _compaction(self, turn: Turn, now: Shaped, count: TokenCount, drafted: Drafted, took_ms: float) -> Compaction:
        return Compaction(
            turn_id=turn.turn_id,
            agent=turn.agent,
            session=now.located.session_id,
            at=self._clock.wall(),
            by=CompactedBy.GOVERNOR,
            outcome="",
            before_tokens=count.tokens,
            after_tokens=drafted.after_tokens,
            stages=drafted.stages,
            detail=drafted.detail,
            took_ms=round(took_ms, 1),
            summary_turn=drafted.summary_turn,
        )

    def _tell(self, turn: Turn, compaction: Compaction) -> None:
        """Of a try that changed nothing."""
        after = "?" if compaction.after_tokens is None else f"{compaction.after_tokens:,}"
        turn.note(f"compression_{compaction.outcome}: {compaction.before_tokens:,} -> {after} tokens")
        self._archive.note(compaction)
        self._publish(compaction)

    def _publish(self, compaction: Compaction) -> None:
        self._events.publish(
            events.Compacted(
                at=compaction.at,
                turn_id=compaction.turn_id,
                agent=compaction.agent,
                by=compaction.by.value,
                outcome=compaction.outcome,
                before_tokens=compaction.before_tokens,
                after_tokens=compaction.after_tokens,
                detail=compaction.detail or compaction.stages,
            )
        )


def _limits(limits: Limits, count: TokenCount, advice: Advice, *, asked_for: bool) -> Limits:
    """Those of the policy, or lower ones: under what a client compacts at, or half of a prompt that the owner wants
    shorter."""
    if not asked_for:
        return limits_for(advice, limits)
    target = min(limits.target_tokens, max(1, count.tokens // 2))
    gain = max(1, min(limits.gain_tokens, count.tokens - target))
    return msgspec.structs.replace(limits, trigger_tokens=1, target_tokens=target, gain_tokens=gain)
