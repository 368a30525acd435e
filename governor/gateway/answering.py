"""From a planned turn to the end of its answer: a lease, the engine's stream, the relay."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial

import msgspec

from governor.clock import Clock
from governor.errors import ContextOverflow, UpstreamRefused, UpstreamUnavailable
from governor.gateway.bounds import LoopGuard, bounds_of
from governor.gateway.claims import claim_now, claim_of, context_name, prompt_name
from governor.gateway.clients import UsageTold
from governor.gateway.engine_watch import EngineWatch
from governor.gateway.history import Ask, History, Listener
from governor.gateway.losses import PrefixLosses
from governor.gateway.pausable import can_continue
from governor.gateway.pieces import Pausing, opened_in_pieces
from governor.gateway.planner import TurnPlan
from governor.gateway.prewarm import Prewarmer
from governor.gateway.recall import GoOn, Recalling
from governor.gateway.recalling import Recaller
from governor.gateway.relay import AnswerLimits, Relay
from governor.gateway.reply import Reply
from governor.gateway.residency import Followed, Residency
from governor.gateway.turn import Turn
from governor.policy.model import Policy
from governor.schedule.events import TurnArrived
from governor.schedule.loop import Admission, Lease
from governor.tokens.chain import Located
from governor.types import PromptShape
from governor.wire.answer import reader_for
from governor.wire.request import GenerationRequest
from serve.engine import Endpoint, Engine, EngineAnswer, EngineCall, TokenIds

_ATTEMPTS = 2
"""A turn that the engine did not even accept asks once more, after waiting for the engine to come back."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is ready to ask for its lease."""

    request: GenerationRequest
    """As the engine shall see it."""
    plan: TurnPlan
    policy: Policy
    located: Located
    """Of the prompt that the engine shall see."""
    call: EngineCall
    ask: Ask | None
    usage_told: UsageTold | None = None
    """What the client is told of usage, where that is not what the engine reports."""

    @property
    def known_tokens(self) -> int | None:
        """Of the prompt, what the engine has had before."""
        if self.ask is not None and self.ask.restored is not None:
            return self.ask.restored.known_tokens
        return self.located.known.prompt_tokens if self.located.known else None


