"""The Engine port: the only thing the governor knows about what generates tokens.

An adapter declares what its engine can do (:class:`Capabilities`); the governor degrades by capability, never by
name. Adapters translate every foreign exception into ``governor.errors`` at their edge, keeping the cause.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

import msgspec

from governor.types import AgentClass, TokenCount


class Endpoint(StrEnum):
    """Generating routes an engine may offer. The value is the path under the engine's base URL."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"


class TurnFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine may want to know of a turn beside its request."""

    turn_id: str
    agent_class: AgentClass = AgentClass.NORMAL
    session: str | None = None
    """The governor's name of the conversation."""


RequestAdditions = Callable[[Endpoint, TurnFacts], Mapping[str, str | int | bool]]
"""Pure: top-level fields of a request body to set, whatever the client wrote there."""


def nothing_to_add(_endpoint: Endpoint, _facts: TurnFacts) -> Mapping[str, str | int | bool]:
    """Of an engine that needs nothing beyond the request."""
    return {}


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do. Defaults are those of an unknown OpenAI-compatible server."""

    endpoints: frozenset[Endpoint] = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
    counts_prompts: bool = False
    """``count_prompt`` answers exactly."""
    usage_on_request: bool = True
    """Honours ``stream_options.include_usage``."""
    output_cap_fields: tuple[str, ...] = ("max_tokens", "max_completion_tokens")
    """Spellings of the output cap on chat that the engine obeys; the first is used when we write one."""
    shadow_cap_fields: tuple[str, ...] = ()
    """Further fields that would override the cap on this engine; never sent."""
    dropped_fields: frozenset[str] = frozenset({"priority"})
    """Top-level fields of clients that are left out, because this engine fails on them or because they would let one
    agent decide over others; each drop is reported."""
    request_additions: RequestAdditions = nothing_to_add
    """Fields that the adapter needs in a request; each is reported. They win over ``dropped_fields``."""
    thinking_budget_field: str | None = None
    """Chat field that bounds thinking in tokens; ``None`` if the engine has none."""
    token_ids: bool = False
    """Takes and returns token ids, so a decode can be continued exactly."""
    abort_keeps_prefix: bool = False
    tier_split: bool = False
    """Usage says which tier served the cached tokens."""
    tier_split_field: str | None = None
    """Boolean field of chat and text completions that asks for it; the governor takes the figures out of the answer
    again. ``None``: they come unasked."""
    kv_events: bool = False
    priorities: bool = False


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One served model."""

    id: str
    window_tokens: int | None = None
    """Prompt + output the engine will take, as it reports it; ``None`` if it does not tell."""
    aliases: tuple[str, ...] = ()
    """Other names the engine answers to."""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says about itself."""

    models: tuple[ModelCard, ...]
    version: str = "unknown"
    slots: int | None = None
    """Turns it decodes at once; ``None`` if unknown or unbounded."""


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A look at the engine now; ``None`` means that it does not tell."""

    running: int | None = None
    queued: int | None = None
    kv_used_tokens: int | None = None
    kv_capacity_tokens: int | None = None


class EngineCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request to the engine: these bytes, to this path. Only headers named here are sent."""

    endpoint: Endpoint
    body: bytes
    headers: Mapping[str, str] = {}
    turn_id: str = ""
    part: int = 0
    """Counts the pieces of a turn that is generated with pauses."""


class EngineAnswer(Protocol):
    """An answer whose head has arrived."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names. Describe the bytes that ``chunks`` yields: decoded bodies carry no content-encoding."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. May be iterated once.

        Raises :class:`~governor.errors.UpstreamCut` when it ends before its framing says so, and
        :class:`~governor.errors.UpstreamTimeout` when nothing arrives for too long.
        """
        ...


class TokenIds(msgspec.Struct, frozen=True):
    """What a generation was given and what it has written, as the engine's own tokens."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


class Continuation(Protocol):
    """How an engine that takes and returns token ids stops a chat and goes on with it exactly where it was."""

    def first(self, call: EngineCall) -> EngineCall:
        """The same call, whose stream tells its token ids before it ends, even when it is aborted. Pure."""
        ...

    def ids_in(self, event: bytes, data: bytes) -> TokenIds | None:
        """The ids, if this event of such a stream (its bytes, its data) carries them; it is no part of the answer.
        Pure."""
        ...

    def again(self, call: EngineCall) -> EngineCall:
        """The same call under another name, after one of which nothing is kept. Pure."""
        ...

    def next(self, call: EngineCall, ids: TokenIds, *, thinking: bool) -> EngineCall:
        """The call that goes on where ``ids`` end; they begin with the prompt of ``call``. What they have written
        counts towards its cap. ``thinking``: what follows is still reasoning. Pure; raises
        :class:`~governor.errors.BadRequest` when the cap leaves nothing to write."""
        ...

    async def abort(self, call: EngineCall) -> None:
        """End a generation now. Its stream, which is to be read on, ends in order with its ids and usage. May be
        repeated; raises nothing."""
        ...

    async def texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Tokens as text, special ones left out. Changes nothing. Raises :class:`~governor.errors.UpstreamError`."""
        ...

    async def tokens_of(self, text: str) -> tuple[int, ...]:
        """Text as tokens; a special token's name in it is that token. Changes nothing. Raises
        :class:`~governor.errors.UpstreamError`."""
        ...

    async def prompt_ids(self, body: bytes) -> tuple[int, ...]:
        """The prompt of a chat request, as the engine would render it. Changes nothing. Raises
        :class:`~governor.errors.UpstreamError`."""
        ...

    async def thinking_end(self) -> tuple[int, ...]:
        """What the model is given to end its reasoning and begin its answer; empty where it is not known to end it so.
        Changes nothing. Raises :class:`~governor.errors.UpstreamError`."""
        ...


class Engine(Protocol):
    """A thing that generates tokens. All methods may be called concurrently from one event loop."""

    @property
    def name(self) -> str:
        """Short, for people: ``llamacpp``, ``sglang``, ``upstream``."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def continuation(self) -> Continuation | None:
        """How to pause an answer and go on with it; ``None`` where the engine has no token ids to do it by."""
        ...

    def open(self, call: EngineCall) -> AbstractAsyncContextManager[EngineAnswer]:
        """Start a generation. Leaving the context closes the connection at once, which aborts the generation.

        Changes engine state; waits for the answer's head. Never retries. Raises
        :class:`~governor.errors.UpstreamUnavailable` when nothing was accepted (safe to repeat),
        :class:`~governor.errors.UpstreamCut` when the connection broke before the head,
        :class:`~governor.errors.UpstreamTimeout`.
        """
        ...

    async def describe(self) -> EngineInfo:
        """Ask the engine what it serves. Changes nothing. Raises :class:`~governor.errors.UpstreamError`."""
        ...

    async def is_ready(self) -> bool:
        """True when the engine answers cheaply (no generation). Changes nothing, raises nothing."""
        ...

    async def count_prompt(self, endpoint: Endpoint, body: bytes) -> TokenCount | None:
        """Exact prompt tokens of a request body as the engine would render it; ``None`` where it cannot tell.

        Changes nothing. Raises nothing: an engine that fails to count counts as one that cannot tell.
        """
        ...

    async def load(self) -> EngineLoad:
        """Changes nothing, raises nothing; unknown figures are ``None``."""
        ...

    async def aclose(self) -> None:
        """Close connections. May be repeated."""
        ...
