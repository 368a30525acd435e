"""Serves the dashboard to browsers: a process of the dashboard for each tab, its terminal drawn by the page.

textual-serve does that and lets everybody in. Whoever can press keys here can pause agents and change policies, so this
adds what keeps others out:

* a code that the terminal shows, typed in once, then a cookie that scripts cannot read and other sites cannot send;
* requests must name this server in ``Host`` (a name that was made to point here is another one), and in ``Origin``
  where a browser sends one: any page may open a WebSocket to the loopback, and only this tells that it has;
* nothing is loaded from anywhere else, and no page may put this one in a frame.

The governor's admin token stays in the processes: it is in no page, no address, no log.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp_jinja2
from aiohttp import web
from textual_serve.server import Server

log = logging.getLogger(__name__)

COOKIE = "governor-dashboard"
_CODE_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
_CODE_LENGTH = 10
_HEADERS = {
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ENDS_WITHIN_S = 1.0
"""Views that are open are ended then."""
_WRONG_CODES = 20
"""After so many nobody gets in any more: it is guessed at."""
_NOT_THE_CODE = "That is not the code."
_CLOSED = "Too many wrong codes were entered, so none opens it any more. Start governor top --web again for a new one."

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def new_code() -> str:
    """What the terminal shows: 49 bits."""
    return "".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_LENGTH))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class DashboardServer(Server):
    """``command``: a shell's, that runs the dashboard. ``names``: further names by which browsers reach this server."""

    def __init__(self, command: str, bound: socket.socket, *, code: str, names: frozenset[str] = frozenset()) -> None:
        self._bound = bound
        host, port = bound.getsockname()[:2]
        super().__init__(
            command, host=host, port=port, title="governor", templates_path=Path(__file__).parent / "templates"
        )
        self._code = code
        self._session = secrets.token_urlsafe(32)
        self._names = {name.lower() for name in names} | _LOCAL_NAMES | {host}
        self._wrong_codes = 0

    async def run(self, until: Callable[[], Awaitable[object]], on_listening: Callable[[], None]) -> None:
        """Serve until ``until`` returns."""
        runner = web.AppRunner(await self._make_app(), access_log=None, shutdown_timeout=_ENDS_WITHIN_S)
        await runner.setup()
        try:
            await web.SockSite(runner, self._bound).start()
            on_listening()
            await until()
        finally:
            await runner.cleanup()

    async def _make_app(self) -> web.Application:
        app: web.Application = await super()._make_app()
        app.middlewares.append(self._guard)
        app.add_routes([web.post("/enter", self._enter)])
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Says nothing: the command has."""

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._is_for_us(request):
            raise web.HTTPForbidden(text="This address is not one of the dashboard's names; see --allow-host.\n")
        if request.path == "/" and not self._has_entered(request):
            response: web.StreamResponse = aiohttp_jinja2.render_template("enter.html", request, {"wrong": ""})
        elif request.path != "/enter" and not self._has_entered(request):
            raise web.HTTPUnauthorized(text="Enter the code that 'governor top --web' shows.\n")
        else:
            response = await handler(request)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    @aiohttp_jinja2.template("app_index.html")
    async def handle_index(self, request: web.Request) -> dict[str, object]:
        """The page. Its addresses are of the name that the browser knows this server by."""
        return {"socket": f"ws://{request.host}/ws"}

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        given = (await request.post()).get("code", "")
        is_right = hmac.compare_digest(str(given).strip().lower().encode(errors="replace"), self._code.encode())
        if self._wrong_codes >= _WRONG_CODES:
            return aiohttp_jinja2.render_template("enter.html", request, {"wrong": _CLOSED}, status=403)
        if not is_right:
            self._wrong_codes += 1
            return aiohttp_jinja2.render_template("enter.html", request, {"wrong": _NOT_THE_CODE}, status=403)
        response = web.HTTPSeeOther("/")
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
        raise response

    @property
    def _cookie(self) -> str:
        """Cookies know no ports: two dashboards on one host would take each other's away."""
        return f"{COOKIE}-{self.port}"

    def _has_entered(self, request: web.Request) -> bool:
        given = request.cookies.get(self._cookie, "")
        return hmac.compare_digest(given.encode(errors="replace"), self._session.encode())

    def _is_for_us(self, request: web.Request) -> bool:
        try:
            host = urlsplit(f"//{request.host}").hostname
        except ValueError:
            return False
        if host not in self._names:
            return False
        origin = request.headers.get("origin")
        return origin is None or origin == f"http://{request.host}"
