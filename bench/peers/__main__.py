"""``python -m bench.peers``: what gateways add to a request and cost, side by side.

All stand before the same scripted engine, are asked the same bodies by the same client, and are measured as
``bench.overhead`` measures ours.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs
import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.client import BenchFailed, Stream
from bench.conversation import Conversation
from bench.overhead import (
    ChunkCost,
    LatencyRow,
    RequestCost,
    chunk_cost,
    latency_row,
    load_for,
    request_cost,
    unpaced_tokens,
)
from bench.peers.programs import PEERS, Peer, free_port
from bench.processes import MODEL, Gateway, resident_mib, scripted_engine
from bench.report import Machine, Sheet, figure, machine, markdown, print_sheets, write_json
from bench.rounds import Load, run_rounds

_SIZES, _STREAMS = (1000, 10_000, 100_000), (1, 8, 64)
_QUICK_SIZES, _QUICK_STREAMS = (1000, 100_000), (8,)
_PAIRS = 40
_REQUESTS = 40
_ANSWERS_AGAIN_S = 20.0

app = typer.Typer(add_completion=False)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway's figures."""

    name: str
    requirement: str
    idle_mib: float
    """Resident memory once it answers."""
    latency: Sequence[LatencyRow]
    request_cost: Sequence[RequestCost]
    chunk_cost: Sequence[ChunkCost]
    failed: str = ""
    """Why the figures end where they do."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    compared: Sequence[Compared]


@app.command()
def main(
    names: Annotated[str, typer.Option("--only", help="Gateways, by name.")] = ",".join(PEERS),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few requests only: does it run at all?")] = False,
) -> None:
    """Compare gateways on this machine. The others are installed into the user's cache, which takes minutes once.

    Client, engine and one gateway at a time share this machine's cores. Takes four minutes a gateway.

    \b
    python -m bench.peers
    python -m bench.peers --only governor,litellm --quick
    """
    unknown = set(names.split(",")) - set(PEERS)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: known are {', '.join(PEERS)}")
    where, cache = machine("bench.peers"), Path(platformdirs.user_cache_dir("agent-governor")) / "bench"
    peers = [PEERS[name] for name in names.split(",")]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    gc.disable()  # a collection here would be taken for a gateway's time
    with Progress(*columns, console=Console(stderr=True)) as progress:
        compared = []
        for peer in peers:
            task = progress.add_task(peer.name, total=_steps(quick=quick))
            advance: Callable[[], None] = lambda task=task: progress.advance(task)  # type: ignore[misc]  # noqa: E731
            compared.append(uvloop.run(_compared(peer, cache, quick=quick, on_step=advance)))
            gc.collect()
    result = Result(machine=where, compared=compared)
    if json_file is not None:
        write_json(json_file, result)
    if as_markdown:
        print(markdown(sheets(result), where))
    else:
        print_sheets(sheets(result), where, Console())


def _loads(*, quick: bool) -> list[Load]:
    sizes, counts = (_QUICK_SIZES, _QUICK_STREAMS) if quick else (_SIZES, _STREAMS)
    rounds = {count: 2 if quick or count > 16 else max(5, _PAIRS // count) for count in counts}
    return [
        msgspec.structs.replace(load_for(size, count, quick=quick), rounds=rounds[count])
        for size in sizes
        for count in counts
    ]


def _steps(*, quick: bool) -> int:
    loads = _loads(quick=quick)
    return len(loads) + len({load.prompt_tokens for load in loads}) + len({load.streams for load in loads})


async def _compared(peer: Peer, cache: Path, *, quick: bool, on_step: Callable[[], None]) -> Compared:
    """One program for all of it; behind it the engine is started anew on its port for each pace."""
    latency: list[LatencyRow] = []
    requests: list[RequestCost] = []
    chunks: list[ChunkCost] = []
    loads = _loads(quick=quick)
    idle_mib, failed = 0.0, ""
    with tempfile.TemporaryDirectory(prefix="governor-bench-") as name:
        folder, port = Path(name), free_port()
        own = folder / peer.name
        own.mkdir()
        engine = partial(scripted_engine, folder, port=port)
        try:
            with ExitStack() as stack:
                with engine(answer_tokens=1, tokens_per_s=0) as upstream:
                    gateway = stack.enter_context(peer.start(cache, own, upstream))
                    await _until_it_answers(gateway)
                    idle_mib = resident_mib(gateway.pid)
                    for size in sorted({load.prompt_tokens for load in loads}):
                        requests.append(await request_cost(gateway, size, 5 if quick else _REQUESTS))
                        on_step()
                for load in loads:
                    with engine(answer_tokens=load.answer_tokens, tokens_per_s=load.tokens_per_s) as upstream:
                        await _until_it_answers(gateway)
                        measured = await run_rounds(load, upstream, gateway)
                        latency.append(latency_row(load, measured, resident_mib(gateway.pid)))
                        on_step()
                for count in sorted({load.streams for load in loads}):
                    with engine(answer_tokens=unpaced_tokens(count, quick=quick), tokens_per_s=0):
                        await _until_it_answers(gateway)
                        chunks.append(await chunk_cost(gateway, count, 0))
                        on_step()
        except BenchFailed as error:
            failed = str(error)[:200]
    return Compared(
        name=peer.name,
        requirement=peer.requirement,
        idle_mib=idle_mib,
        latency=latency,
        request_cost=requests,
        chunk_cost=chunks,
        failed=failed,
    )


async def _until_it_answers(gateway: Gateway) -> None:
    """The engine is another process than before, which not all of them take for granted at once."""
    body = Conversation(300, seed="again", model=MODEL).body()
    for _ in range(int(_ANSWERS_AGAIN_S / 0.5)):
        async with Stream(gateway.url, gateway.key) as stream:
            try:
                await stream.ask(body)
                return
            except (BenchFailed, OSError) as error:
                why = error
        await asyncio.sleep(0.5)
    raise BenchFailed(f"it does not answer: {why}")


def sheets(result: Result) -> list[Sheet]:
    """The tables of a result; a row for each figure, a column for each gateway."""
    names = [each.name for each in result.compared]
    titles = ("prompt\ntokens", "streams", *names)
    latency = []
    for key in dict.fromkeys((row.prompt_tokens, row.streams) for each in result.compared for row in each.latency):
        cells = []
        for each in result.compared:
            row = next((row for row in each.latency if (row.prompt_tokens, row.streams) == key), None)
            added = None if row is None else row.added["first token"]
            cells.append("\u2013" if added is None else f"{figure(added.p50_ms)} / {figure(added.p99_ms)}")
        latency.append((f"{key[0]:,}", str(key[1]), *cells))
    requests = [
        (
            f"{size:,}",
            *(_cell({row.prompt_tokens: row.cpu_ms for row in each.request_cost}, size) for each in result.compared),
        )
        for size in dict.fromkeys(row.prompt_tokens for each in result.compared for row in each.request_cost)
    ]
    chunks = [
        (str(count), *(_chunk_cell(each, count) for each in result.compared))
        for count in dict.fromkeys(row.streams for each in result.compared for row in each.chunk_cost)
    ]
    memory = [
        ("idle", *(figure(each.idle_mib, 0) for each in result.compared)),
        (
            "most",
            *(figure(max((row.resident_mib for row in each.latency), default=0.0), 0) for each in result.compared),
        ),
    ]
    failed = "; ".join(f"{each.name}: {each.failed}" for each in result.compared if each.failed)
    versions = ", ".join(
        f"{each.name} {each.requirement.partition('==')[2]}" for each in result.compared if each.requirement
    )
    return [
        Sheet(
            title="Time added to the first token, in ms: p50 / p99 over pairs",
            columns=titles,
            rows=latency,
            note=f"Beside ours: {versions}. {failed}".strip(),
        ),
        Sheet(title="CPU of a request, in ms", columns=("prompt\ntokens", *names), rows=requests),
        Sheet(
            title="CPU of a relayed chunk, in \u00b5s: its share of the request included / without",
            columns=("streams", *names),
            rows=chunks,
        ),
        Sheet(title="Resident memory, in MiB", columns=("", *names), rows=memory),
    ]


def _chunk_cell(compared: Compared, streams: int) -> str:
    """The requests have 1,000 tokens, and their cost was measured by itself."""
    row = next((row for row in compared.chunk_cost if row.streams == streams), None)
    request = next((row for row in compared.request_cost if row.prompt_tokens == _SIZES[0]), None)
    if row is None or request is None:
        return "\u2013"
    share_us = request.cpu_ms * 1000 * streams / row.chunks
    return f"{figure(row.cpu_us)} / {figure(max(0.0, row.cpu_us - share_us))}"


def _cell(figures: dict[int, float], key: int) -> str:
    return figure(figures[key], 2) if key in figures else "\u2013"


if __name__ == "__main__":
    app()
