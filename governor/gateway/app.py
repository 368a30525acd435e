"""The table of routes. What is not in it is 404, among it the probe paths by which Hermes takes a server for another
engine (``/api/v1/models``, ``/api/tags``, ``/api/show``, ``/props``, ``/v1/props``, ``/version``)."""

from __future__ import annotations

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from governor.acts import ACTIONS_PATH
from governor.errors import GovernorError, InternalError, MethodNotAllowed, NotFound
from governor.gateway.actions import Actions
from governor.gateway.admin import AdminPages, HealthPages, ModelPages
from governor.gateway.context_page import ContextPages
from governor.gateway.generate import GenerateRoute, Services
from governor.gateway.guard import Guard
from governor.gateway.http import App
from governor.gateway.metrics import Metrics
from governor.gateway.owner_pages import OwnerPages
from governor.wire import failures
from serve.engine import Endpoint

_ENDPOINTS = {endpoint.value: endpoint for endpoint in Endpoint}


def build_app(
    services: Services,
    *,
    health: HealthPages,
    models: ModelPages,
    admin: AdminPages,
    context: ContextPages,
    owner: OwnerPages,
    actions: Actions,
    metrics: Metrics,
    hosts: Collection[str] = (),
) -> App:
    """The gateway as one ASGI app."""
    routes = [Route(endpoint.value, GenerateRoute(endpoint, services), methods=["POST"]) for endpoint in Endpoint]
    routes += [
        Route("/v1/models", models.listing),
        Route("/v1/models/{model:path}", models.one),
        Route("/health", health.health),
        Route("/ready", health.ready),
        Route("/metrics", admin.metrics),
        Route("/governor/state", admin.state),
        Route("/governor/events", admin.events),
        Route("/governor/agents/{name}/context", context.context),
        Route("/governor/agents/{name}/policy", owner.policy),
        Route("/governor/engine/log", owner.engine_log),
        Route(f"{ACTIONS_PATH}{{action}}", actions.act, methods=["POST"]),
    ]

    def on_refused(request: Request, error: Exception) -> Response:
        """A refusal before anything of an answer was sent."""
        refusal = error if isinstance(error, GovernorError) else _in_our_shape(request, error)
        metrics.on_refused(refusal.code)
        endpoint = _ENDPOINTS.get(request.url.path)
        body = refusal.body() if endpoint is None else failures.error_body(endpoint, refusal)
        allow = (error.headers or {}) if isinstance(error, HTTPException) else {}
        return Response(body, refusal.status, {**allow, **refusal.headers()}, refusal.content_type)

    handlers = {GovernorError: on_refused, HTTPException: on_refused, Exception: on_refused}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, hosts, metrics)


def _in_our_shape(request: Request, error: Exception) -> GovernorError:
    """Starlette's own refusals, and what nobody expected; the server logs the latter with its traceback."""
    match error:
        case HTTPException(status_code=MethodNotAllowed.status):
            return MethodNotAllowed(f"{request.method} is not offered here.")
        case HTTPException():
            return NotFound("There is nothing at this path. The governor serves the OpenAI API under /v1.")
    return InternalError("The governor failed on this request; its log says how.")
