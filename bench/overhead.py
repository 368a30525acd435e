"""``python -m bench.overhead``: what the gateway adds to a request, and what it costs in CPU and memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.client import BenchFailed, Stream, Timing
from bench.conversation import conversations
from bench.processes import MODEL, Gateway, both, cpu_seconds, resident_mib
from bench.report import Machine, Sheet, figure, machine, markdown, print_sheets, write_json
from bench.rounds import Load, Measured, percentile, run_rounds

_MOMENTS: dict[str, Callable[[Timing], float]] = {
    "first byte": lambda timing: timing.first_byte_s,
    "first token": lambda timing: timing.first_token_s,
    "end": lambda timing: timing.end_s,
}
_CPU_REQUESTS = 100
_SETTLE_S = 0.03
"""After which the turn log has the turn, too."""
_SECONDS_OF_CHUNKS = 5.0
_UNPACED_TOKENS = 4000

app = typer.Typer(add_completion=False)


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds the gateway added, over twins."""

    p50_ms: float
    p99_ms: float
    noise_p99_ms: float
    """What two requests straight to the engine differed by."""


class LatencyRow(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    streams: int
    answer_tokens: int
    requests: int
    added: dict[str, Added]
    cold_first_token_p50_ms: float
    cold_first_token_max_ms: float
    resident_mib: float


class RequestCost(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    requests: int
    cpu_ms: float
    """Of the gateway's process, for a request whose answer has one token."""


class ChunkCost(msgspec.Struct, frozen=True, kw_only=True):
    streams: int
    tokens_per_s: float
    """Of each stream; 0: as fast as they come, several of them in one read."""
    chunks: int
    cpu_us: float
    """Of the gateway's process for each chunk, its share of the request included."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    latency: Sequence[LatencyRow]
    request_cost: Sequence[RequestCost]
    chunk_cost: Sequence[ChunkCost]


def load_for(prompt_tokens: int, streams: int, *, quick: bool) -> Load:
    """Paces that leave two cores half idle: what is measured is the gateway, not a queue before a core."""
    many = streams > 16
    rounds = 2 if quick else max(3, min(60, 200 // streams))
    return Load(
        prompt_tokens=prompt_tokens,
        streams=streams,
        rounds=rounds,
        requests_per_s=32.0,
        tokens_per_s=40.0 if many else 100.0,
    )


def unpaced_tokens(streams: int, *, quick: bool) -> int:
    """Of each answer that comes as fast as it can: enough that its request hardly counts."""
    return 200 if quick else max(500, _UNPACED_TOKENS // streams)


async def latency(load: Load, on_round: Callable[[], None]) -> LatencyRow:
    """Added time of one load, with programs of its own."""
    with both(answer_tokens=load.answer_tokens, tokens_per_s=load.tokens_per_s) as (upstream, gateway):
        measured = await run_rounds(load, upstream, gateway, on_round)
        return latency_row(load, measured, resident_mib(gateway.pid))


def latency_row(load: Load, measured: Measured, resident: float) -> LatencyRow:
    added = {}
    for name, moment in _MOMENTS.items():
        extra = [twins.added_s(moment) * 1000 for twins in measured.warm]
        noise = [twins.noise_s(moment) * 1000 for twins in measured.warm]
        added[name] = Added(
            p50_ms=percentile(extra, 50), p99_ms=percentile(extra, 99), noise_p99_ms=percentile(noise, 99)
        )
    cold = [twins.added_s(_MOMENTS["first token"]) * 1000 for twins in measured.cold]
    return LatencyRow(
        prompt_tokens=load.prompt_tokens,
        streams=load.streams,
        answer_tokens=load.answer_tokens,
        requests=len(measured.warm),
        added=added,
        cold_first_token_p50_ms=percentile(cold, 50),
        cold_first_token_max_ms=max(cold),
        resident_mib=resident,
    )


async def request_cost(gateway: Gateway, prompt_tokens: int, requests: int) -> RequestCost:
    """CPU of one request after another of conversations that grow; the first one of each is not counted. For an engine
    whose answers have one token."""
    fresh = conversations(prompt_tokens, seed="cost", model=MODEL)
    talk, counted, spent = next(fresh), 0, 0.0
    async with Stream(gateway.url, gateway.key) as stream:
        await stream.ask(talk.body())
        while counted < requests:
            if talk.is_full:
                talk = next(fresh)
                await stream.ask(talk.body())
            talk.grow()
            before = cpu_seconds(gateway.pid)
            await stream.ask(talk.body())
            await asyncio.sleep(_SETTLE_S)
            spent += cpu_seconds(gateway.pid) - before
            counted += 1
    return RequestCost(prompt_tokens=prompt_tokens, requests=requests, cpu_ms=spent / requests * 1000)


async def chunk_cost(gateway: Gateway, streams: int, tokens_per_s: float) -> ChunkCost:
    """CPU of relaying long answers to short prompts. ``tokens_per_s``: the engine's pace."""
    fresh = conversations(1000, seed="chunks", model=MODEL)

    async def ask(body: bytes) -> Timing:
        async with Stream(gateway.url, gateway.key) as stream:
            return await stream.ask(body)

    before = cpu_seconds(gateway.pid)
    timings = await asyncio.gather(*(ask(next(fresh).body()) for _ in range(streams)))
    spent = cpu_seconds(gateway.pid) - before
    chunks = sum(timing.events for timing in timings)
    return ChunkCost(streams=streams, tokens_per_s=tokens_per_s, chunks=chunks, cpu_us=spent / chunks * 1e6)


@app.command()
def main(
    tokens: Annotated[str, typer.Option(help="Prompt sizes in tokens.")] = "1000,10000,100000",
    streams: Annotated[str, typer.Option(help="Concurrent streams.")] = "1,8,64",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few requests only: does it run at all?")] = False,
) -> None:
    """Measure what the gateway adds, against the scripted engine, on this machine.

    Client, engine and gateway are three processes and share this machine's cores. Takes eight minutes.

    \b
    python -m bench.overhead
    python -m bench.overhead --tokens 100000 --streams 8
    python -m bench.overhead --json overhead.json --markdown > overhead.md
    python -m bench.overhead --quick
    """
    sizes, counts = _numbers(tokens), _numbers(streams)
    where = machine("bench.overhead")
    loads = [load_for(size, count, quick=quick) for size in sizes for count in counts]
    err = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    gc.disable()  # a collection here would be taken for the gateway's time
    try:
        with Progress(*columns, console=err) as progress:
            result = uvloop.run(_measure_all(where, loads, sizes, counts, quick=quick, progress=progress))
    except BenchFailed as error:
        err.print(f"[red]{error}[/]")
        raise typer.Exit(1) from error
    if json_file is not None:
        write_json(json_file, result)
    if as_markdown:
        print(markdown(sheets(result), where))
    else:
        print_sheets(sheets(result), where, Console())


async def _measure_all(
    where: Machine,
    loads: Sequence[Load],
    sizes: Sequence[int],
    counts: Sequence[int],
    *,
    quick: bool,
    progress: Progress,
) -> Result:
    latencies, chunk_costs = [], []
    for load in loads:
        task = progress.add_task(f"{load.prompt_tokens} tokens, {load.streams} streams", total=load.rounds + 1)
        latencies.append(await latency(load, lambda task=task: progress.advance(task)))  # type: ignore[misc]
    costs = progress.add_task("CPU", total=len(sizes) + 2 * len(counts))

    async def counted(work: Coroutine[Any, Any, Any]) -> Any:
        done = await work
        progress.advance(costs)
        return done

    request_costs = []
    for size in sizes:
        with both(answer_tokens=1, tokens_per_s=0) as (_, gateway):
            request_costs.append(await counted(request_cost(gateway, size, 10 if quick else _CPU_REQUESTS)))
    for count in counts:
        pace = load_for(1000, count, quick=quick).tokens_per_s
        paced_tokens = (20 if quick else round(pace * _SECONDS_OF_CHUNKS)) * (4 if count == 1 else 1)
        for tokens, tokens_per_s in ((paced_tokens, pace), (unpaced_tokens(count, quick=quick), 0.0)):
            with both(answer_tokens=tokens, tokens_per_s=tokens_per_s) as (_, gateway):
                chunk_costs.append(await counted(chunk_cost(gateway, count, tokens_per_s)))
    return Result(machine=where, latency=latencies, request_cost=request_costs, chunk_cost=chunk_costs)


def sheets(result: Result) -> list[Sheet]:
    """The tables of a result."""
    latencies = [
        (
            f"{row.prompt_tokens:,}",
            str(row.streams),
            str(row.requests),
            *(f"{figure(row.added[name].p50_ms)} / {figure(row.added[name].p99_ms)}" for name in _MOMENTS),
            f"{figure(row.added['first token'].noise_p99_ms)}, {figure(row.added['end'].noise_p99_ms)}",
            f"{figure(row.cold_first_token_p50_ms)} / {figure(row.cold_first_token_max_ms)}",
            figure(row.resident_mib, 0),
        )
        for row in result.latency
    ]
    return [
        Sheet(
            title="Time added, in ms: p50 / p99 over pairs",
            columns=(
                "prompt\ntokens",
                "streams",
                "pairs",
                "to the\nfirst byte",
                "to the\nfirst token",
                "to the\nend",
                "noise p99:\ntoken, end",
                "new talk:\np50 / max",
                "MiB",
            ),
            rows=latencies,
            note="noise: what two requests straight to the engine differed by; new talk: to the first token of a "
            "conversation's first request, when nothing of it is known yet; MiB: the gateway's memory at the end.",
        ),
        Sheet(
            title="CPU of the gateway for a request",
            columns=("prompt tokens", "requests", "ms"),
            rows=[(f"{row.prompt_tokens:,}", str(row.requests), figure(row.cpu_ms, 2)) for row in result.request_cost],
        ),
        Sheet(
            title="CPU of the gateway for a relayed chunk",
            columns=("streams", "pace", "chunks", "\u00b5s"),
            rows=[
                (
                    str(row.streams),
                    f"{row.tokens_per_s:g}/s" if row.tokens_per_s else "unpaced",
                    f"{row.chunks:,}",
                    figure(row.cpu_us),
                )
                for row in result.chunk_cost
            ],
        ),
    ]


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: numbers with commas between them are needed") from error
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"{text!r}: every number must be 1 or more")
    return numbers


if __name__ == "__main__":
    app()
