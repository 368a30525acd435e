"""Has the engine summarise a conversation: a turn of the governor's own, with its own row and its own lease.

Whoever needs the summary asks for no lease of its own before it has it: where the engine takes one turn at a time, each
would wait for the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec

from governor.compress.draft import Left
from governor.compress.stages.drop import Summary
from governor.compress.summary import (
    Rejected,
    Rejection,
    SummaryInput,
    accept,
    asked_about,
    cap_tokens,
    instruction,
    summary_body,
    summary_input,
)
from governor.errors import (
    ContextOverflow,
    GovernorError,
    TooManyTurns,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from governor.gateway.claims import claim_of
from governor.gateway.history import History, Restored
from governor.gateway.http import JSON
from governor.gateway.planner import Measure
from governor.gateway.turn import Turn, TurnBook
from governor.gateway.weights import Weights
from governor.output.caps import CapDecision, CapReason
from governor.output.edits import edit
from governor.policy.model import Policy, SlicePolicy
from governor.schedule.events import TurnArrived
from governor.schedule.loop import Admission, Lease
from governor.schedule.retention import FETCH_LIMITS
from governor.tokens.chain import Located, digest_message
from governor.tokens.counter import Counter
from governor.tokens.model import KnownPrefix, PromptParts
from governor.types import AgentClass, AgentName, TokenCount, TurnId, TurnKind
from governor.visible import visible
from governor.wire import failures
from governor.wire.answer import ChatReader
from governor.wire.request import GenerationRequest, parse, with_messages
from serve.engine import Endpoint, Engine, EngineCall, TurnFacts

log = logging.getLogger(__name__)

DEADLINE_S = 240.0
"""From leave to run to the whole answer: a prompt of 200,000 tokens that had to be computed, and 4,000 written."""
_FITTINGS = 3
"""Each makes the history shorter by the share that the engine has counted too much."""
_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_SHOWN_CHARS = 300


class SummaryAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to be summarised."""

    agent: AgentName
    parent: Turn
    """Whose prompt is to be made shorter. May have ended."""
    request: GenerationRequest
    """A chat, its messages as the engine is sent them."""
    located: Located
    """Of these messages."""
    count: TokenCount
    """Of its whole prompt."""
    weights: Weights
    policy: Policy
    window_tokens: int | None
    """Prompt and output together."""
    idle: bool = False
    """Nobody waits for it: it runs at once or not at all, last of all, and is broken off when a turn arrives."""


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: a summary, or why there is none."""

    summary: Summary | None = None
    rejected: Rejected | None = None
    turn_id: TurnId | None = None
    """Its own turn; ``None``: it was never asked for."""
    left: tuple[Left, ...] = ()
    """See :class:`~governor.compress.summary.SummaryInput`."""


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a summary that fits."""

    given: SummaryInput
    edits: tuple[str, ...]
    asks_tiers: bool
    call: EngineCall
    count: TokenCount


class _MadeWay(TooManyTurns):
    """Somebody else wants the engine."""


