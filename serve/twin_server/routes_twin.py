"""Routes that SGLang does not have: faults on purpose, and a look into the model. Their paths begin with ``/twin``."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve.twin.tiers_model import BrokenBooks
from serve.twin_server.content import Content
from serve.twin_server.errors import json_response, malformed
from serve.twin_server.faults import Faults, read_faults
from serve.twin_server.service import TwinService


class TwinRoutes:
    """``PUT /twin/faults`` replaces all that are in force, ``GET /twin/state`` counts everything again."""

    def __init__(self, service: TwinService, faults: Faults, content: Content) -> None:
        self._service = service
        self._faults = faults
        self._content = content

    def routes(self) -> list[Route]:
        return [
            Route("/twin/faults", self._told, methods=["GET"]),
            Route("/twin/faults", self._replace, methods=["PUT"]),
            Route("/twin/state", self._state),
        ]

    async def _told(self, _request: Request) -> Response:
        return json_response(self._faults.all)

    async def _replace(self, request: Request) -> Response:
        try:
            faults = read_faults(await request.body())
        except msgspec.DecodeError as error:
            return malformed(str(error)).openai_response()
        self._faults.replace(faults)
        self._service.is_dead = self._faults.is_dead
        return await self._told(request)

    async def _state(self, _request: Request) -> Response:
        service = self._service
        tiers = service.engine.tiers
        try:
            tiers.check_integrity()
            self._content.check_integrity()
            broken = None
        except BrokenBooks as error:
            broken = str(error)
        tree = tiers.tree
        state = {
            "now_s": service.clock.now,
            "speed": service.clock.speed,
            "live_requests": service.live,
            "is_dead": service.is_dead,
            "load": service.published.load,
            "nodes": tree.nodes,
            "free_tokens": tree.free_tokens,
            "free_slots": tree.free_slots,
            "free_host_tokens": tree.free_host_tokens,
            "free_host_slots": tree.free_host_slots,
            "storage_tokens": tiers.storage.used_tokens,
            "content_tokens": self._content.kept_tokens,
            "broken_books": broken,
        }
        return json_response(state)
