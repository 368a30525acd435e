"""The routes that generate: one request, one turn, from the door to the last byte.

The way of a request: authenticate -> read the body -> open the turn -> parse -> shape -> plan -> wait for a lease ->
relay the engine's answer -> close. If the client leaves, the work is cancelled wherever it is, which closes the
engine's connection, the lease and the turn, in that order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from governor.clock import Clock
from governor.errors import GovernorError, InternalError, UpstreamError, UpstreamUnavailable
from governor.gateway.answering import Answering, Planned
from governor.gateway.auth import Authenticator, authenticated_agent
from governor.gateway.body import BodyLimits, ClientLeft, read_json_body
from governor.gateway.clients import Clients, Watching
from governor.gateway.engine_watch import EngineWatch
from governor.gateway.history import Ask, History
from governor.gateway.http import Receive, Scope, Send, headers_of
from governor.gateway.pausable import can_continue
from governor.gateway.planner import Planner, TurnPlan, check_model, prompt_of
from governor.gateway.reply import Reply
from governor.gateway.shaped import Shaped
from governor.gateway.shaping import Shaping
from governor.gateway.sight import ServedShare
from governor.gateway.turn import Turn, TurnBook
from governor.output.caps import effective_window
from governor.policy.loader import PolicyStore
from governor.policy.model import Policy
from governor.redact import Redactor
from governor.schedule.loop import Admission
from governor.tokens.chain import Located
from governor.types import AgentName
from governor.wire.request import GenerationRequest
from serve.engine import Endpoint, Engine, EngineCall, ModelCard, TurnFacts

log = logging.getLogger(__name__)

_FORWARDED_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta", "traceparent")
_NOT_READY = "the engine is not ready yet"
_RESTART_S = 5
_LAST_WORDS_S = 1.0


class Services(msgspec.Struct, frozen=True):
    """What the generating routes work with; built in one place."""

    engine: Engine
    watch: EngineWatch
    agents: Authenticator
    policies: PolicyStore
    planner: Planner
    shaping: Shaping
    clients: Clients
    history: History
    admission: Admission
    answering: Answering
    served: ServedShare
    book: TurnBook
    clock: Clock
    body_limits: BodyLimits
    redactor: Redactor
    """Takes out what must never reach a client, whatever an engine echoes."""
    loopback_agent: AgentName | None = None


class GenerateRoute:
    """ASGI app of one generating endpoint."""

    def __init__(self, endpoint: Endpoint, services: Services) -> None:
        self._endpoint = endpoint
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        s = self._services
        headers = headers_of(scope)
        agent = authenticated_agent(headers, s.agents, s.loopback_agent)
        try:
            body = await read_json_body(receive, headers, s.body_limits)
        except ClientLeft:
            return
        except asyncio.CancelledError as error:
            raise _stopping() from error
        reply = Reply(send, self._endpoint, s.clock, s.redactor)
        turn = s.book.open(agent, self._endpoint.value, len(body))
        try:
            with turn:
                await _until_client_leaves(self._serve(turn, reply, body, headers), receive, turn, reply)
        except GovernorError:
            pass  # the client has been told, and the turn's row says why
        except asyncio.CancelledError:
            if not turn.client_gone and not reply.finished:
                raise

    async def _serve(self, turn: Turn, reply: Reply, body: bytes, headers: Mapping[str, str]) -> None:
        """Answer, or tell the client why not. What is raised decides the turn's end."""
        try:
            await self._answer(turn, reply, body, headers)
        except GovernorError as error:
            await reply.fail(error)
            raise
        except Exception as error:
            log.exception("turn %s failed", turn.turn_id)
            told = InternalError("The governor failed on this request; its log says how.")
            await reply.fail(told)
            raise told from error
        except asyncio.CancelledError:
            if not turn.client_gone:
                with contextlib.suppress(TimeoutError):  # a client that does not read does not delay the end
                    async with asyncio.timeout(_LAST_WORDS_S):
                        await reply.fail(_stopping())
            raise
        finally:
            turn.http_status, turn.response_bytes = reply.status, reply.bytes_sent

    async def _answer(self, turn: Turn, reply: Reply, body: bytes, headers: Mapping[str, str]) -> None:
        s = self._services
        reply.headers["x-governor-turn"] = turn.turn_id
        reply.place_in_line = partial(s.admission.place_in_line, turn.turn_id)
        s.planner.check_endpoint(self._endpoint)
        request = s.planner.read(turn.agent, self._endpoint, body)
        turn.model, turn.stream, turn.message_count = request.model, request.stream, len(request.messages)
        policy = s.policies.policy_for(turn.agent).policy
        async with reply.kept_alive(policy.stream, request.model, enabled=request.stream):
            if not s.watch.models:  # the first engine is still on its way
                turn.on_queued(_NOT_READY)
                s.admission.tell_held(turn.turn_id, turn.agent, _NOT_READY)
                await s.watch.wait_until_met(policy.limits.hold_s)
            card = s.watch.model(request.model)
            check_model(card, policy)
            if self._endpoint is Endpoint.COUNT_TOKENS:
                count = s.engine.open(self._call(turn, request.json.body, headers))
                await s.answering.relay(turn, reply, request, None, count)
                return
            await self._generate(turn, reply, request, card, policy, headers)

    async def _generate(
        self,
        turn: Turn,
        reply: Reply,
        as_sent: GenerationRequest,
        card: ModelCard,
        policy: Policy,
        headers: Mapping[str, str],
    ) -> None:
        s = self._services
        prompt = prompt_of(as_sent)
        turn.located = s.planner.locate(turn.agent, as_sent, prompt, headers)
        counted = await s.planner.count(prompt, turn.located)
        window = effective_window(card.window_tokens, policy)
        with s.clients.watching(turn, as_sent, turn.located, counted.tokens, policy.compression, window) as watching:
            sent = Shaped(request=as_sent, prompt=prompt, located=turn.located, estimate=counted)
            shaped = await s.shaping.shaped(turn, sent, watching.advice, card, policy)
            watching.is_as_sent = shaped.request.messages == as_sent.messages
            await self._shaped(turn, reply, shaped, watching, card, policy, headers)

    async def _shaped(
        self,
        turn: Turn,
        reply: Reply,
        shaped: Shaped,
        watching: Watching,
        card: ModelCard,
        policy: Policy,
        headers: Mapping[str, str],
    ) -> None:
        """Plan the prompt that the engine shall see, and have it answered."""
        s = self._services
        request, located = shaped.request, shaped.located
        turn.edits = shaped.edits
        ask = await self._ask(turn, request, located, card, policy)
        restored = ask.restored if ask else None
        known = restored.count if restored else shaped.count
        turn.measure = await s.planner.measure(
            request, shaped.prompt, located, card, policy, known, counted=shaped.estimate
        )
        facts = TurnFacts(turn_id=turn.turn_id, agent_class=policy.agent_class, session=located.session_id)
        plan = s.planner.plan(request, turn.measure, policy, facts)
        turn.cap = plan.cap
        turn.edits = (*shaped.edits, *plan.edits.changed, *(f"-{name}" for name in plan.edits.dropped))
        turn.tiers_asked = plan.edits.asks_tiers
        _announce(reply, plan)
        call = self._call(turn, plan.edits.body, headers)
        if restored is not None and s.engine.continuation is not None:
            watching.is_as_sent = False
            turn.edits = (*turn.edits, restored.edit)
            call = restored.applied(s.engine.continuation, call)
        planned = Planned(
            request=request, plan=plan, policy=policy, located=located, call=call, ask=ask, usage_told=watching.usage
        )
        try:
            await s.answering.run(turn, reply, planned)
        except UpstreamError as error:
            s.shaping.on_refused(shaped, error)
            raise
        finally:
            # Many clients close on the last event, which cancels this task before it has returned.
            usage, known_tokens = turn.answer.usage, planned.known_tokens
            if restored is None and usage.prompt_tokens is not None:  # else it tells nothing of the client's messages
                s.planner.learn(located, plan.measure.count, usage.prompt_tokens)
            if known_tokens is not None and usage.cached_tokens is not None:
                s.served.note(known_tokens, usage.cached_tokens)
            s.shaping.on_answered(turn, shaped, plan.measure.count, policy, plan.measure.window_tokens)

    async def _ask(
        self, turn: Turn, request: GenerationRequest, located: Located, card: ModelCard, policy: Policy
    ) -> Ask | None:
        """What the turn goes on from; ``None`` where its answer is not to be gone on from either."""
        s = self._services
        continuation = s.engine.continuation
        if continuation is None or not can_continue(s.engine, request):
            return None
        room_tokens = s.planner.room_tokens(request, card, policy)
        return await s.history.ask(
            turn.agent, request, located, policy.request, continuation, room_tokens=room_tokens, note=turn.note
        )

    def _call(self, turn: Turn, body: bytes, headers: Mapping[str, str]) -> EngineCall:
        passed = {name: headers[name] for name in _FORWARDED_HEADERS if name in headers}
        return EngineCall(endpoint=self._endpoint, body=body, headers=passed, turn_id=turn.turn_id)


def _stopping() -> UpstreamUnavailable:
    """For a client whose request the server cancels because the governor ends."""
    return UpstreamUnavailable("The governor is stopping.", retry_after_s=_RESTART_S)


def _announce(reply: Reply, plan: TurnPlan) -> None:
    """Say in headers what was changed."""
    cap = plan.cap
    if cap.requested != cap.tokens:
        asked = "none" if cap.requested is None else cap.requested
        reply.headers["x-governor-cap"] = f"{asked} -> {cap.tokens} ({cap.reason.value})"
    if plan.edits.dropped:
        reply.headers["x-governor-dropped"] = ", ".join(plan.edits.dropped)


async def _until_client_leaves(work: Coroutine[Any, Any, None], receive: Receive, turn: Turn, reply: Reply) -> None:
    """Run to the end, or cancel at once when the client closes. Returns only when the work has cleaned up.

    A server reports the end of a whole answer as a disconnect, too; that one cancels nothing.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and not reply.finished:
            turn.client_gone = True
            task.cancel()
        await task
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