class Summariser:
    """One per governor, on its event loop."""

    def __init__(
        self,
        engine: Engine,
        counter: Counter,
        admission: Admission,
        book: TurnBook,
        history: History,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._engine = engine
        self._counter = counter
        self._admission = admission
        self._book = book
        self._history = history
        self._deadline_s = deadline_s

    async def write(self, asked: SummaryAsked) -> Written:
        """Ask for the summary and wait: for a lease, and then at most the deadline. Opens a turn and closes it. Raises
        nothing but cancellation: whatever goes wrong is a :class:`~governor.compress.summary.Rejected`."""
        about = asked_about(asked.request.messages)
        if not about:
            return Written(rejected=Rejected(Rejection.NOTHING))
        turn = self._book.open(asked.agent, Endpoint.CHAT.value, len(asked.request.json.body))
        try:
            with turn:
                turn.note(f"parent:{asked.parent.turn_id}")
                try:
                    return await self._written(turn, asked, about)
                except asyncio.CancelledError:
                    turn.client_gone = asked.parent.client_gone and not asked.idle
                    raise
        except GovernorError as error:
            reason = Rejection.ERROR
            if isinstance(error, ContextOverflow):
                reason = Rejection.TOO_LARGE
            elif isinstance(error, _MadeWay):
                reason = Rejection.BROKEN_OFF
            return Written(rejected=Rejected(reason, error.message), turn_id=turn.turn_id)
        except Exception as error:
            log.exception("turn %s, a summary, failed", turn.turn_id)
            return Written(rejected=Rejected(Rejection.ERROR, type(error).__name__), turn_id=turn.turn_id)

    async def _written(self, turn: Turn, asked: SummaryAsked, about: int) -> Written:
        policy, request = asked.policy, asked.request
        turn.model, turn.stream = request.model, False
        turn.cap = cap = CapDecision(
            tokens=cap_tokens(policy.compression),
            requested=None,
            reason=CapReason.POLICY,
            window_tokens=asked.window_tokens,
        )
        turn.measure = Measure(kind=TurnKind.SUMMARY, count=asked.count, window_tokens=asked.window_tokens)
        made = await self._made(turn, asked, about, cap)
        located = msgspec.structs.replace(
            asked.located,
            digests=asked.located.digests[:about],
            shared_messages=about if made.given.is_warm else 0,
            broke_at=None,
            known=_known(asked, made.given, about),
        )
        turn.message_count, turn.located, turn.edits = len(made.given.messages), located, made.edits
        turn.measure = measure = msgspec.structs.replace(turn.measure, count=made.count)
        turn.tiers_asked = made.asks_tiers
        body = await self._answered(turn, asked, made, measure, located, cap)
        told = instruction(policy.compression.summary_tokens)
        text = accept(body, room_tokens=cap.tokens, size_of=asked.weights.size_of, told=told)
        if isinstance(text, Rejected):
            turn.note(f"summary_{text.reason}: {text.detail}" if text.detail else f"summary_{text.reason}")
            return Written(rejected=text, turn_id=turn.turn_id)
        return Written(summary=Summary(text, about), turn_id=turn.turn_id, left=made.given.left)

    async def _made(self, turn: Turn, asked: SummaryAsked, about: int, cap: CapDecision) -> _Made:
        """Raises :class:`ContextOverflow` when the history does not fit, however it is cut."""
        policy, weights, room_tokens = asked.policy.compression, asked.weights, asked.window_tokens
        for _ in range(_FITTINGS):
            given = await asyncio.to_thread(
                summary_input,
                asked.request.messages[:about],
                weights.sizes[:about],
                size_of=weights.size_of,
                fixed_tokens=weights.fixed_tokens,
                policy=policy,
                window_tokens=room_tokens,
            )
            if given is None:
                break
            made = await self._call(turn, asked, given, about, cap)
            if asked.window_tokens is None or room_tokens is None:
                return made
            most = asked.window_tokens - cap.tokens
            if made.count.upper <= most:
                return made
            room_tokens = cap.tokens + int(given.tokens * most / made.count.upper)
        raise ContextOverflow(
            prompt_tokens=asked.count.tokens, window_tokens=asked.window_tokens or 0, reserve_tokens=cap.tokens
        )

    async def _call(self, turn: Turn, asked: SummaryAsked, given: SummaryInput, about: int, cap: CapDecision) -> _Made:
        policy, can = asked.policy, self._engine.capabilities
        agent_class = AgentClass.BACKGROUND if asked.idle else policy.agent_class
        facts = TurnFacts(turn_id=turn.turn_id, agent_class=agent_class, session=asked.located.session_id)
        body = summary_body(asked.request.json.body, given.messages, policy.compression, can)
        edits = edit(parse(Endpoint.CHAT, body), cap, policy.request, can, policy.output.thinking, facts)
        call = EngineCall(endpoint=Endpoint.CHAT, body=edits.body, turn_id=turn.turn_id)
        made = partial(_Made, given=given, asks_tiers=edits.asks_tiers)
        restored = await self._restored(asked, given, about)
        if restored is not None and self._engine.continuation is not None:
            call = restored.applied(self._engine.continuation, call)
            return made(edits=(*edits.changed, restored.edit), call=call, count=restored.count)
        count = await self._engine.count_prompt(Endpoint.CHAT, call.body) if can.counts_prompts else None
        if count is None:
            count = await asyncio.to_thread(self._counter.count, _prompt(asked, given, about))
        return made(edits=edits.changed, call=call, count=count)

    async def _restored(self, asked: SummaryAsked, given: SummaryInput, about: int) -> Restored | None:
        """The prompt as the conversation's own tokens, where its turns go on from them."""
        continuation = self._engine.continuation
        if continuation is None or not given.is_warm:
            return None
        *_, told = given.messages
        digests = (*asked.located.digests[:about], digest_message(bytes(told)))
        window = asked.window_tokens
        ask = await self._history.ask(
            asked.agent,
            with_messages(asked.request, given.messages),
            msgspec.structs.replace(asked.located, digests=digests),
            asked.policy.request,
            continuation,
            room_tokens=None if window is None else window - cap_tokens(asked.policy.compression),
            note=lambda _why: None,
        )
        return ask.restored if ask is not None else None

    async def _answered(
        self, turn: Turn, asked: SummaryAsked, made: _Made, measure: Measure, located: Located, cap: CapDecision
    ) -> bytes:
        """Raises :class:`~governor.errors.GovernorError` where there is no lease or no answer."""
        policy = asked.policy
        claim = claim_of(
            turn.turn_id, asked.agent, measure, located, policy, output_cap=cap.tokens, choices=1, pauses=False
        )
        arrival = TurnArrived(
            turn_id=turn.turn_id,
            agent=asked.agent,
            agent_class=AgentClass.BACKGROUND if asked.idle else policy.agent_class,
            kind=TurnKind.BACKGROUND if asked.idle else TurnKind.SUMMARY,
            limits=FETCH_LIMITS if asked.idle else policy.limits,
            share=policy.share,
            slices=SlicePolicy(enabled=False),
            claim=claim,
            prefix_tokens=located.known.prompt_tokens if located.known else 0,
            fetches=asked.idle,
        )
        async with self._admission.lease(arrival, turn.on_queued) as lease:
            turn.on_granted(lease.waited_s)
            lease.confirmed = False
            try:
                async with asyncio.timeout(self._deadline_s):
                    return await _unless_wanted(self._read(turn, made.call), lease, is_idle=asked.idle)
            except TimeoutError as error:
                raise UpstreamTimeout(f"The summary was not there after {self._deadline_s:g} s.") from error
            except (UpstreamUnavailable, UpstreamRefused):
                lease.confirmed = True
                raise
            finally:
                lease.confirmed = lease.confirmed or turn.answer.ended_well

    async def _read(self, turn: Turn, call: EngineCall) -> bytes:
        """The whole answer, which the turn's row tells of."""
        reader = ChatReader()
        turn.answer = reader.answer
        pieces, size = [], 0
        async with self._engine.open(call) as answer:
            turn.http_status = answer.status
            async for chunk in answer.chunks():
                size += len(chunk)
                if size > _MOST_ANSWER_BYTES:
                    raise UpstreamError(f"The engine answered with more than {_MOST_ANSWER_BYTES} bytes.")
                pieces.append(chunk)
            body = b"".join(pieces)
            if answer.status != 200:
                said = visible(failures.message_of(failures.error_object(body)), _SHOWN_CHARS)
                content_type = answer.headers.get("content-type", JSON)
                raise UpstreamRefused(answer.status, body, content_type, f"{answer.status}: {said}")
        turn.response_bytes = size
        reader.on_data(body)
        turn.on_first_token()
        return body


def _known(asked: SummaryAsked, given: SummaryInput, about: int) -> KnownPrefix | None:
    """What the engine has told of the beginning of this prompt."""
    known = asked.located.known if given.is_warm else None
    return known if known is not None and known.messages <= about else None


def _prompt(asked: SummaryAsked, given: SummaryInput, about: int) -> PromptParts:
    tools = asked.request.tools
    return PromptParts(
        messages=[bytes(raw) for raw in given.messages],
        tools=None if tools is None else bytes(tools),
        known=_known(asked, given, about),
    )


async def _unless_wanted(reading: Coroutine[Any, Any, bytes], lease: Lease, *, is_idle: bool) -> bytes:
    """What was read. In idle time it ends when a turn arrives, with :class:`_MadeWay`."""
    if not is_idle:
        return await reading
    work = asyncio.create_task(reading)
    wanted = asyncio.create_task(lease.asked_to_pause.wait())
    try:
        await asyncio.wait({work, wanted}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise _MadeWay(f"Broken off: {lease.pause_reason}.", retry_after_s=1)
        return await work
    finally:
        for task in (work, wanted):
            task.cancel()
        await asyncio.gather(work, wanted, return_exceptions=True)
