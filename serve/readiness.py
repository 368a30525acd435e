"""Is the engine able to take a turn? Cheap questions, one at a time.

Next to yes or no a probe brings a fingerprint of the engine's own figures: as long as it changes the engine works,
however slowly it answers.
"""

from __future__ import annotations

from typing import Protocol

import httpx
import msgspec


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    ready: bool
    loading: bool = False
    """It answers, but its weights are not loaded yet."""
    detail: str = ""
    fingerprint: str | None = None
    """Figures that move while the engine works; equal to the last one when it stands still; ``None`` if unknown."""


class Probe(Protocol):
    """Asks one engine."""

    def on_spawned(self) -> None:
        """A new process is about to start: what the last one has proved holds no more."""
        ...

    async def check(self) -> ProbeResult:
        """Waits for a bounded time, raises nothing. Generates nothing once the engine has been ready."""
        ...

    async def aclose(self) -> None: ...


class HttpProbe:
    """``GET health_path``; 200 is ready, 503 is loading. ``figures_path`` gives the fingerprint, where there is one.

    llama.cpp answers 503 ``Loading model`` until its weights are loaded, and its ``/slots`` move while a prompt is read
    (``docs/design/embedded-engine.md``).
    """

    def __init__(
        self,
        base_url: str,
        *,
        health_path: str = "/health",
        figures_path: str | None = "/slots",
        timeout_s: float = 5.0,
    ) -> None:
        self._health_path = health_path
        self._figures_path = figures_path
        self._client = httpx.AsyncClient(
            base_url=base_url,
            timeout=timeout_s,
            trust_env=False,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=0),
        )

    def on_spawned(self) -> None:
        """Nothing is remembered between checks."""

    async def check(self) -> ProbeResult:
        try:
            answer = await self._client.get(self._health_path)
        except httpx.ConnectError:
            return ProbeResult(ready=False, detail="not listening yet")
        except httpx.TimeoutException:
            return ProbeResult(ready=False, detail="no answer to a health check: busy")
        except httpx.HTTPError as problem:
            return ProbeResult(ready=False, detail=f"health check failed: {problem or type(problem).__name__}")
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return ProbeResult(ready=False, loading=True, detail=_message(answer))
        if not answer.is_success:
            return ProbeResult(ready=False, detail=f"health check answered {answer.status_code}")
        return ProbeResult(ready=True, fingerprint=await self._figures())

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _figures(self) -> str | None:
        if self._figures_path is None:
            return None
        try:
            answer = await self._client.get(self._figures_path)
        except httpx.HTTPError:
            return None
        return answer.text if answer.is_success else None


class _Error(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error


def _message(answer: httpx.Response) -> str:
    try:
        return msgspec.json.decode(answer.content, type=_ErrorBody).error.message or "loading"
    except msgspec.MsgspecError:
        return "loading"
