"""The twin's server for tests: in this process on a free port, or as a program of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import uvicorn

from governor.gateway.server import bound_socket
from serve.twin.machine import Machine, load_machine
from serve.twin_server.app import TwinServer
from serve.twin_server.script import Script
from serve.twin_server.settings import TwinServerSettings

SPEED = 40.0
"""What takes a second of the engine takes 25 ms of a test."""
_START_LIMIT_S = 30
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
"""A tool."""


def small_machine(**changes: Any) -> Machine:
    """The one of ``tests/sglang/server.py``: a pool that is full after a few prompts. ``changes`` are of the engine."""
    machine = load_machine("sglang-cpu")
    replace = msgspec.structs.replace
    tiers = replace(
        machine.engine.tiers, device_tokens=8192, device_slots=32, host_tokens=16384, host_slots=64, storage_tokens=None
    )
    tiers = replace(tiers, **changes.pop("tiers", {}))
    engine = replace(machine.engine, context_tokens=8192, chunked_prefill_tokens=1024, tiers=tiers)
    return replace(machine, engine=replace(engine, **changes))


class Running:
    """A server in this process."""

    def __init__(self, url: str, server: TwinServer) -> None:
        self.url = url
        self.server = server
        self.client = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def chat(self, content: str = "hi", **body: Any) -> dict[str, Any]:
        """The answer's JSON; it must be one."""
        messages = [{"role": "user", "content": content}]
        answer = await self.post("/v1/chat/completions", **({"model": "m", "messages": messages} | body))
        answer.raise_for_status()
        decoded: dict[str, Any] = answer.json()
        return decoded

    async def until_idle(self, limit_s: float = 10.0) -> None:
        async with asyncio.timeout(limit_s):
            while self.server.service.live:  # noqa: ASYNC110 - the service tells only those who wait for an answer
                await asyncio.sleep(0.005)


@asynccontextmanager
async def twin_server(
    machine: Machine | None = None,
    *,
    script: Script | None = None,
    speed: float = SPEED,
    after: TwinServer | None = None,
    port: int = 0,
    **settings: Any,
) -> AsyncIterator[Running]:
    """Its books are checked at the end. ``after``: an earlier one, whose L3 it finds."""
    chosen = TwinServerSettings(speed=speed, **settings)
    left: dict[str, Any] = {}
    if after is not None:
        left = {"storage": after.engine.tiers.storage, "content": after.content}
    server = TwinServer(machine or small_machine(), chosen, script=script, **left)
    bound = bound_socket("127.0.0.1", port)
    config = uvicorn.Config(server.app, lifespan="on", ws="none", log_config=None, timeout_graceful_shutdown=1)
    program = _Unsignalled(config)
    running = asyncio.create_task(program.serve(sockets=[bound]))
    try:
        async with asyncio.timeout(10):
            while not program.started:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        twin = Running(f"http://127.0.0.1:{bound.getsockname()[1]}", server)
        try:
            yield twin
        finally:
            await twin.client.aclose()
        server.engine.tiers.check_integrity()
    finally:
        program.should_exit = True
        await running


class _Unsignalled(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


class TwinProgram:
    """``python -m serve.twin_server``, once entered."""

    def __init__(self, *arguments: str, port: int = 0, machine: Path | str = "sglang-cpu") -> None:
        self._argv = [sys.executable, "-P", "-m", "serve.twin_server", "--machine", str(machine), "--port", str(port)]
        self._argv += arguments
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> TwinProgram:
        self.process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent)
        line = self.process.stdout.readline() if self.process.stdout else b""
        self.url = msgspec.json.decode(line)["url"]
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGTERM)

    def stop(self, number: int, limit_s: float = 10.0) -> int:
        """Send a signal and wait; returns the exit code. May be repeated."""
        if self.process is None:
            raise RuntimeError("not started")
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(limit_s)
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code != 200:
            if time.monotonic() > deadline:
                raise TimeoutError("the twin is not ready")
