"""What all engines behind HTTP share: one connection pool, errors translated at this edge, nothing retried."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import aiohttp
import httpx
import msgspec
from httpx_aiohttp import AiohttpTransport

from governor.errors import UpstreamCut, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from governor.settings import Secret
from serve.engine import Continuation, Endpoint, EngineCall

_NO_LIMIT = 0
_DECODABLE = {"gzip", "deflate", "x-gzip"}
_HOP_BY_HOP = {"connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade"}


_PIECE_BYTES = 512 * 1024


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """A large body, so that sending it neither blocks the event loop nor copies all of it at once."""
    for at in range(0, len(body), _PIECE_BYTES):
        yield body[at : at + _PIECE_BYTES]


class HttpTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    connect_s: float = 5.0
    answer_s: float = 3600.0
    """Longest silence of an engine that works on a turn: a cold 200K prefill on a small machine takes half an hour."""
    ask_s: float = 10.0
    """Longest wait for a question that generates nothing."""
    abort_s: float = 2.0
    """Longest wait for an abort to be taken."""


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn httpx's exceptions into ours, keeping the cause; aiohttp's too, since its transport lets some through (an
    answer that is not HTTP). Messages carry no URL: it may hold a secret."""
    try:
        yield
    except httpx.ConnectTimeout as error:  # what httpx-aiohttp makes of most of aiohttp's connection errors
        cause = error.__cause__
        was_connected = isinstance(cause, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
        if was_connected and not isinstance(cause, aiohttp.ClientConnectorError):
            raise UpstreamCut(f"The engine ({name}) closed the connection without an answer.") from error
        raise UpstreamUnavailable(f"The engine ({name}) does not answer.", retry_after_s=5) from error
    except (httpx.ConnectError, httpx.PoolTimeout) as error:
        raise UpstreamUnavailable(f"The engine ({name}) does not answer.", retry_after_s=5) from error
    except httpx.TimeoutException as error:
        raise UpstreamTimeout(f"The engine ({name}) sent nothing for too long.") from error
    except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, aiohttp.ClientError, OSError) as error:
        raise UpstreamCut(f"The connection to the engine ({name}) broke: {type(error).__name__}.") from error


class HttpAnswer:
    """An answer whose head has arrived. See :class:`serve.engine.EngineAnswer`."""

    def __init__(self, response: httpx.Response, name: str) -> None:
        self._response = response
        self._name = name
        encoding = response.headers.get("content-encoding", "").strip().lower()
        self._decode = encoding in _DECODABLE
        self.status = response.status_code
        self.ended = False
        """All of the body was read."""
        self.headers: Mapping[str, str] = {
            key.lower(): value for key, value in response.headers.items() if self._describes_bytes(key.lower())
        }

    def _describes_bytes(self, header: str) -> bool:
        """Headers that stay true for the bytes :meth:`chunks` yields."""
        if header in _HOP_BY_HOP:
            return False
        return not (self._decode and header in {"content-encoding", "content-length"})

    async def chunks(self) -> AsyncIterator[bytes]:
        with translated(self._name):
            stream = self._response.aiter_bytes() if self._decode else self._response.aiter_raw()
            async for chunk in stream:
                yield chunk
        self.ended = True


class HttpEngine:
    """The HTTP half of an adapter. Only ``base_url`` is ever contacted, and only it sees ``key``.

    ``fresh_connections`` is for servers whose connections must not be used again: each request gets its own.
    No cookies are kept, since all agents share the client.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        key: Secret | None = None,
        timeouts: HttpTimeouts | None = None,
        fresh_connections: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.name = name
        self._timeouts = timeouts or HttpTimeouts()
        self._call_headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if fresh_connections:
            self._call_headers["connection"] = "close"
        credential = {"authorization": f"Bearer {key.reveal()}"} if key else {}
        self._call_headers |= credential
        base_url = base_url.rstrip("/").removesuffix("/v1")
        self._urls = {endpoint: httpx.URL(base_url + endpoint.value) for endpoint in Endpoint}
        t = self._timeouts
        timeout = httpx.Timeout(t.answer_s, connect=t.connect_s, pool=t.connect_s)
        self._call_extensions = {"timeout": timeout.as_dict()}
        self._transport = transport or default_transport(fresh_connections=fresh_connections)
        self._client = httpx.AsyncClient(
            base_url=base_url,
            transport=self._transport,
            headers=credential,
            timeout=timeout,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            follow_redirects=False,
            trust_env=False,
        )

    @property
    def continuation(self) -> Continuation | None:
        """None: OpenAI's API knows no token ids."""
        return None

    @asynccontextmanager
    async def open(self, call: EngineCall) -> AsyncIterator[HttpAnswer]:
        """See :meth:`serve.engine.Engine.open`.

        Goes to the transport itself: redirects, cookies and authentication flows, which the client would look into for
        each request, are none of ours.
        """
        headers = {**self._call_headers, "content-length": str(len(call.body)), **call.headers}
        content = call.body if len(call.body) <= _PIECE_BYTES else _in_pieces(call.body)
        request = httpx.Request(
            "POST", self._urls[call.endpoint], content=content, headers=headers, extensions=self._call_extensions
        )
        with translated(self.name):
            response = await self._transport.handle_async_request(request)
        try:
            yield HttpAnswer(response, self.name)
        finally:
            await response.aclose()

    async def is_answering(self, path: str, patience_s: float | None = None) -> bool:
        """True when a GET of ``path`` is answered 200 in time. Raises nothing."""
        try:
            response = await self._client.get(path, timeout=patience_s or self._timeouts.ask_s)
        except (httpx.HTTPError, aiohttp.ClientError, OSError):
            return False
        return response.status_code == httpx.codes.OK

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask for JSON; decoded. Raises :class:`UpstreamError` on any other status than 200, or no JSON."""
        content = None if body is None else msgspec.json.encode(body)
        headers = None if body is None else {"content-type": "application/json"}
        with translated(self.name):
            response = await self._client.request(
                method, path, content=content, headers=headers, timeout=self._timeouts.ask_s
            )
        if response.status_code != httpx.codes.OK:
            raise UpstreamError(f"The engine ({self.name}) answered {response.status_code} to {method} {path}.")
        try:
            return msgspec.json.decode(response.content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UpstreamError(f"The engine ({self.name}) answered {method} {path} with no JSON.") from error

    async def aclose(self) -> None:
        await self._client.aclose()


def default_transport(*, fresh_connections: bool = False) -> httpx.AsyncBaseTransport:
    """The faster of the two transports measured in ``bench/transport.py``.

    Idle connections are dropped before any known server drops them (uvicorn and llama.cpp after 5 s), for a request
    sent into a closing one cannot be told from one that was accepted, and is not repeated.
    """
    tls = httpx.create_ssl_context(trust_env=False)

    def session() -> aiohttp.ClientSession:
        reuse: dict[str, Any] = {"force_close": True} if fresh_connections else {"keepalive_timeout": 2.0}
        connector = aiohttp.TCPConnector(limit=_NO_LIMIT, ssl=tls, **reuse)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    return AiohttpTransport(verify=tls, client=session)
