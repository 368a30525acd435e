"""From a request to a plan: what it is, where it belongs, how large it is, what it may write, what we change.

Deciding only; the one thing asked of the outside is an exact count, and only when the answer depends on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from governor.errors import ModelNotFound, NotFound
from governor.gateway.exact import exact_count
from governor.output.caps import CapDecision, decide_cap, effective_window, wanted_cap
from governor.output.edits import Edits, edit
from governor.output.kinds import turn_kind
from governor.policy.model import Policy
from governor.tokens.chain import Located, SessionIndex, client_session_id, digest_head, trace_id
from governor.tokens.counter import Counter
from governor.tokens.digests import MessageDigest, digest_message
from governor.tokens.model import PromptParts
from governor.types import AgentName, SessionId, TokenCount, TurnKind
from governor.wire.beginnings import Beginnings
from governor.wire.messages import text_of
from governor.wire.request import WITH_MESSAGES, GenerationRequest, parse
from serve.engine import Endpoint, Engine, ModelCard, TurnFacts

_MUCH_TEXT_BYTES = 32 * 1024
"""Takes a few milliseconds to count, exactly or not."""
_SURE_TOKENS, _SURE_SHARE = 256, 0.05
"""A lease may be larger than its turn by so much; beyond it memory would be kept from others by a guess."""


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn is and how large it is."""

    kind: TurnKind
    count: TokenCount
    window_tokens: int | None
    """Prompt + output this agent may use on this model."""


class TurnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything decided before the turn asks to run."""

    measure: Measure
    cap: CapDecision
    edits: Edits


def may_use(card: ModelCard, policy: Policy) -> bool:
    """Whether the policy allows the model; one without a list allows all."""
    return not policy.models or bool({card.id, *card.aliases} & set(policy.models))


def check_model(card: ModelCard, policy: Policy) -> None:
    """Raises :class:`ModelNotFound` when the agent's policy does not allow the model."""
    if not may_use(card, policy):
        allowed = ", ".join(policy.models)
        raise ModelNotFound(f"This agent may not use the model {card.id!r}. Allowed: {allowed}.", param="model")


