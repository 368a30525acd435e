"""How each suite's figures are laid out for people: the same tables on the terminal, in Markdown and as plots. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from governor.measure.result import Case, Measure, Metric, Result


class Column(msgspec.Struct, frozen=True):
    title: str
    case: str
    metric: Metric


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """One table. A row is a context and a number of requests."""

    title: str
    columns: tuple[Column, ...]


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """A table, ready to print. The first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


_TIERS = Layout(
    title="Time to the first token, s",
    columns=(
        Column("cold", "cold", Metric.TTFT_S),
        Column("L1", "L1", Metric.TTFT_S),
        Column("L2", "L2", Metric.TTFT_S),
        Column("L3", "L3", Metric.TTFT_S),
        Column("L3 after a restart", "L3 after a restart", Metric.TTFT_S),
        Column("return after eviction", "return after eviction", Metric.TTFT_S),
        Column("prefill, tokens/s", "cold", Metric.PREFILL_RATE),
    ),
)
_DECODE = Layout(
    title="Decode",
    columns=(
        Column("tokens/s", "decode", Metric.DECODE_RATE),
        Column("accept length", "decode", Metric.ACCEPT_LENGTH),
        Column("tokens/event", "decode", Metric.TOKENS_PER_EVENT),
        Column("between tokens, ms: p50", "decode", Metric.ITL_P50_MS),
        Column("p99", "decode", Metric.ITL_P99_MS),
        Column("max", "decode", Metric.ITL_MAX_MS),
        Column("gap p99, ms", "decode", Metric.GAP_P99_MS),
        Column("longest gap, s", "decode", Metric.GAP_MAX_S),
    ),
)
_CONCURRENCY = Layout(
    title="Requests at once",
    columns=(
        Column("first token, s: median", "cold", Metric.TTFT_S),
        Column("of the last", "cold", Metric.TTFT_MAX_S),
        Column("prefill, tokens/s", "cold", Metric.PREFILL_RATE),
        Column("decode, tokens/s", "decode", Metric.DECODE_RATE),
        Column("between tokens, ms: p50", "decode", Metric.ITL_P50_MS),
        Column("p99", "decode", Metric.ITL_P99_MS),
        Column("max", "decode", Metric.ITL_MAX_MS),
        Column("gap p99, ms", "decode", Metric.GAP_P99_MS),
        Column("longest gap, s", "decode", Metric.GAP_MAX_S),
    ),
)
LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "tiers": (_TIERS,),
    "decode": (_DECODE,),
    "concurrency": (_CONCURRENCY,),
    "fit": (_TIERS, _CONCURRENCY),
}
"""Of suites that have one; others are listed figure by figure."""


def sheets(suite: str, measures: Sequence[Measure]) -> list[Sheet]:
    """All figures, laid out; those that no layout has stand in a list at the end."""
    found: list[Sheet] = []
    shown: set[tuple[Case, Metric]] = set()
    for layout in LAYOUTS.get(suite, ()):
        found.append(_sheet(layout, measures, shown))
    rest = [measure for measure in measures if (measure.case, measure.metric) not in shown]
    if rest:
        rows = tuple((str(each.case), each.metric.value, spread(each), str(len(each.values))) for each in rest)
        title = "Figures" if not found else "Further figures"
        found.append(Sheet(title=title, columns=("case", "metric", "median (quartiles)", "values"), rows=rows))
    return [sheet for sheet in found if sheet.rows]


def spread(measure: Measure) -> str:
    """Median, with the quartiles where there are several values."""
    if len(measure.values) == 1:
        return figure(measure.median)
    return f"{figure(measure.median)} ({figure(measure.q1)} to {figure(measure.q3)})"


def figure(value: float) -> str:
    """Four digits, or all of them before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def described(result: Result) -> str:
    """Where the figures are from, in a paragraph."""
    engine, machine = result.engine, result.machine
    told = [
        f"{result.started_at} UTC",
        f"`governor bench {result.suite}` {result.governor_version}",
        f"{engine.kind} {engine.version}, {engine.model}" + (f" ({engine.model_hash})" if engine.model_hash else ""),
        _pools(result),
        *machine.gpus,
        f"{machine.cores} cores of {machine.processor}, {machine.memory_gib:g} GiB, {machine.system}",
        _clock(result),
        f"load average {machine.load_before:g} before, {machine.load_after:g} after",
        f"{result.repeats} repeats, seed {result.seed}, prompts as {engine.prompts}",
        *(f"{name} {value}" for name, value in result.protocol.items()),
    ]
    if not machine.engine_is_local:
        told.append("the engine runs on another machine than the bench")
    if engine.speed != 1:
        told.append(f"times are the engine's, which ran {engine.speed:g} times as fast")
    return "; ".join(filter(None, told))


def _pools(result: Result) -> str:
    engine = result.engine
    named = (("L1", engine.device_tokens), ("L2", engine.host_tokens))
    pools = [f"{name} {tokens:,} tokens" for name, tokens in named if tokens is not None]
    if engine.storage is not None:
        pools.append(f"L3 {engine.storage}")
    return ", ".join(pools)


def _clock(result: Result) -> str:
    machine = result.machine
    parts = [
        f"{machine.processor_mhz:g} MHz" if machine.processor_mhz else "",
        machine.processor_governor or "",
    ]
    return " ".join(filter(None, parts))


def _sheet(layout: Layout, measures: Sequence[Measure], shown: set[tuple[Case, Metric]]) -> Sheet:
    cells: dict[tuple[int, int], dict[Column, Measure]] = {}
    for column in layout.columns:
        for measure in measures:
            case = measure.case
            if case.name == column.case and measure.metric is column.metric:
                cells.setdefault((case.requests, case.context_tokens), {})[column] = measure
                shown.add((case, measure.metric))
    used = [column for column in layout.columns if any(column in row for row in cells.values())]
    rows = tuple(
        (_row_name(*key), *(spread(row[column]) if column in row else "-" for column in used))
        for key, row in sorted(cells.items())
    )
    return Sheet(title=layout.title, columns=("context", *(column.title for column in used)), rows=rows)


def _row_name(requests: int, context: int) -> str:
    return f"{requests} x {context:,}" if requests > 1 else f"{context:,}"


def markdown(result: Result) -> str:
    """Ready to paste."""
    parts = [f"## {result.suite}: {result.engine.model} on {result.engine.kind}", f"{described(result)}."]
    if not result.is_complete:
        parts.append("**Interrupted: not all of it was measured.**")
    for sheet in sheets(result.suite, result.measures):
        head = [_line(sheet.columns), _line(["---", *["---:"] * (len(sheet.columns) - 1)])]
        parts.append("\n".join([f"**{sheet.title}**", "", *head, *(_line(row) for row in sheet.rows)]))
    parts += _listed("Thrown out", (f"{each.what}: {each.reason}" for each in result.thrown))
    parts += _listed("Not measured", (f"{each.what}: {each.reason}" for each in result.skipped))
    parts += _listed("Notes", result.notes)
    flags = ", ".join(f"{name}={value}" for name, value in result.engine.flags.items() if value not in (None, ""))
    if flags:
        parts.append(f"<details><summary>Settings of the engine</summary>\n\n{flags}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def _listed(title: str, lines: Iterable[str]) -> list[str]:
    items = [f"* {line}" for line in lines]
    return ["\n".join([f"**{title}**", "", *items])] if items else []


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
