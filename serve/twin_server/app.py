"""The twin as one HTTP application: its parts, put together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from serve.twin.engine import TwinEngine
from serve.twin.machine import Machine
from serve.twin.tiers_observer import Observers
from serve.twin.tiers_storage import Storage
from serve.twin_server.clock import ScaledClock
from serve.twin_server.content import Content
from serve.twin_server.errors import Refused, json_response
from serve.twin_server.faults import Faults
from serve.twin_server.feeds import Feeds
from serve.twin_server.forgetting import Forgetting
from serve.twin_server.generator import Generator
from serve.twin_server.info import Identity
from serve.twin_server.metrics import TwinMetrics
from serve.twin_server.planner import Planner
from serve.twin_server.prober import Prober
from serve.twin_server.routes_chat import ChatRoutes
from serve.twin_server.routes_control import ControlRoutes
from serve.twin_server.routes_info import InfoRoutes
from serve.twin_server.routes_messages import MessagesRoutes
from serve.twin_server.routes_text import TextRoutes
from serve.twin_server.routes_tokens import TokenRoutes
from serve.twin_server.routes_twin import TwinRoutes
from serve.twin_server.script import Script
from serve.twin_server.service import TwinService
from serve.twin_server.settings import TwinServerSettings
from serve.twin_server.tier_counters import TierCounters
from serve.twin_server.wishes import AnswerSettings

_log = logging.getLogger(__name__)


async def _no_such_route(_request: Request, error: HTTPException) -> Response:
    """As FastAPI, which SGLang's routes are made with."""
    return json_response({"detail": error.detail}, error.status_code)


async def _failed(_request: Request, error: Exception) -> Response:
    """An error of this program, whose traceback the server logs; SGLang says so in its envelope."""
    return Refused(500, f"Internal server error: {error}", "InternalServerError").openai_response()


class TwinServer:
    """``app`` serves while its lifespan is open, as uvicorn does by itself."""

    def __init__(
        self,
        machine: Machine,
        settings: TwinServerSettings,
        *,
        script: Script | None = None,
        storage: Storage | None = None,
        content: Content | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``storage`` and ``content``: an earlier twin's, whose L3 this one finds. ``monotonic``: the wall's clock.
        Raises :class:`OSError` where the plugin's socket cannot be had."""
        self.on_failed: Callable[[], None] = lambda: None
        """Called when the engine model has failed: nothing will be answered any more."""
        self.faults = Faults(script.faults if script is not None else ())
        self.identity = Identity(machine, settings)
        self.content = content or Content(machine.engine.tiers.page_tokens)
        counters = TierCounters()
        self._feeds = Feeds(
            machine.engine.tiers,
            self.content,
            self.identity.model,
            kv_events_endpoint=settings.kv_events_endpoint,
            kv_replay_endpoint=settings.kv_replay_endpoint,
            plugin_socket=settings.plugin_socket,
            loses_batch=self.faults.on_kv_batch,
        )
        observer = Observers(counters, self._feeds)
        self.engine = TwinEngine(machine.engine, machine.cost, storage, observer)
        self.service = TwinService(self.engine, ScaledClock(settings.speed, monotonic), self.faults)
        self.service.listeners += [self._feeds, Forgetting(self.content, self.engine.tiers)]
        planner = Planner(self.identity, self.content, AnswerSettings(seed=settings.seed), script)
        generator = Generator(self.identity, planner, self.service, self.faults)
        chat = ChatRoutes(generator)
        parts = (
            InfoRoutes(
                self.identity,
                self.service,
                TwinMetrics(self.identity, self.service, counters),
                Prober(self.service, planner, self.faults, settings.health_check_s),
            ),
            ControlRoutes(self.service),
            chat,
            MessagesRoutes(chat, generator),
            TextRoutes(generator),
            TokenRoutes(planner),
            TwinRoutes(self.service, self.faults, self.content),
        )
        routes = [route for part in parts for route in part.routes()]
        handlers: Mapping[Any, Any] = {HTTPException: _no_such_route, Exception: _failed}
        self.app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)

    @property
    def loads_s(self) -> float:
        """Seconds of the wall before it is to listen: a fault makes the start slow."""
        return self.service.clock.wall_s(self.faults.not_ready_s)

    def _over(self, running: asyncio.Task[None]) -> None:
        """A scheduler that has crashed takes the server with it, as SGLang's does."""
        if not running.cancelled() and (error := running.exception()) is not None:
            _log.error("the engine model has failed", exc_info=error)
            self.on_failed()

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with self._feeds.open():
            running = asyncio.create_task(self.service.run())
            running.add_done_callback(self._over)
            try:
                yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
