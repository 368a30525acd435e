"""The canary's tier engine behind SGLang's native HTTP routes, on a free port: for the adapter and the command."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from governor.errors import UpstreamError
from serve.canary.model import Checkpoints, OutputToken, Probe, Question
from serve.launcher import free_port
from tests.canary_engine import TierEngine

_START_LIMIT_S = 20


class SglangShaped:
    """Answers as SGLang 0.5.23 does. ``pieces``: as with ``--incremental-streaming-output``."""

    def __init__(self, engine: TierEngine, *, pieces: bool = False, metrics: bool = True) -> None:
        self._engine = engine
        self._pieces = pieces
        self._metrics = metrics
        self.app = Starlette(
            routes=[
                Route("/server_info", self._info),
                Route("/v1/models", self._models),
                Route("/metrics", self._figures),
                Route("/generate", self._generate, methods=["POST"]),
                Route("/flush_cache", self._flush, methods=["POST"]),
            ]
        )

    async def _info(self, _request: Request) -> Response:
        facts = await self._engine.facts()
        hybrid = facts.checkpoints is not Checkpoints.ATTENTION
        return _json(
            {
                "version": "0.5.23",
                "served_model_name": "tiers",
                "max_total_num_tokens": facts.device_tokens,
                "page_size": facts.page_tokens,
                "context_length": facts.window_tokens,
                "max_mamba_cache_size": facts.state_slots,
                "mamba_radix_cache_strategy": facts.checkpoints.value if hybrid else "auto",
                "uses_mamba_radix_cache": hybrid,
                "enable_hierarchical_cache": facts.host_tier,
                "hicache_host_memory_mode": "cache",
                "hicache_storage_backend": facts.storage,
                "sleep_on_idle": False,
            }
        )

    async def _models(self, _request: Request) -> Response:
        facts = await self._engine.facts()
        return _json({"object": "list", "data": [{"id": "tiers", "max_model_len": facts.window_tokens}]})

    async def _figures(self, _request: Request) -> Response:
        if not self._metrics:
            return PlainTextResponse("Not Found", status_code=404)
        facts, written = await self._engine.facts(), await self._engine.settle()
        lines = [
            f'sglang:hicache_backup_tokens_total{{pool="kv",tp_rank="0"}} {written.host_tokens}',
            f'sglang:hicache_backup_tokens_total{{pool="kv",tp_rank="1"}} {written.host_tokens}',
            'sglang:hicache_backup_tokens_total{pool="mamba",tp_rank="0"} 9e9',
            f"sglang:backuped_tokens_total {written.storage_tokens}",
            "sglang:gen_throughput NaN",
            f"sglang:hicache_host_total_tokens {facts.host_tokens}",
        ]
        if facts.host_states is not None:
            lines.append(f"sglang:hicache_host_mamba_total_states {facts.host_states}")
        return PlainTextResponse("\n".join(lines) + "\n")

    async def _flush(self, _request: Request) -> Response:
        try:
            await self._engine.flush()
        except UpstreamError:
            return PlainTextResponse("Flush cache failed.", status_code=400)
        return PlainTextResponse("Cache flushed.")

    async def _generate(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body())
        question = Question(
            prompt=tuple(body["input_ids"]),
            new_tokens=body["sampling_params"]["max_new_tokens"],
            score_from=body.get("logprob_start_len"),
            namespace=body.get("extra_key"),
        )
        try:
            probe = await self._engine.ask(question)
        except UpstreamError as error:
            return _json({"error": {"message": error.message}}, status=500)
        return StreamingResponse(self._events(question, probe), media_type="text/event-stream")

    async def _events(self, question: Question, probe: Probe) -> AsyncIterator[bytes]:
        total = max(1, len(probe.output))
        for done in range(1, total + 1):
            shown = probe.output[done - 1 : done] if self._pieces else probe.output[:done]
            meta: dict[str, Any] = {
                "cached_tokens": probe.cached_tokens,
                "cached_tokens_details": msgspec.to_builtins(probe.split) if probe.cached_tokens else None,
                "finish_reason": {"type": "length", "length": total} if done == total else None,
            }
            if question.score_from is not None:
                # The first token that is asked for has no logprob: what it is given is not known.
                scores = [[None, 0, None], *([score, 1, None] for score in probe.scores)]
                meta |= {
                    "input_token_logprobs": scores,
                    "output_token_logprobs": [_chosen(token) for token in shown],
                    "output_token_logprobs_length": done,
                    "output_top_logprobs": [[[c.logprob, c.token, None] for c in token.best] for token in shown],
                }
            yield b"data: " + msgspec.json.encode({"text": "", "meta_info": meta}) + b"\n\n"
        yield b"data: [DONE]\n\n"

    @contextlib.contextmanager
    def running(self, port: int | None = None) -> Iterator[str]:
        """Serves while inside; its URL."""
        port = port or free_port()
        server = uvicorn.Server(uvicorn.Config(self.app, port=port, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run)
        thread.start()
        deadline = time.monotonic() + _START_LIMIT_S
        while not server.started:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


def _chosen(token: OutputToken) -> list[Any]:
    return [token.chosen.logprob, token.chosen.token, None]


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")
