"""``python -m bench.transport``: which HTTP transport the engine adapters should use.

httpx is the client API of all adapters; beneath it stands either its own transport (httpcore, h11) or aiohttp's client
(httpx-aiohttp). Both are driven as the gateway drives them, by an adapter on uvloop, in turn within one run.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import httpx
import msgspec
import typer
import uvloop
from rich.console import Console

from bench.client import BenchFailed
from bench.conversation import Conversation
from bench.processes import MODEL, Upstream, scripted_engine
from bench.report import Machine, Sheet, figure, machine, markdown, print_sheets, write_json
from bench.rounds import percentile
from serve.engine import Endpoint, EngineCall
from serve.engines.http import default_transport
from serve.engines.openai_upstream import OpenAIUpstream


def _httpx_transport() -> httpx.AsyncBaseTransport:
    """httpx's own, with what the adapters need: no limit, and a connection of its own for each request."""
    return httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))


def _aiohttp_transport() -> httpx.AsyncBaseTransport:
    return default_transport(fresh_connections=True)


_TRANSPORTS: Mapping[str, Callable[[], httpx.AsyncBaseTransport]] = {
    "httpx": _httpx_transport,
    "aiohttp": _aiohttp_transport,
}
_SIZES = (1000, 10_000, 100_000)
_STREAMS = (1, 8, 64)
_UNPACED_TOKENS = 4000

app = typer.Typer(add_completion=False)


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request after another, each with an answer of one token."""

    transport: str
    prompt_tokens: int
    requests: int
    head_p50_ms: float
    """From the call to the answer's head."""
    head_p99_ms: float
    cpu_ms: float
    """Of this process, for the whole request."""


