"""Routes that only look: what the engine is, how full it is, whether it lives."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve.twin_server.errors import BadRequest, json_response
from serve.twin_server.info import Identity
from serve.twin_server.metrics import TwinMetrics
from serve.twin_server.prober import Prober
from serve.twin_server.service import TwinService


class InfoRoutes:
    """``/v1/models``, ``/model_info``, ``/server_info``, ``/v1/loads``, ``/metrics``, ``/health``, ``/ready``."""

    def __init__(self, identity: Identity, service: TwinService, metrics: TwinMetrics, prober: Prober) -> None:
        self._identity = identity
        self._service = service
        self._metrics = metrics
        self._prober = prober

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self._models),
            Route("/v1/models/{model:path}", self._model),
            Route("/model_info", self._model_info),
            Route("/get_model_info", self._model_info),
            Route("/server_info", self._server_info),
            Route("/get_server_info", self._server_info),
            Route("/v1/loads", self._loads),
            Route("/metrics", self._figures),
            Route("/health", self._health),
            Route("/health_generate", self._health),
            Route("/ready", self._ready),
            Route("/ping", self._health),
        ]

    async def _models(self, _request: Request) -> Response:
        return json_response({"object": "list", "data": [self._identity.model_card()]})

    async def _model(self, request: Request) -> Response:
        model = request.path_params["model"]
        if model == self._identity.model:
            return json_response(self._identity.model_card())
        error = {
            "message": f"The model '{model}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return json_response({"error": error}, 404)

    async def _model_info(self, _request: Request) -> Response:
        return json_response(self._identity.model_info())

    async def _server_info(self, _request: Request) -> Response:
        """Asks the scheduler, so it waits for one that does not move."""
        await self._service.wait_alive()
        return json_response(self._identity.server_info(self._service))

    async def _loads(self, request: Request) -> Response:
        try:
            return json_response(self._identity.loads(self._service, request.query_params.get("include")))
        except BadRequest as refused:
            return refused.openai_response()

    async def _figures(self, _request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _health(self, _request: Request) -> Response:
        """One token is asked for, as far as nobody else gets one anyway; 503 when none comes."""
        return Response(status_code=200 if await self._prober.is_alive() else 503)

    async def _ready(self, _request: Request) -> Response:
        return Response(status_code=200 if self._prober.is_started else 503)
