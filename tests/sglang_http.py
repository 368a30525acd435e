"""The part of SGLang's HTTP surface that the adapter uses, with knobs for what a real one cannot be made to do."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any, Self

import msgspec
from aiohttp import web

PIECE = {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "a"}}]}
LAST = {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


class FakeSglang:
    """A server on a free port, once entered. ``server`` is what ``/server_info`` says beside the version."""

    def __init__(self, **server: Any) -> None:
        self.server: dict[str, Any] = {"version": "0.5.23", **server}
        self.load_age_s = 0.0
        """How long ago the scheduler has published its load."""
        self.tells_load = True
        """The scheduler has published its load at all."""
        self.generates = True
        """``/health_generate`` says so."""
        self.answers = True
        """A chat is answered; otherwise it waits before the head, as in a prefill."""
        self.ends = True
        """A stream ends; otherwise it waits after its first piece."""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.aborts: list[str] = []
        self.probes = 0
        self.open_requests = 0
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/server_info", self._server_info),
                web.get("/v1/loads", self._loads),
                web.get("/health_generate", self._probe),
                web.post("/v1/chat/completions", self._chat),
                web.post("/abort_request", self._abort),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response({**self.server, "internal_states": [{"effective_max_running_requests_per_dp": 4}]})

    async def _loads(self, _: web.Request) -> web.Response:
        rank = {"timestamp": time.time() - self.load_age_s, "num_running_reqs": 1, "max_total_num_tokens": 4096}
        ranks = [rank] if self.tells_load else []
        return web.json_response({"timestamp": datetime.now(UTC).isoformat(), "loads": ranks})

    async def _probe(self, _: web.Request) -> web.Response:
        self.probes += 1
        return web.Response(status=200 if self.generates else 503)

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborts.append((await request.json())["rid"])
        return web.Response()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(msgspec.json.decode(await request.read()))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.open_requests += 1
        try:
            if not self.answers:
                await asyncio.sleep(3600)
            if not self.bodies[-1].get("stream"):
                message = {"role": "assistant", "content": "a"}
                choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
                return web.json_response({"id": "x", "choices": choices, "usage": {"prompt_tokens": 5}})
            stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await stream.prepare(request)
            await stream.write(_event(PIECE))
            if not self.ends:
                await asyncio.sleep(3600)
            await stream.write(_event(LAST) + b"data: [DONE]\n\n")
            return stream
        finally:
            self.open_requests -= 1


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
