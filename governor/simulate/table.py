"""A run's figures as tables for a terminal; two runs side by side with what became of each figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from governor.simulate.report import AgentFigures, Report, Stall
from governor.simulate.result import GOOD_ENDS

_Value = float | int | None
_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_CLEAR: Final = 0.05
"""A smaller change is not coloured: it may well be the draw of the generators."""

_COMPARED: Final[tuple[tuple[str, Callable[[AgentFigures], _Value], bool], ...]] = (
    ("first token p50", lambda a: a.ttft_p50_s, True),
    ("first token p99", lambda a: a.ttft_p99_s, True),
    ("longest stall", lambda a: a.stall.seconds if a.stall else None, True),
    ("waited, all", lambda a: a.waits.governor_s + a.waits.engine_s, True),
    ("re-prefilled", lambda a: a.tokens.reprefilled, False),
    ("written", lambda a: a.tokens.output, False),
    ("good turns", lambda a: a.good, False),
)
"""What is compared, how it is read, and whether it is a time."""
_MORE_IS_BETTER: Final = frozenset({"written", "good turns"})


def tables(report: Report) -> RenderableType:
    """One run."""
    return Group(
        _title(report),
        Text(),
        _times(report),
        Text(),
        _tokens(report),
        Text(),
        *(Text.from_markup(line) for line in _notes(report)),
    )


def comparison(first: Report, others: Sequence[Report]) -> RenderableType:
    """Runs side by side, each with its ratio to the first."""
    table = _table("agent", "figure", first.name)
    for other in others:
        table.add_column(escape(other.name), justify="right", no_wrap=True)
        table.add_column("", justify="right", no_wrap=True)
    pairs = [(agent.agent, [_of(each, agent.agent) for each in (first, *others)]) for agent in first.agents]
    pairs.append((first.all.agent, [each.all for each in (first, *others)]))
    for name, figures in pairs:
        for number, (what, read, is_time) in enumerate(_COMPARED):
            values = [None if each is None else read(each) for each in figures]
            table.add_row(
                escape(name) if number == 0 else "",
                what,
                *_side_by_side(values, is_time, what in _MORE_IS_BETTER),
                end_section=number == len(_COMPARED) - 1,
            )
    runs = (first, *others)
    table.add_row("run", "all done after", *_side_by_side([run.makespan_s for run in runs], True, False))
    table.add_row("", "written a second", *_side_by_side([run.output_per_s for run in runs], False, True))
    ratios = [run.all.tokens.prefill_ratio for run in runs]
    table.add_row("", "prefilled / new", *_side_by_side(ratios, False, False))
    table.add_row("", "retractions", *_side_by_side([run.all.retractions for run in runs], False, False))
    return table


def duration(seconds: float | None) -> str:
    """For people, in few characters: ``0.21s``, ``48s``, ``49m12s``, ``3h05m``."""
    if seconds is None:
        return "-"
    if seconds < _MINUTE_S:
        return f"{seconds:.2f}s" if 0 < seconds < 10 else f"{seconds:.0f}s"
    whole = round(seconds)
    if whole < _HOUR_S:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _title(report: Report) -> Text:
    machine = f"twin of {report.machine}"
    return Text.assemble((report.name, "bold"), f": {report.trace} on the {machine}, seed {report.seed}")


def _times(report: Report) -> Table:
    table = _table(
        "agent", "turns", "good", "first p50", "p99", "max", "longest stall", "held", "queued", "paused", "retracted"
    )
    for each in (*report.agents, report.all):
        table.add_row(
            escape(each.agent),
            f"{each.turns:,}",
            f"{each.good:,}",
            duration(each.ttft_p50_s),
            duration(each.ttft_p99_s),
            duration(each.ttft_max_s),
            duration(each.stall.seconds if each.stall else None),
            duration(each.waits.governor_s),
            duration(each.waits.engine_s),
            f"{each.pauses:,}",
            f"{each.retractions:,}",
        )
    return table


def _tokens(report: Report) -> Table:
    table = _table(
        "agent", "prompt", "new", "from L1", "from L2", "from L3", "re-prefilled", "prefilled/new", "written"
    )
    for each in (*report.agents, report.all):
        tokens = each.tokens
        ratio = tokens.prefill_ratio
        counts = (tokens.prompt, tokens.new, tokens.cached_device, tokens.cached_host, tokens.cached_storage)
        table.add_row(
            escape(each.agent),
            *(f"{count:,}" for count in (*counts, tokens.reprefilled)),
            "-" if ratio is None else f"{ratio:.2f}",
            f"{tokens.output:,}",
        )
    return table


def _notes(report: Report) -> Iterator[str]:
    rate = "-" if report.output_per_s is None else f"{report.output_per_s:.1f}"
    yield f"all done after {duration(report.makespan_s)}; {rate} tokens written a second"
    engine = report.engine
    fullness = f"running turns held at most {_percent(engine.l1_peak_share)} of L1"
    if engine.slots_peak_share is not None:
        full = _percent(engine.slots_full_time_share)
        fullness += (
            f", of its states {_percent(engine.slots_peak_share)} (with the cache all of them, {full} of the time)"
        )
    yield f"{fullness}; at most {engine.running_peak} running, {engine.waiting_peak} queued, {engine.held_peak} held"
    worst = sorted((a for a in report.agents if a.stall), key=_stalled_s, reverse=True)
    for agent in worst[:3]:
        if agent.stall is not None:
            yield f"[bold]{escape(agent.agent)}[/] stood still for {escape(_told(agent.stall))}"
    for agent in report.agents:
        if agent.compactions:
            vain = f", {agent.compactions_in_vain} of them in vain" if agent.compactions_in_vain else ""
            yield f"{escape(agent.agent)} compacted {agent.compactions} times{vain}"
        bad = [f"{count} {end.value}" for end, count in agent.ends.items() if end not in GOOD_ENDS]
        if bad:
            yield f"{escape(agent.agent)}: turns without a good end: {', '.join(bad)}"


def _stalled_s(agent: AgentFigures) -> float:
    return agent.stall.seconds if agent.stall else 0.0


def _told(stall: Stall) -> str:
    where = "before the first token" if stall.before_first_token else "inside an answer"
    behind = f", while {', '.join(stall.behind)} ran" if stall.behind else ""
    why = f": {stall.reason}{behind}" if stall.reason else ""
    return f"{duration(stall.seconds)} {where} (turn {stall.turn_id}, from {duration(stall.at_s)} on){why}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _of(report: Report, agent: str) -> AgentFigures | None:
    return next((each for each in report.agents if each.agent == agent), None)


def _side_by_side(values: Sequence[_Value], is_time: bool, more_is_better: bool) -> list[str]:
    base = values[0]
    cells = [_shown(base, is_time)]
    for value in values[1:]:
        cells += [_shown(value, is_time), _ratio(base, value, more_is_better)]
    return cells


def _shown(value: _Value, is_time: bool) -> str:
    if value is None:
        return "-"
    if is_time:
        return duration(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _ratio(base: _Value, value: _Value, more_is_better: bool) -> str:
    if base is None or value is None:
        return ""
    if not base:
        return "" if not value else "new"
    ratio = value / base
    text = f"x{ratio:.2f}" if ratio >= 0.1 else f"x{ratio:.2g}"
    if abs(ratio - 1) < _CLEAR:
        return text
    return f"[green]{text}[/]" if (ratio > 1) == more_is_better else f"[red]{text}[/]"


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, header in enumerate(headers):
        table.add_column(escape(header), justify="left" if number == 0 else "right", no_wrap=True)
    return table
