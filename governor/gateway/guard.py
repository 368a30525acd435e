"""The door: who may speak to this port at all, before any route is looked at.

A web page in the owner's browser can reach a loopback port. It is stopped by its ``Host`` (DNS rebinding), its
``Origin``, or the content type it may send without asking. A client library sends no Origin.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from governor.errors import Forbidden
from governor.gateway.http import App, Receive, Scope, Send, headers_of, send_error
from governor.gateway.metrics import Metrics


def host_name(host: str) -> str:
    """The name in a ``Host`` header, without port and brackets, lower case."""
    return (urlsplit(f"//{host}").hostname or "").lower()


class Guard:
    """ASGI middleware. ``hosts`` are the names that may be asked for besides loopback ones."""

    def __init__(self, app: App, hosts: Collection[str], metrics: Metrics) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(headers_of(scope))
            except Forbidden as error:
                self._metrics.on_refused(error.code)
                await send_error(send, error)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: dict[str, str]) -> None:
        if not self._is_ours(headers.get("host", "")):
            raise Forbidden("The Host header names another machine than this one.", param="host")
        origin = headers.get("origin")
        if origin is not None and not self._is_ours(urlsplit(origin).netloc):
            raise Forbidden("Web pages may not call this server.", param="origin")

    def _is_ours(self, host: str) -> bool:
        try:
            name = host_name(host)
        except ValueError:
            return False
        if name == "localhost" or name in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False
