"""Whether an SGLang is able to take turns: proved once with a token, then watched without generating.

An answer of its HTTP server says little: that process goes on answering when the scheduler is stuck or gone. Its
scheduler publishes a load snapshot after each batch, and once a second while it idles, so the snapshot's age tells
whether it moves (``docs/design/sglang.md``).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx
import msgspec

from serve.readiness import ProbeResult

_T = TypeVar("_T", bound=msgspec.Struct)

_FRESH_S = 10.0
"""A snapshot that is older proves nothing; a large prefill chunk takes seconds."""
_ONE_TOKEN = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
_MODELS = "/v1/models"
_LOADS = "/v1/loads"
_GENERATE = "/generate"
_FIRST_TOKEN_S = 120.0
"""Kernels may be compiled for it. The process still has to show signs of life meanwhile."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Load(msgspec.Struct):
    """One rank's snapshot, as far as it says that work moves on (``managers/load_snapshot.py``)."""

    timestamp: float
    """Unix time at which the scheduler wrote it."""
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_total_tokens: int = 0
    total_prefill_uncached_tokens: int = 0
    total_prefill_busy_us: int = 0


class _Loads(msgspec.Struct):
    loads: list[_Load] = []


class SglangProbe:
    """See :class:`serve.readiness.Probe`. Ready at first when a model is listed, one token was generated and
    ``before_ready`` has returned; later while its scheduler publishes.

    ``before_ready`` waits for a bounded time and raises nothing.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = 5.0,
        before_ready: Callable[[], Awaitable[None]] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        self._before_ready = before_ready
        self._proved = False
        self._client = httpx.AsyncClient(
            base_url=base_url,
            timeout=timeout_s,
            trust_env=False,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=0),
        )

    def on_spawned(self) -> None:
        """A new process has to prove itself anew."""
        self._proved = False

    async def check(self) -> ProbeResult:
        """Generates a token until it has come once, nothing after that."""
        try:
            return await self._watch() if self._proved else await self._prove()
        except httpx.ConnectError:
            return ProbeResult(ready=False, detail="not listening yet")
        except httpx.TimeoutException:
            return ProbeResult(ready=False, detail="no answer in time: busy")
        except httpx.HTTPError as problem:
            return ProbeResult(ready=False, detail=f"no answer: {problem or type(problem).__name__}")

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _prove(self) -> ProbeResult:
        listed = await self._client.get(_MODELS)
        models = _decoded(listed, _Models)
        if models is None or not models.data:
            return ProbeResult(ready=False, detail=f"no model is listed yet ({listed.status_code})")
        answer = await self._client.post(_GENERATE, json=_ONE_TOKEN, timeout=_FIRST_TOKEN_S)
        if not answer.is_success:
            return ProbeResult(ready=False, detail=f"its first token failed with {answer.status_code}")
        if self._before_ready is not None:
            await self._before_ready()
        self._proved = True
        return ProbeResult(ready=True)

    async def _watch(self) -> ProbeResult:
        answer = await self._client.get(_LOADS, params={"include": "core"})
        loads = _decoded(answer, _Loads)
        if loads is None or not loads.loads:
            return ProbeResult(ready=False, detail=f"it tells no load ({answer.status_code})")
        figures = msgspec.json.encode(loads).decode()
        silent_s = self._wall() - min(load.timestamp for load in loads.loads)
        if silent_s > _FRESH_S:
            detail = f"its scheduler has published nothing for {silent_s:.0f} s"
            return ProbeResult(ready=False, detail=detail, fingerprint=figures)
        return ProbeResult(ready=True, fingerprint=figures)


def _decoded(answer: httpx.Response, kind: type[_T]) -> _T | None:
    if not answer.is_success:
        return None
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except msgspec.MsgspecError:
        return None
