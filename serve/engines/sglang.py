"""SGLang's HTTP server. What it does, as seen, stands in ``docs/design/sglang.md``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import msgspec

from governor.errors import GovernorError, UpstreamError, UpstreamUnavailable
from governor.types import TokenCount
from governor.wire.jsonobject import JsonObject
from serve.engine import Capabilities, Endpoint, EngineCall, EngineInfo, EngineLoad, TurnFacts
from serve.engines.http import HttpAnswer, HttpEngine, translated
from serve.engines.openai_upstream import model_cards
from serve.engines.sglang_continuation import SglangContinuation
from serve.engines.sglang_fields import CLIENT_FIELDS_DROPPED, RID_FIELD, additions, asking_for_prompt, rid_of
from serve.profile.model import PriorityOrder

_FRESH_S = 5.0
"""A scheduler publishes its load after each batch, and once a second while it is idle."""
_GENERATE_PROBE_EVERY_S = 60.0
_GENERATE_PROBE_S = 25.0
"""The engine gives the probe up after 20 s (``SGLANG_HEALTH_CHECK_TIMEOUT``)."""


class Sglang(HttpEngine):
    """See :class:`serve.engine.Engine`. Priorities and sessions are used as far as the engine says it was started with
    them, so nothing of either is sent before :meth:`describe`."""

    def __init__(self, base_url: str, **options: Any) -> None:
        # uvicorn closes idle connections after 5 s; the pool drops them sooner.
        super().__init__("sglang", base_url, **options)
        self._order = PriorityOrder.OFF
        self._keeps_sessions = False
        self._aborts: set[asyncio.Task[None]] = set()
        self._probed_at: float | None = None
        self._probe_said = False
        self._continuation = SglangContinuation(self.ask, self.abort)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            endpoints=frozenset(Endpoint),
            counts_prompts=True,
            output_cap_fields=("max_completion_tokens", "max_tokens"),
            dropped_fields=CLIENT_FIELDS_DROPPED,
            request_additions=self._additions,
            token_ids=True,
            abort_keeps_prefix=True,
            tier_split=True,
            tier_split_field="return_cached_tokens_details",
            kv_events=True,
            priorities=self._order is not PriorityOrder.OFF,
        )

    @property
    def continuation(self) -> SglangContinuation:
        return self._continuation

    def _additions(self, endpoint: Endpoint, facts: TurnFacts) -> Mapping[str, str | int | bool]:
        return additions(endpoint, facts, self._order, self._keeps_sessions)

    @asynccontextmanager
    async def open(self, call: EngineCall) -> AsyncIterator[HttpAnswer]:
        """See :meth:`serve.engine.Engine.open`. A generation that has not ended is aborted by its name: the engine
        notices a closed connection seconds later, and holds its memory until then."""
        opened = False
        try:
            async with super().open(call) as answer:
                opened = True
                try:
                    yield answer
                finally:
                    if not answer.ended:
                        await self.abort(call)
        except UpstreamUnavailable:
            raise
        except (asyncio.CancelledError, UpstreamError):
            if not opened:  # it was accepted, and nobody waits for it any more
                await self.abort(call)
            raise

    async def abort(self, call: EngineCall) -> None:
        """End a generation now; what it has computed stays in the engine's cache. Its stream, if somebody still reads
        it, ends in order, with its usage and, if asked for, its token ids. Raises nothing.

        Requests with several choices and the Messages dialect have no name in the engine; they end with their
        connection.
        """
        if not call.turn_id or call.endpoint not in RID_FIELD:
            return
        sending = asyncio.create_task(self._send_abort(rid_of(call.endpoint, call.turn_id, call.part)))
        self._aborts.add(sending)
        sending.add_done_callback(self._aborts.discard)
        await asyncio.shield(sending)

    async def _send_abort(self, rid: str) -> None:
        with contextlib.suppress(GovernorError), translated(self.name):
            await self._client.post("/abort_request", json={"rid": rid}, timeout=self._timeouts.abort_s)

    async def describe(self) -> EngineInfo:
        """Also learns the direction of priorities and whether sessions are kept."""
        cards = model_cards(await self.ask("GET", "/v1/models"))
        server = _server_info(await self.ask("GET", "/server_info"))
        if not cards:
            raise UpstreamError("The engine (sglang) lists no model.")
        self._order = _order(server)
        self._keeps_sessions = server.enable_session_radix_cache
        return EngineInfo(models=cards, version=server.version, slots=server.slots)

    async def is_ready(self) -> bool:
        """Its HTTP process answers even when the scheduler behind it is dead, so what counts is that the scheduler has
        published its load lately. When it has not, one token is asked for, at most once a minute: such a probe waits
        for 20 s, and a scheduler in a long prefill cannot answer it either."""
        try:
            age_s = _load_age_s(await self.ask("GET", "/v1/loads?include=core"))
        except GovernorError:
            age_s = None
        if age_s is not None and age_s < _FRESH_S:
            self._probed_at = None
            return True
        now = time.monotonic()
        if self._probed_at is None or now - self._probed_at > _GENERATE_PROBE_EVERY_S:
            self._probed_at = now
            self._probe_said = await self.is_answering("/health_generate", _GENERATE_PROBE_S)
        return self._probe_said

    async def count_prompt(self, endpoint: Endpoint, body: bytes) -> TokenCount | None:
        try:
            match endpoint:
                case Endpoint.CHAT:
                    tokens = await self._count_chat(body)
                case Endpoint.COMPLETIONS:
                    tokens = await self._count_text(body)
                case Endpoint.MESSAGES:
                    answer = await self.ask("POST", Endpoint.COUNT_TOKENS.value, msgspec.Raw(body))
                    tokens = _field(answer, "input_tokens")
                case _:
                    return None
        except GovernorError:
            return None
        return TokenCount(tokens=tokens, source="engine") if type(tokens) is int else None

    async def _count_chat(self, body: bytes) -> Any:
        asked = msgspec.Raw(asking_for_prompt(body))
        return _field(await self.ask("POST", "/v1/tokenize", asked), "count")

    async def _count_text(self, body: bytes) -> Any:
        """One text, or one text in tokens. Several are several prompts, and are not counted."""
        prompt = msgspec.json.decode(JsonObject(body).raw("prompt") or b"null")
        if isinstance(prompt, str):
            return _field(await self.ask("POST", "/v1/tokenize", {"prompt": prompt}), "count")
        in_tokens = isinstance(prompt, list) and all(type(token) is int for token in prompt)
        return len(prompt) if in_tokens else None

    async def load(self) -> EngineLoad:
        try:
            ranks = _loads(await self.ask("GET", "/v1/loads?include=core")).loads
        except GovernorError:
            return EngineLoad()
        if not ranks:
            return EngineLoad()
        return EngineLoad(
            running=sum(rank.num_running_reqs for rank in ranks),
            queued=sum(rank.num_waiting_reqs for rank in ranks),
            kv_used_tokens=sum(rank.num_used_tokens for rank in ranks),
            kv_capacity_tokens=sum(rank.max_total_num_tokens for rank in ranks),
        )

    async def close_session(self, session: str) -> None:
        """The engine no longer prefers to keep what this session has cached. Raises nothing."""
        with contextlib.suppress(GovernorError), translated(self.name):
            await self._client.post("/close_session", json={"session_id": session}, timeout=self._timeouts.abort_s)

    async def aclose(self) -> None:
        await asyncio.gather(*self._aborts)
        await super().aclose()


class _InternalState(msgspec.Struct):
    effective_max_running_requests_per_dp: int | None = None


class _ServerInfo(msgspec.Struct):
    """What we read of several hundred settings."""

    version: str = "unknown"
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    enable_session_radix_cache: bool = False
    internal_states: list[_InternalState] = []

    @property
    def slots(self) -> int | None:
        limits = [state.effective_max_running_requests_per_dp for state in self.internal_states]
        known = [limit for limit in limits if limit is not None]
        return sum(known) or None


class _RankLoad(msgspec.Struct):
    """Of one data-parallel rank."""

    timestamp: float = 0.0
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_used_tokens: int = 0
    max_total_num_tokens: int = 0


class _Loads(msgspec.Struct):
    timestamp: datetime | None = None
    loads: list[_RankLoad] = []


def _server_info(answer: Any) -> _ServerInfo:
    try:
        return msgspec.convert(answer, _ServerInfo)
    except msgspec.ValidationError as error:
        raise UpstreamError(f"The engine (sglang) describes itself in an unknown way: {error}.") from error


def _order(server: _ServerInfo) -> PriorityOrder:
    if not server.enable_priority_scheduling:
        return PriorityOrder.OFF
    low_first = server.schedule_low_priority_values_first
    return PriorityOrder.LOWER_FIRST if low_first else PriorityOrder.HIGHER_FIRST


def _loads(answer: Any) -> _Loads:
    try:
        return msgspec.convert(answer, _Loads)
    except msgspec.ValidationError as error:
        raise UpstreamError(f"The engine (sglang) reports its load in an unknown way: {error}.") from error


def _load_age_s(answer: Any) -> float | None:
    """Seconds since the rank that is furthest behind has published, by the engine's own clock."""
    loads = _loads(answer)
    if loads.timestamp is None or not loads.loads:
        return None
    return loads.timestamp.timestamp() - min(rank.timestamp for rank in loads.loads)


def _field(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, dict) else None