class Planner:
    """Plans turns. One per governor; its session index and counter learn from every answer."""

    def __init__(
        self, engine: Engine, sessions: SessionIndex, counter: Counter, beginnings: Beginnings | None = None
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._counter = counter
        self._beginnings = beginnings or Beginnings()

    def check_endpoint(self, endpoint: Endpoint) -> None:
        """Raises :class:`NotFound` when the engine does not offer this route."""
        if endpoint not in self._engine.capabilities.endpoints:
            raise NotFound(f"The engine ({self._engine.name}) does not offer {endpoint.value}.")

    def read(self, agent: AgentName, endpoint: Endpoint, body: bytes) -> GenerationRequest:
        """Take a body apart; of one that goes on with another, what is new. Raises
        :class:`~governor.errors.BadRequest`."""
        return parse(endpoint, body, self._beginnings.find((agent, endpoint), body))

    def locate(
        self, agent: AgentName, request: GenerationRequest, prompt: PromptParts, headers: Mapping[str, str]
    ) -> Located:
        """Session and shape of the prompt; remembers it as sent."""
        first_user = next(
            (raw for raw, role in zip(request.messages, request.roles, strict=True) if role == "user"), None
        )
        leading_system = request.messages[0] if request.roles[:1] == ("system",) else None
        session = client_session_id(
            headers, request.cache_key, text_of(first_user), text_of(request.system or leading_system)
        )
        trace = trace_id(headers)
        head = _head(request, prompt)
        known = _known_digests(request)
        located = self._sessions.locate(
            agent, head, prompt.messages, session, tools=prompt.tools, trace=trace, digests=known
        )
        self._remember(agent, request, located)
        return located

    def _remember(self, agent: AgentName, request: GenerationRequest, located: Located) -> None:
        """For the next body that begins as this one does."""
        if request.endpoint in WITH_MESSAGES:
            messages, digests = request.messages, located.digests[-len(request.messages) :]
            key = (agent, request.endpoint)
            self._beginnings.note(key, request.json, messages, request.roles, digests, request.known)

    def locate_as_sent_on(
        self,
        agent: AgentName,
        request: GenerationRequest,
        prompt: PromptParts,
        session: SessionId,
        digests: Sequence[MessageDigest] = (),
    ) -> Located:
        """The same for a prompt that the engine is sent in place of the client's, in the client's session: such prompts
        are a line of their own. ``digests``: of its first messages, as far as they are known."""
        head = _head(request, prompt)
        name = sent_on_name(session)
        located = self._sessions.locate(
            agent, head, prompt.messages, name, tools=prompt.tools, apart=True, digests=digests
        )
        return msgspec.structs.replace(located, session_id=session)

    def room_tokens(self, request: GenerationRequest, card: ModelCard, policy: Policy) -> int | None:
        """Most tokens of a prompt that leaves its answer all that it may write; ``None``: the window is not known."""
        window = effective_window(card.window_tokens, policy)
        wanted, _ = wanted_cap(policy, turn_kind(request), request.requested_cap)
        return None if window is None else window - wanted

    async def measure(
        self,
        request: GenerationRequest,
        prompt: PromptParts,
        located: Located,
        card: ModelCard,
        policy: Policy,
        known: TokenCount | None = None,
        *,
        counted: TokenCount | None = None,
    ) -> Measure:
        """What the turn is and how large; asks the engine to count only when the cap depends on it, or when the guess
        is too wide to book memory by. ``known``: what will be sent in its place; ``counted``: :meth:`count` of this
        prompt, where that was done. Raises :class:`~governor.errors.BadRequest` where :meth:`plan` would."""
        kind = turn_kind(request)
        window = effective_window(card.window_tokens, policy)
        if known is not None:
            return Measure(kind=kind, count=known, window_tokens=window)
        count = await self.count(prompt, located) if counted is None else counted
        wanted, _ = wanted_cap(policy, kind, request.requested_cap)
        tight = window is not None and count.upper + wanted > window
        unsure = count.upper - count.tokens
        wide = self._engine.continuation is not None and unsure > max(_SURE_TOKENS, count.tokens * _SURE_SHARE)
        if (tight or wide) and not count.exact:
            count = await exact_count(self._engine, request, policy) or count
        return Measure(kind=kind, count=count, window_tokens=window)

    def plan(
        self, request: GenerationRequest, measure: Measure, policy: Policy, facts: TurnFacts | None = None
    ) -> TurnPlan:
        """Raises :class:`~governor.errors.ContextOverflow` when the prompt leaves no room for an answer."""
        cap = decide_cap(
            policy,
            measure.kind,
            requested=request.requested_cap,
            prompt=measure.count,
            window_tokens=measure.window_tokens,
            tools_usable=request.tools_usable,
        )
        edits = edit(request, cap, policy.request, self._engine.capabilities, policy.output.thinking, facts)
        return TurnPlan(measure=measure, cap=cap, edits=edits)

    async def count(self, prompt: PromptParts, located: Located) -> TokenCount:
        """Counted without the engine; in a thread, while other turns go on, where much of it was not counted before."""
        parts = msgspec.structs.replace(prompt, known=located.known, digests=located.digests)
        if sum(map(len, prompt.messages[located.shared_messages :])) < _MUCH_TEXT_BYTES:
            return self._counter.count(parts)
        return await asyncio.to_thread(self._counter.count, parts)

    def learn(self, located: Located, count: TokenCount, prompt_tokens: int) -> None:
        """The engine has reported what the prompt really was."""
        self._counter.learn(count, prompt_tokens)
        self._sessions.record(located, prompt_tokens=prompt_tokens)


def _head(request: GenerationRequest, prompt: PromptParts) -> bytes:
    """Each dialect and model is rendered in its own way."""
    return digest_head(f"{request.endpoint.value} {request.model}", prompt.tools)


def sent_on_name(session: SessionId) -> str:
    """The session id, as a client might give it, under which the engine's view of a session is kept."""
    return f"{session} as sent on"


def prompt_of(request: GenerationRequest) -> PromptParts:
    """The prompt as raw JSON, the system prompt first, wherever the dialect keeps it."""
    messages = request.messages
    return PromptParts(
        messages=messages if request.system is None else (bytes(request.system), *messages),
        tools=None if request.tools is None else bytes(request.tools),
    )


def _known_digests(request: GenerationRequest) -> tuple[MessageDigest, ...]:
    """Of the first messages of :func:`prompt_of` it."""
    known = () if request.known is None else request.known.digests
    return known if request.system is None else (digest_message(bytes(request.system)), *known)
