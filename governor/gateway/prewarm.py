"""Brings conversations at rest back into L1 while nobody else wants the engine: their last request, for one token.

Who is fetched and when is decided in :mod:`governor.schedule.retention`. A fetch asks for a lease as a turn does and is
refused rather than queued; it is broken off when any turn arrives, so that it delays nobody by more than the step the
engine is in. What it has computed by then stays in the engine's cache.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict

import msgspec

from governor.budget.claim import Claim, Segment
from governor.errors import GovernorError, UpstreamError
from governor.policy.model import SlicePolicy
from governor.schedule.events import Left, TurnArrived
from governor.schedule.loop import Admission
from governor.schedule.retention import FETCH_LIMITS, Rest
from governor.types import AgentClass, TurnId, TurnKind
from governor.wire.answer import Answer
from governor.wire.jsonobject import JsonObject
from serve.engine import Endpoint, Engine, EngineCall, TurnFacts

log = logging.getLogger(__name__)

EVERY_S = 1.0
MOST_BYTES = 64 * 1024 * 1024
"""Of requests kept to be asked again."""
_BYTES_PER_TOKEN = 4
_LEFT_OUT = ("n", "stream_options", "logprobs", "top_logprobs", "stop")


class _Asked(msgspec.Struct, frozen=True):
    """The last request of a conversation."""

    call: EngineCall
    prompt: bytes
    """Names it among the claims of other turns."""
    prompt_tokens: int


class Prewarmer:
    """:meth:`run` until cancelled. Holds requests only of agents whose policy asks for it."""

    def __init__(self, engine: Engine, admission: Admission, every_s: float = EVERY_S) -> None:
        self._engine = engine
        self._admission = admission
        self._every_s = every_s
        self._asked: OrderedDict[str, _Asked] = OrderedDict()
        self._bytes = 0
        self.fetched = 0
        """Conversations brought back since the start."""
        self.broken_off = 0
        """Fetches that made way for a turn."""

    def on_answered(self, turn: TurnArrived, call: EngineCall, answer: Answer, counted_tokens: int) -> Left | None:
        """What a turn has left, for its lease; ``None`` if it was not answered. ``call``: what the engine was sent."""
        if not answer.ended_well or turn.context is None:
            return None
        usage = answer.usage
        prompt_tokens = counted_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        written = usage.completion_tokens
        if written is None:
            written = answer.generated_bytes // _BYTES_PER_TOKEN
        if turn.share.prewarm and self._engine.capabilities.abort_keeps_prefix and call.endpoint is Endpoint.CHAT:
            self._keep(turn.context, _Asked(call, turn.prompt, prompt_tokens))
        return Left(tokens=prompt_tokens + written, cached_tokens=usage.cached_tokens, tool=answer.tool)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._look()
            except GovernorError as error:
                log.info("a conversation was not fetched back: %s", error.message)
            except Exception:
                log.exception("a conversation could not be fetched back")

    async def _look(self) -> None:
        rest = self._admission.to_fetch(self._asked)
        if rest is not None:
            await self._fetch(rest, self._asked[rest.context])

    async def _fetch(self, rest: Rest, asked: _Asked) -> None:
        turn_id = TurnId("t-" + secrets.token_hex(8))
        claim = Claim(
            turn_id=turn_id,
            agent=rest.agent,
            segments=(Segment(asked.prompt, asked.prompt_tokens),),
            output_tokens=1,
        )
        turn = TurnArrived(
            turn_id=turn_id,
            agent=rest.agent,
            agent_class=AgentClass.BACKGROUND,
            kind=TurnKind.BACKGROUND,
            limits=FETCH_LIMITS,
            slices=SlicePolicy(enabled=False),
            claim=claim,
            context=rest.context,
            prefix_tokens=asked.prompt_tokens,
            fetches=True,
        )
        async with self._admission.lease(turn, lambda _reason: None) as lease:
            work = asyncio.create_task(self._ask(self._again(asked.call, turn_id)))
            wanted = asyncio.create_task(lease.asked_to_pause.wait())
            try:
                await asyncio.wait({work, wanted}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    self.broken_off += 1
                    return
                await work
                self.fetched += 1
                lease.left = Left(tokens=asked.prompt_tokens)
            finally:
                for task in (work, wanted):
                    task.cancel()
                await asyncio.gather(work, wanted, return_exceptions=True)

    async def _ask(self, call: EngineCall) -> None:
        """Raises :class:`~governor.errors.UpstreamError`."""
        async with self._engine.open(call) as answer:
            async for _ in answer.chunks():
                pass
            if answer.status != 200:
                raise UpstreamError(f"The engine answered {answer.status}.")

    def _again(self, call: EngineCall, turn_id: TurnId) -> EngineCall:
        """The same prompt, for one token, behind everybody else's."""
        can = self._engine.capabilities
        facts = TurnFacts(turn_id=turn_id, agent_class=AgentClass.BACKGROUND)
        fields: dict[str, bytes | None] = dict.fromkeys((*can.output_cap_fields, *can.shadow_cap_fields, *_LEFT_OUT))
        fields |= {can.output_cap_fields[0]: b"1", "stream": b"false"}
        fields |= {
            name: msgspec.json.encode(value) for name, value in can.request_additions(call.endpoint, facts).items()
        }
        return EngineCall(
            endpoint=call.endpoint,
            body=JsonObject(call.body).edited(fields),
            headers=call.headers,
            turn_id=turn_id,
        )

    def _keep(self, context: str, asked: _Asked) -> None:
        before = self._asked.pop(context, None)
        self._bytes += len(asked.call.body) - (len(before.call.body) if before else 0)
        self._asked[context] = asked
        while self._bytes > MOST_BYTES:
            self._bytes -= len(self._asked.popitem(last=False)[1].call.body)
