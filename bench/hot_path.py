"""``python -m bench.hot_path``: what each step costs that a request and an answer take in the gateway, in CPU time.

One process and no connection, so the figures hold on a busy machine; medians of many.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console

from bench.client import BenchFailed
from bench.hot_chunks import GUARDED, PIECES, PLAIN, chunk_us, reads_of
from bench.hot_steps import measured
from bench.report import Machine, Sheet, figure, machine, markdown, print_sheets, write_json

_SIZES = (1000, 10_000, 100_000)
_CHUNKS = 2000
_STEPS: Mapping[str, str] = {
    "body": "body received",
    "turn": "turn opened in the books",
    "parse": "checked and parsed",
    "prompt": "messages taken out",
    "locate": "session found",
    "count": "counted",
    "watch, shape": "client watched, beginning kept stable",
    "measure": "measured",
    "plan, edit": "cap decided, body edited",
    "claim": "claim on L1",
    "learn": "learnt from the answer",
}
"""In their order."""
_BESIDE: Mapping[str, str] = {
    "head": "compressed: the head put in, found and counted",
    "history": "history: what the answer before is found by",
    "ids": "in pieces: asked for its tokens",
}

app = typer.Typer(add_completion=False)


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step, by prompt tokens."""

    step: str
    cpu_ms: dict[int, float]


class ChunkRow(msgspec.Struct, frozen=True, kw_only=True):
    looked_for: str
    at_once: int
    """Events in one read."""
    cpu_us: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    rounds: int
    steps: Sequence[StepRow]
    beside: Sequence[StepRow]
    """Only some policies or engines ask for these."""
    chunks: Sequence[ChunkRow]


@app.command()
def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few requests only: does it run at all?")] = False,
) -> None:
    """Measure the steps of a request that goes on with a known conversation, and of a relayed chunk.

    Takes half a minute.

    \b
    python -m bench.hot_path
    python -m bench.hot_path --json hot.json --markdown > hot.md
    """
    where = machine("bench.hot_path")
    gc.disable()  # a collection would be taken for the step that it falls into
    try:
        result = uvloop.run(_measure_all(where, rounds=10 if quick else 100))
    except BenchFailed as error:
        Console(stderr=True).print(f"[red]{error}[/]")
        raise typer.Exit(1) from error
    if json_file is not None:
        write_json(json_file, result)
    if as_markdown:
        print(markdown(sheets(result), where))
    else:
        print_sheets(sheets(result), where, Console())


async def _measure_all(where: Machine, *, rounds: int) -> Result:
    spent: dict[int, dict[str, list[int]]] = {}
    for size in _SIZES:
        with tempfile.TemporaryDirectory(prefix="governor-bench-") as folder:
            spent[size] = await measured(Path(folder), size, rounds)
        gc.collect()

    def row(step: str) -> StepRow:
        return StepRow(step=step, cpu_ms={size: statistics.median(spent[size][step]) / 1e6 for size in _SIZES})

    chunks = []
    for looked_for in (PLAIN, GUARDED, PIECES):
        for at_once in (1, 8):
            reads = reads_of(_CHUNKS, at_once)
            costs = [await chunk_us(looked_for, reads, _CHUNKS) for _ in range(max(3, rounds // 4))]
            chunks.append(ChunkRow(looked_for=looked_for, at_once=at_once, cpu_us=statistics.median(costs)))
            gc.collect()
    return Result(
        machine=where,
        rounds=rounds,
        steps=[row(step) for step in _STEPS],
        beside=[row(step) for step in _BESIDE],
        chunks=chunks,
    )


def sheets(result: Result) -> list[Sheet]:
    """The tables of a result."""
    sizes = sorted(result.steps[0].cpu_ms)

    def cells(row: StepRow, names: Mapping[str, str]) -> tuple[str, ...]:
        return (names[row.step], *(figure(row.cpu_ms[size], 3) for size in sizes))

    total = ("all of these", *(figure(sum(row.cpu_ms[size] for row in result.steps), 3) for size in sizes))
    return [
        Sheet(
            title="A request that goes on with a known conversation: CPU ms, by prompt tokens",
            columns=("step", *(f"{size:,}" for size in sizes)),
            rows=[*(cells(row, _STEPS) for row in result.steps), total],
        ),
        Sheet(
            title="Where the policy or the engine asks for it",
            columns=("step", *(f"{size:,}" for size in sizes)),
            rows=[cells(row, _BESIDE) for row in result.beside],
        ),
        Sheet(
            title="A relayed chunk",
            columns=("looked for", "events a read", "CPU \u00b5s"),
            rows=[(row.looked_for, str(row.at_once), figure(row.cpu_us, 2)) for row in result.chunks],
        ),
    ]


if __name__ == "__main__":
    app()
