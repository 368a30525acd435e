"""SGLang under test, through its native HTTP API: prompts are token ids, so depths are exact.

Source of the fields: SGLang 0.5.23 ``managers/io_struct.py``, ``tokenizer_manager.py``, ``metrics_collector.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from governor.errors import UpstreamError
from governor.settings import Secret
from governor.wire.sse import SseSplitter
from serve.canary.model import (
    Checkpoints,
    Choice,
    EngineFacts,
    OutputToken,
    Probe,
    Question,
    Split,
    Written,
)
from serve.engines.http import default_transport, translated

_NAME = "sglang"
_ALTERNATIVES = 4
_ANSWER_S = 600.0
_ASK_S = 15.0
_SETTLE_POLL_S = 0.25
_SETTLE_POLLS = 120
_QUIET_POLLS = 2
_QUIET_POLLS_ASLEEP = 6
"""An idle scheduler with ``--sleep-on-idle`` looks at finished copies once a second."""
_UNMEASURED_SETTLE_S = 3.0
_FLUSH_WAIT_S = 10
_HOST_TOKENS = "sglang:hicache_host_total_tokens"
_HOST_STATES = "sglang:hicache_host_mamba_total_states"
_HOST_WRITTEN = "sglang:hicache_backup_tokens_total"
_STORAGE_WRITTEN = "sglang:backuped_tokens_total"
_FIGURES = {_HOST_TOKENS, _HOST_STATES, _HOST_WRITTEN, _STORAGE_WRITTEN}
_HYBRID = {"no_buffer", "extra_buffer", "extra_buffer_lazy"}

_Logprob = tuple[float | None, int, Any]


class _Details(msgspec.Struct):
    device: int = 0
    host: int = 0
    storage: int = 0


class _Finish(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Meta(msgspec.Struct):
    cached_tokens: int = 0
    cached_tokens_details: _Details | None = None
    finish_reason: _Finish | None = None
    input_token_logprobs: list[_Logprob] | None = None
    output_token_logprobs: list[_Logprob] | None = None
    output_token_logprobs_length: int | None = None
    output_top_logprobs: list[list[_Logprob] | None] | None = None


class _Chunk(msgspec.Struct):
    meta_info: _Meta | None = None
    error: Any = None


class _Info(msgspec.Struct):
    """Of ``/server_info``."""

    max_total_num_tokens: int
    page_size: int
    version: str = "unknown"
    served_model_name: str | None = None
    context_length: int | None = None
    max_mamba_cache_size: int | None = None
    mamba_radix_cache_strategy: str | None = None
    uses_mamba_radix_cache: bool | None = None
    disable_radix_cache: bool = False
    enable_hierarchical_cache: bool = False
    hicache_host_memory_mode: str | None = None
    hicache_storage_backend: str | None = None
    sleep_on_idle: bool = True

    @property
    def checkpoints(self) -> Checkpoints:
        strategy = self.mamba_radix_cache_strategy
        hybrid = strategy in _HYBRID if self.uses_mamba_radix_cache is None else self.uses_mamba_radix_cache
        if not hybrid:
            return Checkpoints.ATTENTION
        return Checkpoints.NO_BUFFER if strategy == "no_buffer" else Checkpoints.EXTRA_BUFFER


class SglangCanary:
    """See :class:`serve.canary.model.CanaryEngine`."""

    def __init__(
        self, base_url: str, *, key: Secret | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/").removesuffix("/v1"),
            transport=transport or default_transport(),
            headers={"authorization": f"Bearer {key.reveal()}"} if key else {},
            timeout=_ASK_S,
            trust_env=False,
        )
        self._quiet_polls = _QUIET_POLLS_ASLEEP

    async def facts(self) -> EngineFacts:
        with translated(_NAME):
            response = await self._client.get("/server_info")
        if response.status_code != httpx.codes.OK:
            raise UpstreamError(f"The engine answered {response.status_code} to GET /server_info: is it an SGLang?")
        try:
            info = msgspec.json.decode(response.content, type=_Info)
        except msgspec.MsgspecError as error:
            raise UpstreamError(f"The engine's /server_info is not that of a known SGLang: {error}") from error
        if not info.sleep_on_idle:
            self._quiet_polls = _QUIET_POLLS
        metrics = await self._metrics() or {}
        # A host pool that is only a buffer keeps nothing.
        host_tier = info.enable_hierarchical_cache and info.hicache_host_memory_mode in (None, "cache")
        return EngineFacts(
            version=info.version,
            model=info.served_model_name or "unknown",
            checkpoints=info.checkpoints,
            page_tokens=info.page_size,
            device_tokens=info.max_total_num_tokens,
            window_tokens=info.context_length or info.max_total_num_tokens,
            state_slots=info.max_mamba_cache_size,
            radix_cache=not info.disable_radix_cache,
            host_tier=host_tier,
            host_tokens=metrics.get(_HOST_TOKENS),
            host_states=metrics.get(_HOST_STATES),
            storage=info.hicache_storage_backend,
            written=_written(metrics),
        )

    async def ask(self, question: Question) -> Probe:
        body: dict[str, Any] = {
            "input_ids": question.prompt,
            "sampling_params": {"max_new_tokens": question.new_tokens, "temperature": 0, "ignore_eos": True},
            "stream": True,
        }
        if question.namespace is not None:
            body["extra_key"] = question.namespace
        if question.score_from is not None:
            body |= {
                "return_logprob": True,
                "logprob_start_len": question.score_from,
                "top_logprobs_num": _ALTERNATIVES,
            }
        began = time.monotonic()
        collected = _Collected()
        splitter = SseSplitter()
        with translated(_NAME):
            headers = {"content-type": "application/json"}
            content = msgspec.json.encode(body)
            async with self._client.stream(
                "POST", "/generate", content=content, headers=headers, timeout=_ANSWER_S
            ) as response:
                if response.status_code != httpx.codes.OK:
                    said = (await response.aread())[:300].decode(errors="replace")
                    raise UpstreamError(f"The engine answered {response.status_code} to POST /generate: {said}")
                async for piece in response.aiter_raw():
                    for event in splitter.feed(piece):
                        if event.data is not None and event.data != b"[DONE]":
                            collected.add(event.data, (time.monotonic() - began) * 1000)
        return collected.probe(len(question.prompt) - 1 - (question.score_from or 0))

    async def settle(self) -> Written:
        metrics = await self._metrics()
        if metrics is None:
            await asyncio.sleep(_UNMEASURED_SETTLE_S)
            return Written()
        last, quiet = _written(metrics), 0
        for _ in range(_SETTLE_POLLS):
            await asyncio.sleep(_SETTLE_POLL_S)
            now = _written(await self._metrics() or {})
            quiet = quiet + 1 if now == last else 0
            last = now
            if quiet == self._quiet_polls:
                break
        return last

    async def flush(self) -> None:
        with translated(_NAME):
            response = await self._client.post(
                "/flush_cache", params={"timeout": _FLUSH_WAIT_S}, timeout=_ASK_S + _FLUSH_WAIT_S
            )
        if response.status_code != httpx.codes.OK:
            raise UpstreamError(f"The engine did not flush its cache ({response.status_code}): it is at work.")

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _metrics(self) -> dict[str, int] | None:
        """By name; ``None`` where the engine was started without metrics. Ranks count the same tokens each."""
        with translated(_NAME):
            response = await self._client.get("/metrics")
        if response.status_code != httpx.codes.OK:
            return None
        figures: dict[str, int] = {}
        try:
            for family in text_string_to_metric_families(response.text):
                for sample in family.samples:
                    if sample.name in _FIGURES and sample.labels.get("pool", "kv") == "kv":
                        figures[sample.name] = max(figures.get(sample.name, 0), int(sample.value))
        except ValueError as error:
            raise UpstreamError(f"The engine's /metrics cannot be read: {error}") from error
        return figures


class _Collected:
    """One streamed answer. An event has all outputs so far; with ``--incremental-streaming-output``, the new ones."""

    def __init__(self) -> None:
        self._last = _Meta()
        self._ttft_ms: float | None = None
        self._input: list[_Logprob] = []
        self._chosen: list[_Logprob] = []
        self._best: list[list[_Logprob] | None] = []

    def add(self, data: bytes, at_ms: float) -> None:
        try:
            chunk = msgspec.json.decode(data, type=_Chunk)
        except msgspec.MsgspecError as error:
            raise UpstreamError(f"The engine sent an event that is none of SGLang's: {error}") from error
        if chunk.error is not None or chunk.meta_info is None:
            raise UpstreamError(f"The engine failed to answer: {chunk.error}")
        meta = chunk.meta_info
        if meta.finish_reason is not None and meta.finish_reason.type == "abort":
            raise UpstreamError(f"The engine aborted its answer: {meta.finish_reason.message}")
        self._ttft_ms = at_ms if self._ttft_ms is None else self._ttft_ms
        self._last = meta
        self._input = meta.input_token_logprobs or self._input
        chosen, best = meta.output_token_logprobs or [], meta.output_top_logprobs or []
        is_a_piece = len(chosen) < (meta.output_token_logprobs_length or 0)
        self._chosen = self._chosen + chosen if is_a_piece else chosen
        self._best = self._best + best if is_a_piece else best

    def probe(self, scored: int) -> Probe:
        """``scored``: how many of the prompt's tokens have logprobs; the first the engine gives has none before it."""
        if self._ttft_ms is None:
            raise UpstreamError("The engine sent no answer.")
        details = self._last.cached_tokens_details
        return Probe(
            cached_tokens=self._last.cached_tokens,
            split=None if details is None else Split(details.device, details.host, details.storage),
            ttft_ms=self._ttft_ms,
            scores=tuple(choice[0] for choice in self._input[-scored:]) if self._input else (),
            output=tuple(
                OutputToken(_choice(chosen), tuple(map(_choice, best or ())))
                for chosen, best in zip(self._chosen, self._best, strict=False)
            ),
        )


def _written(metrics: dict[str, int]) -> Written:
    return Written(metrics.get(_HOST_WRITTEN), metrics.get(_STORAGE_WRITTEN))


def _choice(said: _Logprob | Sequence[Any]) -> Choice:
    return Choice(token=said[1], logprob=said[0])
