"""A result's layouts as pictures: the median of each case, its quartiles as a band, over contexts or requests.

matplotlib is an extra and slow to load, so it is imported when a plot is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from governor.measure.layout import LAYOUTS, Column, described
from governor.measure.result import Measure, Metric, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = frozenset({".png", ".svg", ".pdf"})
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
"""Okabe and Ito's, which people with any colour blindness tell apart."""
_MARKERS: Final = "osD^vPX"
_WIDTH_IN, _HEIGHT_IN = 7.0, 4.2
_NOTE_CHARS: Final = 190
_LOG_SPAN: Final = 20
"""Where the largest value is so many times the least, the axis is logarithmic."""


class PlotUnavailable(Exception):
    """The plot cannot be drawn or written."""


def plots(result: Result, folder: Path, suffix: str = ".png") -> list[Path]:
    """One picture for each metric that has figures of two cases at least; returns what was written.

    Raises :class:`PlotUnavailable`.
    """
    if suffix not in FORMATS:
        raise PlotUnavailable(f"a plot is a file ending in {', '.join(sorted(FORMATS))}, not {suffix}")
    written = []
    for metric, columns in _by_metric(result).items():
        series = _series(result, columns)
        if sum(len(points) for _, points in series) < 2:
            continue
        try:
            figure = _figure(result, metric, series)
        except ImportError as error:
            raise PlotUnavailable("plots need matplotlib: pip install 'agent-governor[plot]'") from error
        file = folder / f"{result.suite}-{metric.value}{suffix}"
        try:
            figure.savefig(file, dpi=140)
        except OSError as error:
            raise PlotUnavailable(f"cannot write {file}: {error.strerror or error}") from error
        written.append(file)
    return written


def _by_metric(result: Result) -> dict[Metric, list[Column]]:
    found: dict[Metric, list[Column]] = {}
    for layout in LAYOUTS.get(result.suite, ()):
        for column in layout.columns:
            kept = found.setdefault(column.metric, [])
            if all(column.case != each.case for each in kept):
                kept.append(column)
    return found


def _series(result: Result, columns: Sequence[Column]) -> list[tuple[str, list[tuple[int, Measure]]]]:
    """Each column's figures over what varies in them: contexts, or requests."""
    by_requests = len({each.case.requests for each in result.measures}) > 1
    found = []
    for column in columns:
        mine = [each for each in result.measures if each.case.name == column.case and each.metric is column.metric]
        groups = sorted({each.case.context_tokens if by_requests else each.case.requests for each in mine})
        for group in groups:
            points = [
                (each.case.requests if by_requests else each.case.context_tokens, each)
                for each in mine
                if (each.case.context_tokens if by_requests else each.case.requests) == group
            ]
            name = f"{column.case}, {group:,} tokens" if by_requests else column.case
            found.append((name, sorted(points, key=lambda point: point[0])))
    return found


def _figure(result: Result, metric: Metric, series: Sequence[tuple[str, list[tuple[int, Measure]]]]) -> Figure:
    # Figure itself, without pyplot, keeps no global state and needs no display.
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, see the module

    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
    axes = figure.subplots()
    for number, (name, points) in enumerate(series):
        _draw(axes, number, name, points)
    values = [each.median for _, points in series for _, each in points]
    if min(values) > 0 and max(values) > _LOG_SPAN * min(values):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    by_requests = len({each.case.requests for each in result.measures}) > 1
    axes.set_xlabel("requests at once" if by_requests else "context, tokens")
    axes.set_ylabel(metric.value)
    axes.set_title(f"{result.suite}: {result.engine.model}, {result.engine.kind} {result.engine.version}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.supxlabel("\n".join(wrap(described(result), _NOTE_CHARS)), fontsize=5, color="#666666")
    return figure


def _draw(axes: Axes, number: int, name: str, points: Sequence[tuple[int, Measure]]) -> None:
    at = [x for x, _ in points]
    colour = COLOURS[number % len(COLOURS)]
    medians = [each.median for _, each in points]
    axes.plot(at, medians, color=colour, marker=_MARKERS[number % len(_MARKERS)], label=name, markersize=4)
    axes.fill_between(at, [each.q1 for _, each in points], [each.q3 for _, each in points], color=colour, alpha=0.2)