class Answering:
    """One per governor."""

    def __init__(
        self,
        engine: Engine,
        watch: EngineWatch,
        admission: Admission,
        history: History,
        prewarmer: Prewarmer,
        residency: Residency,
        losses: PrefixLosses,
        recaller: Recaller,
        clock: Clock,
        limits: AnswerLimits,
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._admission = admission
        self._history = history
        self._prewarmer = prewarmer
        self._residency = residency
        self._recaller = recaller
        self._losses = losses
        self._clock = clock
        self._limits = limits

    async def run(self, turn: Turn, reply: Reply, planned: Planned) -> None:
        """Wait for a lease and relay; once more if the engine was not there to accept the turn."""
        request, plan, policy, located = planned.request, planned.plan, planned.policy, planned.located
        call, ask = planned.call, planned.ask
        in_pieces = can_continue(self._engine, request)
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
            prefix_tokens=planned.known_tokens or 0,
        )
        for attempt in range(1, _ATTEMPTS + 1):
            async with self._admission.lease(arrival, turn.on_queued) as lease:
                turn.on_granted((turn.queued_s or 0.0) + lease.waited_s)
                followed = self._residency.on_granted(turn.agent, located)
                lease.confirmed = False  # until the engine's answer has come to its end
                need = partial(claim_now, claim, policy, plan.cap.tokens)
                bounds = bounds_of(policy.output, self._engine.capabilities) if in_pieces else None
                pausing, guard = None, None
                listener = self._history.listener(ask, turn.flags) if ask else None
                if pauses or bounds is not None or listener is not None:
                    pausing = Pausing(
                        lease=lease,
                        listener=turn,
                        clock=self._clock,
                        claim_now=need,
                        bounds=bounds,
                        on_ids=partial(_told, listener, followed),
                    )
                    if not request.stream and "stream" not in turn.edits:
                        turn.edits = (*turn.edits, "stream")
                elif not in_pieces:
                    guard = self._guard(turn, request, policy, call)
                try:
                    opened = self._open(call, request, pausing)
                    if turn.offers_recall:
                        recalling = Recalling(
                            turn=turn,
                            lease=lease,
                            plan=plan,
                            policy=policy,
                            call=call,
                            claim=claim,
                            pauses=pauses,
                            open=partial(self._open_again, request, policy, pausing),
                            on_hidden=listener.forgo if listener else _nothing_to_do,
                        )
                        opened = self._recaller.answered(opened, recalling)
                    if listener is not None:
                        opened = listener.heard(opened)
                    await self.relay(turn, reply, request, plan, opened, guard, lease, planned.usage_told)
                    return
                except (UpstreamRefused, ContextOverflow):
                    lease.confirmed = True
                    if ask is not None:
                        self._history.forget(ask)
                    raise
                except UpstreamUnavailable:
                    lease.confirmed = True
                    self._watch.on_unavailable()
                    if attempt == _ATTEMPTS:
                        raise
                finally:
                    self._losses.on_ended(turn, located, request.messages, planned.known_tokens, followed)
                    followed.on_ended(turn.usage(), well=turn.answer.ended_well)
                    lease.confirmed = lease.confirmed or turn.answer.ended_well
                    lease.left = self._prewarmer.on_answered(arrival, call, turn.answer, plan.measure.count.tokens)

    def _guard(self, turn: Turn, request: GenerationRequest, policy: Policy, call: EngineCall) -> LoopGuard | None:
        """For an answer that is one generation, and a stream: of a whole one nothing is seen before its end."""
        guarded = request.stream and request.choices == 1 and call.endpoint in {Endpoint.CHAT, Endpoint.COMPLETIONS}
        if not guarded or not policy.output.loop_chars:
            return None
        continuation = self._engine.continuation
        abort = None if continuation is None else partial(continuation.abort, call)
        return LoopGuard(policy.output.loop_chars, turn.note, abort)

    def _open(
        self, call: EngineCall, request: GenerationRequest, pausing: Pausing | None
    ) -> AbstractAsyncContextManager[EngineAnswer]:
        engine = self._engine
        if pausing is None or engine.continuation is None:
            return engine.open(call)
        return opened_in_pieces(engine, engine.continuation, call, pausing, whole=not request.stream)

    def _open_again(
        self, request: GenerationRequest, policy: Policy, pausing: Pausing | None, on: GoOn
    ) -> AbstractAsyncContextManager[EngineAnswer]:
        """A generation behind what the model has recalled. Nobody is told its tokens: the client's next prompt does not
        have them."""
        if pausing is not None:
            bounds = None if pausing.bounds is None else bounds_of(policy.output, self._engine.capabilities)
            need = partial(claim_now, on.claim, policy, on.cap_tokens)
            pausing = msgspec.structs.replace(pausing, claim_now=need, bounds=bounds, on_ids=None)
        return self._open(on.call, request, pausing)

    async def relay(
        self,
        turn: Turn,
        reply: Reply,
        request: GenerationRequest,
        plan: TurnPlan | None,
        opened: AbstractAsyncContextManager[EngineAnswer],
        guard: LoopGuard | None = None,
        lease: Lease | None = None,
        usage_told: UsageTold | None = None,
    ) -> None:
        """From the engine to the client, read alongside. ``plan``: ``None`` where nothing is generated."""
        reader = reader_for(request.endpoint) if guard is None else guard.reader
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
            self._clock,
            self._limits,
            strip_usage=not request.wants_usage,
            strip_tiers=plan is not None and plan.edits.asks_tiers,
            overflow=overflow,
            on_first_token=on_first_token,
            guard=guard,
            usage_told=usage_told,
        )
        async with opened as answer:
            await relay.run(answer)


def _nothing_to_do() -> None:
    pass


def _told(listener: Listener | None, followed: Followed, ids: TokenIds) -> None:
    """A generation's tokens, to all who want them."""
    followed.on_ids(ids)
    if listener is not None:
        listener.on_ids(ids)
