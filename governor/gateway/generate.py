"""The routes that generate: one request, one turn, from the door to the last byte.

The way of a request: authenticate -> read the body -> open the turn -> parse -> plan -> wait for a lease -> relay the
engine's answer -> close. If the client leaves, the work is cancelled wherever it is, which closes the engine's
connection, the lease and the turn, in that order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import msgspec

from governor.clock import Clock
from governor.errors import ContextOverflow, GovernorError, InternalError, UpstreamRefused, UpstreamUnavailable
from governor.gateway.auth import Authenticator, authenticated_agent
from governor.gateway.body import BodyLimits, ClientLeft, read_json_body
from governor.gateway.bounds import LoopGuard, bounds_of
from governor.gateway.claims import claim_now, claim_of, context_name, prompt_name
from governor.gateway.engine_watch import EngineWatch
from governor.gateway.history import Ask, History, Listener, Restored
from governor.gateway.http import Receive, Scope, Send, headers_of
from governor.gateway.pausable import can_continue
from governor.gateway.pieces import Pausing, opened_in_pieces
from governor.gateway.planner import Planner, TurnPlan, check_model, prompt_of
from governor.gateway.prewarm import Prewarmer
from governor.gateway.relay import AnswerLimits, Relay
from governor.gateway.reply import Reply
from governor.gateway.sight import ServedShare
from governor.gateway.turn import Turn, TurnBook
from governor.policy.loader import PolicyStore
from governor.policy.model import Policy
from governor.redact import Redactor
from governor.schedule.events import TurnArrived
from governor.schedule.loop import Admission, Lease
from governor.tokens.chain import Located
from governor.types import AgentName, PromptShape
from governor.wire.answer import reader_for
from governor.wire.request import GenerationRequest, parse
from serve.engine import Endpoint, Engine, EngineAnswer, EngineCall, ModelCard, TurnFacts

log = logging.getLogger(__name__)

_FORWARDED_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta", "traceparent")
_ATTEMPTS = 2
"""A turn that the engine did not even accept asks once more, after waiting for the engine to come back."""
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
    history: History
    admission: Admission
    prewarmer: Prewarmer
    served: ServedShare
    book: TurnBook
    clock: Clock
    body_limits: BodyLimits
    answer_limits: AnswerLimits
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
        request = parse(self._endpoint, body)
        turn.model, turn.stream, turn.message_count = request.model, request.stream, len(request.messages)
        policy = s.policies.policy_for(turn.agent).policy
        if not s.watch.models:  # the first engine is still on its way
            turn.on_queued(_NOT_READY)
            s.admission.tell_held(turn.turn_id, turn.agent, _NOT_READY)
            async with reply.kept_alive(policy.stream, request.model, enabled=request.stream):
                await s.watch.wait_until_met(policy.limits.hold_s)
        card = s.watch.model(request.model)
        check_model(card, policy)
        if self._endpoint is Endpoint.COUNT_TOKENS:
            count = s.engine.open(self._call(turn, request.json.body, headers))
            await self._relay(turn, reply, request, None, count)
            return
        prompt = prompt_of(request)
        turn.located = located = s.planner.locate(turn.agent, request, prompt, headers)
        ask = await self._ask(turn, request, located, card, policy)
        restored = ask.restored if ask else None
        known = restored.count if restored else None
        turn.measure = await s.planner.measure(request, prompt, located, card, policy, known)
        facts = TurnFacts(turn_id=turn.turn_id, agent_class=policy.agent_class, session=located.session_id)
        plan = s.planner.plan(request, turn.measure, policy, facts)
        turn.cap = plan.cap
        turn.edits = (*plan.edits.changed, *(f"-{name}" for name in plan.edits.dropped))
        turn.tiers_asked = plan.edits.asks_tiers
        _announce(reply, plan)
        call = self._call(turn, plan.edits.body, headers)
        if restored is not None and s.engine.continuation is not None:
            turn.edits = (*turn.edits, restored.edit)
            call = restored.applied(s.engine.continuation, call)
        try:
            async with reply.kept_alive(policy.stream, request.model, enabled=request.stream):
                await self._run(turn, reply, request, plan, policy, located, call, ask)
        finally:
            # Many clients close on the last event, which cancels this task before it has returned.
            usage = turn.answer.usage
            known_tokens = _known_tokens(located, restored)
            if restored is None and usage.prompt_tokens is not None:  # else it tells nothing of the client's messages
                s.planner.learn(located, plan.measure.count, usage.prompt_tokens)
            if known_tokens is not None and usage.cached_tokens is not None:
                s.served.note(known_tokens, usage.cached_tokens)

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

    async def _run(
        self,
        turn: Turn,
        reply: Reply,
        request: GenerationRequest,
        plan: TurnPlan,
        policy: Policy,
        located: Located,
        call: EngineCall,
        ask: Ask | None,
    ) -> None:
        """Wait for a lease and relay; once more if the engine was not there to accept the turn."""
        s = self._services
        in_pieces = can_continue(s.engine, request)
        pauses = in_pieces and policy.slices.enabled
        claim = claim_of(
            turn.turn_id,
            turn.agent,
            plan.measure,
            located,
            policy,
            output_cap=plan.cap.tokens,
            choices=request.choices,
            pauses=pauses,
        )
        arrival = TurnArrived(
            turn_id=turn.turn_id,
            agent=turn.agent,
            agent_class=policy.agent_class,
            kind=plan.measure.kind,
            limits=policy.limits,
            share=policy.share,
            slices=policy.slices if pauses else msgspec.structs.replace(policy.slices, enabled=False),
            claim=claim,
            session=located.session_id if located.shape is PromptShape.CONTINUATION else None,
            prompt=prompt_name(turn.agent, located),
            context=context_name(turn.agent, located),
            prefix_tokens=_known_tokens(located, ask.restored if ask else None) or 0,
        )
        for attempt in range(1, _ATTEMPTS + 1):
            async with s.admission.lease(arrival, turn.on_queued) as lease:
                turn.on_granted((turn.queued_s or 0.0) + lease.waited_s)
                lease.confirmed = False  # until the engine's answer has come to its end
                need = partial(claim_now, claim, policy, plan.cap.tokens)
                bounds = bounds_of(policy.output, s.engine.capabilities) if in_pieces else None
                pausing, guard = None, None
                listener = s.history.listener(ask, turn.flags) if ask else None
                if pauses or bounds is not None or listener is not None:
                    on_ids = listener.on_ids if listener else None
                    pausing = Pausing(
                        lease=lease, listener=turn, clock=s.clock, claim_now=need, bounds=bounds, on_ids=on_ids
                    )
                    if not request.stream and "stream" not in turn.edits:
                        turn.edits = (*turn.edits, "stream")
                elif not in_pieces:
                    guard = self._guard(turn, request, policy, call)
                try:
                    opened = self._open(call, request, pausing, listener)
                    await self._relay(turn, reply, request, plan, opened, guard, lease)
                    return
                except (UpstreamRefused, ContextOverflow):
                    lease.confirmed = True
                    if ask is not None:
                        s.history.forget(ask)
                    raise
                except UpstreamUnavailable:
                    lease.confirmed = True
                    s.watch.on_unavailable()
                    if attempt == _ATTEMPTS:
                        raise
                finally:
                    lease.confirmed = lease.confirmed or turn.answer.ended_well
                    lease.left = s.prewarmer.on_answered(arrival, call, turn.answer, plan.measure.count.tokens)

    def _guard(self, turn: Turn, request: GenerationRequest, policy: Policy, call: EngineCall) -> LoopGuard | None:
        """For an answer that is one generation, and a stream: of a whole one nothing is seen before its end."""
        guarded = request.stream and request.choices == 1 and self._endpoint in {Endpoint.CHAT, Endpoint.COMPLETIONS}
        if not guarded or not policy.output.loop_chars:
            return None
        continuation = self._services.engine.continuation
        abort = None if continuation is None else partial(continuation.abort, call)
        return LoopGuard(policy.output.loop_chars, turn.note, abort)

    def _open(
        self, call: EngineCall, request: GenerationRequest, pausing: Pausing | None, listener: Listener | None
    ) -> AbstractAsyncContextManager[EngineAnswer]:
        engine = self._services.engine
        if pausing is None or engine.continuation is None:
            return engine.open(call)
        opened = opened_in_pieces(engine, engine.continuation, call, pausing, whole=not request.stream)
        return opened if listener is None else listener.heard(opened)

    async def _relay(
        self,
        turn: Turn,
        reply: Reply,
        request: GenerationRequest,
        plan: TurnPlan | None,
        opened: AbstractAsyncContextManager[EngineAnswer],
        guard: LoopGuard | None = None,
        lease: Lease | None = None,
    ) -> None:
        reader = reader_for(self._endpoint) if guard is None else guard.reader
        turn.answer = reader.answer

        def overflow(engine_message: str) -> ContextOverflow | None:
            window = plan.measure.window_tokens if plan else None
            if plan is None or window is None:
                return None
            detail = f"(The engine said: {engine_message})"
            return ContextOverflow(
                prompt_tokens=plan.measure.count.tokens,
                window_tokens=window,
                reserve_tokens=plan.cap.tokens,
                detail=detail,
            )

        def on_first_token() -> None:
            turn.on_first_token()
            if lease is not None:
                lease.on_started()

        relay = Relay(
            reply,
            reader,
            self._services.clock,
            self._services.answer_limits,
            strip_usage=not request.wants_usage,
            strip_tiers=plan is not None and plan.edits.asks_tiers,
            overflow=overflow,
            on_first_token=on_first_token,
            guard=guard,
        )
        async with opened as answer:
            await relay.run(answer)


def _known_tokens(located: Located, restored: Restored | None) -> int | None:
    """Of the prompt, what the engine has had before."""
    if restored is not None:
        return restored.known_tokens
    return located.known.prompt_tokens if located.known else None


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