class ChunkRow(msgspec.Struct, frozen=True, kw_only=True):
    """Long answers on several streams at once."""

    transport: str
    streams: int
    tokens_per_s: float
    """Of each stream; 0: as fast as they come."""
    chunks: int
    """Events; several of them may arrive in one read."""
    cpu_us: float
    """Of this process, for an event."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    requests: Sequence[RequestRow]
    chunks: Sequence[ChunkRow]


async def _answered(engine: OpenAIUpstream, body: bytes) -> tuple[float, int]:
    """Seconds to the head, and the events of the answer."""
    began = time.perf_counter()
    call = EngineCall(endpoint=Endpoint.CHAT, body=body)
    async with engine.open(call) as answer:
        head_s = time.perf_counter() - began
        if answer.status != 200:
            raise BenchFailed(f"the engine answered {answer.status}")
        events = 0
        async for chunk in answer.chunks():
            events += chunk.count(b"\n\n")
    return head_s, events


def _engines(upstream: Upstream) -> dict[str, OpenAIUpstream]:
    return {name: OpenAIUpstream(name, upstream.url, transport=make()) for name, make in _TRANSPORTS.items()}


async def requests(upstream: Upstream, prompt_tokens: int, count: int) -> list[RequestRow]:
    """Both transports by turns, request by request."""
    engines = _engines(upstream)
    talk = Conversation(prompt_tokens, seed="transport", model=MODEL)
    heads: dict[str, list[float]] = {name: [] for name in engines}
    cpu = dict.fromkeys(engines, 0.0)
    for number in range(count + 1):
        for name, engine in engines.items():
            began = time.process_time()
            head_s, _ = await _answered(engine, talk.body())
            if number:
                cpu[name] += time.process_time() - began
                heads[name].append(head_s * 1000)
    for engine in engines.values():
        await engine.aclose()
    return [
        RequestRow(
            transport=name,
            prompt_tokens=prompt_tokens,
            requests=count,
            head_p50_ms=percentile(heads[name], 50),
            head_p99_ms=percentile(heads[name], 99),
            cpu_ms=cpu[name] / count * 1000,
        )
        for name in engines
    ]


async def chunks(upstream: Upstream, streams: int, tokens_per_s: float, rounds: int) -> list[ChunkRow]:
    """Both transports by turns, round by round."""
    engines = _engines(upstream)
    bodies = [Conversation(1000, seed=f"transport/{number}", model=MODEL).body() for number in range(streams)]
    cpu = dict.fromkeys(engines, 0.0)
    events = dict.fromkeys(engines, 0)
    for number in range(rounds + 1):
        for name, engine in engines.items():
            began = time.process_time()
            answers = await asyncio.gather(*(_answered(engine, body) for body in bodies))
            if number:
                cpu[name] += time.process_time() - began
                events[name] += sum(count for _, count in answers)
    for engine in engines.values():
        await engine.aclose()
    return [
        ChunkRow(
            transport=name,
            streams=streams,
            tokens_per_s=tokens_per_s,
            chunks=events[name],
            cpu_us=cpu[name] / events[name] * 1e6,
        )
        for name in engines
    ]


@app.command()
def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few requests only: does it run at all?")] = False,
) -> None:
    """Compare httpx's own transport with the one on aiohttp, against the scripted engine, on this machine.

    Client and engine are two processes. Takes two minutes.

    \b
    python -m bench.transport
    python -m bench.transport --json transport.json --markdown > transport.md
    """
    where = machine("bench.transport")
    gc.disable()  # a collection would hit one transport and not the other
    try:
        result = uvloop.run(_measure_all(where, quick=quick))
    except BenchFailed as error:
        Console(stderr=True).print(f"[red]{error}[/]")
        raise typer.Exit(1) from error
    if json_file is not None:
        write_json(json_file, result)
    if as_markdown:
        print(markdown(sheets(result), where))
    else:
        print_sheets(sheets(result), where, Console())


async def _measure_all(where: Machine, *, quick: bool) -> Result:
    request_rows: list[RequestRow] = []
    chunk_rows: list[ChunkRow] = []
    with tempfile.TemporaryDirectory(prefix="governor-bench-") as folder:
        with scripted_engine(Path(folder), answer_tokens=1, tokens_per_s=0) as upstream:
            for size in _SIZES:
                request_rows += await requests(upstream, size, 3 if quick else 100)
        for streams in _STREAMS:
            pace = 40.0 if streams > 16 else 100.0
            with scripted_engine(Path(folder), answer_tokens=20 if quick else 100, tokens_per_s=pace) as upstream:
                chunk_rows += await chunks(upstream, streams, pace, 1 if quick else 3)
            length = 50 if quick else max(500, _UNPACED_TOKENS // streams)
            with scripted_engine(Path(folder), answer_tokens=length, tokens_per_s=0) as upstream:
                chunk_rows += await chunks(upstream, streams, 0, 1 if quick else 3)
    return Result(machine=where, requests=request_rows, chunks=chunk_rows)


def sheets(result: Result) -> list[Sheet]:
    """The tables of a result."""
    return [
        Sheet(
            title="A request, by the size of its body",
            columns=("prompt tokens", "transport", "requests", "ms to the head, p50 / p99", "CPU ms"),
            rows=[
                (
                    f"{row.prompt_tokens:,}",
                    row.transport,
                    str(row.requests),
                    f"{figure(row.head_p50_ms)} / {figure(row.head_p99_ms)}",
                    figure(row.cpu_ms, 2),
                )
                for row in result.requests
            ],
            note="The time to the head contains the engine's own work, which is the same for both.",
        ),
        Sheet(
            title="A relayed chunk",
            columns=("streams", "pace", "transport", "chunks", "CPU \u00b5s"),
            rows=[
                (
                    str(row.streams),
                    f"{row.tokens_per_s:g}/s" if row.tokens_per_s else "unpaced",
                    row.transport,
                    f"{row.chunks:,}",
                    figure(row.cpu_us),
                )
                for row in result.chunks
            ],
        ),
    ]


if __name__ == "__main__":
    app()
