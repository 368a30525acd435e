"""Routes that tell the engine what to do beside generating."""

from __future__ import annotations

import uuid

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from serve.twin_server.asks import AbortAsk, body_of
from serve.twin_server.errors import BadRequest, json_response, malformed
from serve.twin_server.service import TwinService

_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class _Session(msgspec.Struct):
    session_id: str | None = None


class _Pause(msgspec.Struct):
    mode: str = "abort"


class ControlRoutes:
    """Aborts, flushes, pauses, and sessions, which are taken and keep nothing: the session radix cache is off."""

    def __init__(self, service: TwinService) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        either = ["GET", "POST"]
        return [
            Route("/abort_request", self._abort, methods=["POST"]),
            Route("/flush_cache", self._flush, methods=either),
            Route("/pause_generation", self._pause, methods=["POST"]),
            Route("/continue_generation", self._continue, methods=["POST"]),
            Route("/open_session", self._open_session, methods=either),
            Route("/close_session", self._close_session, methods=either),
        ]

    async def _abort(self, request: Request) -> Response:
        try:
            ask = await body_of(request, AbortAsk)
        except BadRequest as refused:
            return refused.openai_response()
        if ask.abort_all:
            self._service.abort_all()
        elif ask.rid:
            self._service.abort(ask.rid)
        return Response(status_code=200)

    async def _flush(self, request: Request) -> Response:
        try:
            patience_s = float(request.query_params.get("timeout", "0"))
        except ValueError:
            return malformed("Expected a number - at `query.timeout`").openai_response()
        if await self._service.flush(patience_s):
            return PlainTextResponse(_FLUSHED)
        return PlainTextResponse("Flush cache failed.\n", 400)

    async def _pause(self, request: Request) -> Response:
        """``in_place`` keeps everything where it is, ``abort`` ends it; ``retract`` is not modelled."""
        try:
            mode = (await body_of(request, _Pause)).mode
        except BadRequest as refused:
            return refused.openai_response()
        if mode == "abort":
            self._service.abort_all()
            await self._service.wait_idle()
        elif mode != "in_place":
            return malformed(f"The twin knows no {mode!r} - at `$.mode`").openai_response()
        self._service.pause()
        return json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, _request: Request) -> Response:
        self._service.go_on()
        return json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _open_session(self, request: Request) -> Response:
        try:
            session = await body_of(request, _Session)
        except BadRequest as refused:
            return refused.openai_response()
        return json_response(session.session_id or uuid.uuid4().hex)

    async def _close_session(self, _request: Request) -> Response:
        return Response(status_code=200)
