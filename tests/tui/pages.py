"""The gateway's real state and events pages on a free port, over a snapshot and an event log that a test sets, and
beside them the pages of an agent and of the engine's log as the test wants them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from governor.context import ContextPage
from governor.errors import GovernorError, NotFound
from governor.events import EventLog
from governor.gateway.admin import AdminPages
from governor.gateway.metrics import Metrics
from governor.gateway.server import GatewayServer, bound_socket
from governor.pages import EngineLogPage, PolicyPage
from governor.settings import Secret
from governor.snapshot import Snapshot
from tui.client import Address

TOKEN = Secret("admin-token-of-the-tests")


class Pages:
    """What is served, and where. Assign ``snapshot`` to change it."""

    def __init__(self, url: str, snapshot: Snapshot, event_log: EventLog) -> None:
        self.url = url
        self.snapshot = snapshot
        self.events = event_log
        self.context: ContextPage | None = None
        self.policy: PolicyPage | None = None
        self.engine_log = EngineLogPage()
        self.server: GatewayServer | None = None

    def find(self) -> Address:
        return Address(self.url, TOKEN)

    def state(self) -> Snapshot:
        return self.snapshot

    async def of_agent(self, request: Request) -> Response:
        """Whatever agent is asked for."""
        page = self.context if request.url.path.endswith("/context") else self.policy
        if page is None:
            raise NotFound("There is no agent of this name.")
        return Response(msgspec.json.encode(page))

    async def of_engine(self, request: Request) -> Response:
        return Response(msgspec.json.encode(self.engine_log))

    def cut(self) -> None:
        """Reset every connection."""
        for connection in list(self.server.server_state.connections if self.server else ()):
            connection.transport.abort()


@asynccontextmanager
async def serving(snapshot: Snapshot, event_log: EventLog | None = None) -> AsyncIterator[Pages]:
    """Serve until the block is left."""
    bound = bound_socket("127.0.0.1", 0)
    pages = Pages(f"http://127.0.0.1:{bound.getsockname()[1]}", snapshot, event_log or EventLog())
    admin = AdminPages(TOKEN, pages.events, Metrics(), pages.state, lambda: None)
    routes = [
        Route("/governor/state", admin.state),
        Route("/governor/events", admin.events),
        Route("/governor/agents/{name:path}/context", pages.of_agent),
        Route("/governor/agents/{name:path}/policy", pages.of_agent),
        Route("/governor/engine/log", pages.of_engine),
    ]
    app = Starlette(routes=routes, exception_handlers={GovernorError: _refused})
    listening = asyncio.Event()
    server = GatewayServer(app, on_listening=listening.set, stop_within_s=2)
    pages.server = server
    running = asyncio.create_task(server.serve([bound]))
    try:
        async with asyncio.timeout(10):
            await listening.wait()
        yield pages
    finally:
        pages.events.close()
        server.should_exit = True
        await running


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, GovernorError):
        raise error
    return Response(error.body(), error.status)
