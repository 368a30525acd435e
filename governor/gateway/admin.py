"""Pages for the owner and his tools: health, readiness, metrics, state, live events. None of them generates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from governor.errors import BadRequest
from governor.events import EventLog, Numbered
from governor.gateway.auth import Authenticator, authenticated_agent, check_admin
from governor.gateway.engine_watch import SMALLEST_ADVERTISED_WINDOW, EngineWatch
from governor.gateway.http import EVENT_STREAM, JSON, headers_of
from governor.gateway.metrics import Metrics
from governor.gateway.planner import check_model, may_use
from governor.policy.loader import PolicyStore
from governor.policy.model import CompressionMode, Policy
from governor.schedule.events import EngineMode
from governor.settings import Secret
from governor.snapshot import Snapshot
from governor.types import AgentName
from governor.wire import sse
from serve.engine import ModelCard

_PING_EVERY_S = 15.0
_HOLD_MODELS_S = 10.0
"""A client that starts with its engine asks for models first; an empty list would send it away."""
_NO_STORE = {"cache-control": "no-store"}


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, _NO_STORE, JSON)


class HealthPages:
    """``/health``: this process is alive. ``/ready``: the engine takes turns (503 with the reason if not)."""

    def __init__(self, watch: EngineWatch) -> None:
        self._watch = watch

    async def health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        ready = self._watch.mode is EngineMode.READY
        body = {"ready": ready, "engine": self._watch.mode.value, "detail": self._watch.view().detail}
        return _json(body, 200 if ready else 503)


class ModelPages:
    """``/v1/models`` and ``/v1/models/{id}``. An agent sees the models that its policy allows."""

    def __init__(
        self,
        watch: EngineWatch,
        agents: Authenticator,
        policies: PolicyStore,
        loopback_agent: AgentName | None,
        started_at: float,
    ) -> None:
        self._watch = watch
        self._agents = agents
        self._policies = policies
        self._loopback_agent = loopback_agent
        self._created = int(started_at)

    async def listing(self, request: Request) -> Response:
        policy = self._policy(request)
        await self._watch.wait_until_met(_HOLD_MODELS_S)
        cards = [card for card in self._watch.models if may_use(card, policy)]
        return _json({"object": "list", "data": [self._card(card, policy) for card in cards]})

    async def one(self, request: Request) -> Response:
        policy = self._policy(request)
        await self._watch.wait_until_met(_HOLD_MODELS_S)
        card = self._watch.model(request.path_params["model"])
        check_model(card, policy)
        return _json(self._card(card, policy))

    def _policy(self, request: Request) -> Policy:
        agent = authenticated_agent(headers_of(request.scope), self._agents, self._loopback_agent)
        return self._policies.policy_for(agent).policy

    def _card(self, card: ModelCard, policy: Policy) -> dict[str, object]:
        """The real window stands under ``governor``, where no client looks; small ones are not advertised. A client
        whose prompts are made shorter here may be told of a larger one, so that it does not do so itself."""
        body: dict[str, object] = {"id": card.id, "object": "model", "created": self._created, "owned_by": "governor"}
        window = card.window_tokens
        if policy.compression.mode is CompressionMode.ENFORCE and policy.compression.client_window is not None:
            body["max_model_len"] = policy.compression.client_window
        elif window is not None and window >= SMALLEST_ADVERTISED_WINDOW:
            body["max_model_len"] = window
        return body | {"governor": {"window_tokens": window}}


class AdminPages:
    """``/metrics``, ``/governor/state`` and ``/governor/events``."""

    def __init__(
        self,
        token: Secret,
        event_log: EventLog,
        metrics: Metrics,
        snapshot: Callable[[], Snapshot],
        refresh_metrics: Callable[[], None],
    ) -> None:
        self._token = token
        self._events = event_log
        self._metrics = metrics
        self._snapshot = snapshot
        self._refresh_metrics = refresh_metrics

    async def metrics(self, request: Request) -> Response:
        """Open to whoever may speak to the port: it has names of agents, but no words of theirs."""
        self._refresh_metrics()
        return Response(self._metrics.page(), headers=_NO_STORE, media_type=CONTENT_TYPE_LATEST)

    async def state(self, request: Request) -> Response:
        check_admin(headers_of(request.scope), self._token)
        return _json(self._snapshot())

    async def events(self, request: Request) -> Response:
        """Events as SSE, from ``Last-Event-ID`` on, or from now on without one."""
        headers = headers_of(request.scope)
        check_admin(headers, self._token)
        wanted = headers.get("last-event-id")
        if wanted is not None and not wanted.isdecimal():
            raise BadRequest("Last-Event-ID must be a number.", param="last-event-id")
        last_seen = int(wanted) if wanted is not None else self._events.last_id
        return StreamingResponse(self._stream(last_seen), headers=_NO_STORE, media_type=EVENT_STREAM)

    async def _stream(self, last_seen: int) -> AsyncIterator[bytes]:
        """Events as they come, and a comment when it is quiet; begins with one, so that the head is sent."""
        yield sse.KEEPALIVE_COMMENT
        with self._events.follower(last_seen) as follower:
            while (news := await follower.next(timeout_s=_PING_EVERY_S)) is not None:
                yield b"".join(map(_event, news)) or sse.KEEPALIVE_COMMENT


def _event(numbered: Numbered) -> bytes:
    return f"id: {numbered.id}\n".encode() + sse.encode(msgspec.json.encode(numbered.event))
