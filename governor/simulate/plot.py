"""A run as a plot: agents' lanes over time, L1 below; runs beneath each other on one axis of time.

matplotlib is an extra and slow to load, so it is imported when a plot is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.simulate.lanes import Lane, Phase, lanes
from governor.simulate.report import longest_stall
from governor.simulate.result import Result
from governor.simulate.table import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = frozenset({".png", ".svg", ".pdf"})

# Okabe and Ito's colours, which people with any colour blindness tell apart; waits are hatched besides.
COLOURS: Final = {
    Phase.HELD: "#D9D9D9",
    Phase.QUEUED: "#E69F00",
    Phase.PREFILL: "#56B4E9",
    Phase.DECODE: "#0072B2",
}
_LABELS: Final = {
    Phase.HELD: "held by the governor",
    Phase.QUEUED: "in the engine's queue",
    Phase.PREFILL: "prefill",
    Phase.DECODE: "decode",
}
_FAILED: Final = "#D55E00"
_IN_USE: Final = "#009E73"
_CACHED: Final = "#B9DFD2"
_INK: Final = "#333333"
_WIDTH_IN: Final = 12.0
_TRACK_IN: Final = 0.34
_LEAST_LANES_IN: Final = 1.5
_L1_IN: Final = 1.0
_CHROME_IN: Final = 1.0
_MANY_TRACKS: Final = 4


class PlotUnavailable(Exception):
    """The plot cannot be drawn or written."""


def plot(runs: Sequence[tuple[str, Result]], path: Path) -> None:
    """Draw runs, each with its name, into a file whose suffix says the format. Raises :class:`PlotUnavailable`."""
    if path.suffix.lower() not in FORMATS:
        raise PlotUnavailable(f"a plot is a file ending in {', '.join(sorted(FORMATS))}, not {path.name}")
    try:
        figure = _figure(runs)
    except ImportError as error:
        raise PlotUnavailable("plots need matplotlib: pip install matplotlib") from error
    try:
        figure.savefig(path, dpi=140)
    except OSError as error:
        raise PlotUnavailable(f"cannot write {path}: {error.strerror or error}") from error


def _figure(runs: Sequence[tuple[str, Result]]) -> Figure:
    # Figure itself, without pyplot, keeps no global state and needs no display.
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, see the module

    drawn = [(name, result, lanes(result)) for name, result in runs]
    heights: list[float] = []
    for _, _, agents in drawn:
        heights += [max(_LEAST_LANES_IN, _TRACK_IN * sum(_rows(lane) for lane in agents) + 0.2), _L1_IN]
    figure = Figure(figsize=(_WIDTH_IN, sum(heights) + _CHROME_IN + 0.45 * len(runs)), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    until_s = max((result.ended_s for _, result, _ in drawn), default=0.0) or 1.0
    unit_s, unit = (1.0, "seconds") if until_s < 300 else (60.0, "minutes") if until_s < 4 * 3600 else (3600.0, "hours")
    for number, (name, result, agents) in enumerate(drawn):
        _draw_lanes(axes[2 * number], name, result, agents, unit_s)
        _draw_l1(axes[2 * number + 1], result, unit_s)
    axes[-1].set_xlim(0, until_s / unit_s)
    axes[-1].set_xlabel(f"time ({unit})", color=_INK)
    _legend(figure)
    return figure


def _rows(lane: Lane) -> float:
    """Height of an agent's lane, in tracks: many that overlap are drawn thinner."""
    return min(max(1, len(lane.tracks)), _MANY_TRACKS)


def _draw_lanes(axes: Axes, name: str, result: Result, agents: Sequence[Lane], unit_s: float) -> None:
    top, middles = 0.0, []
    for lane in agents:
        height = _rows(lane)
        track_height = height / max(1, len(lane.tracks))
        for number, track in enumerate(lane.tracks):
            for phase in Phase:
                bars = [
                    (span.start_s / unit_s, (span.end_s - span.start_s) / unit_s)
                    for span in track
                    if span.phase is phase
                ]
                place = (top + number * track_height + 0.08 * track_height, 0.84 * track_height)
                hatch = "////" if phase is Phase.QUEUED else None
                axes.broken_barh(bars, place, facecolors=COLOURS[phase], hatch=hatch, edgecolor="#7A5500", linewidth=0)
        if lane.failed_s:
            at = [moment / unit_s for moment in lane.failed_s]
            axes.plot(
                at, [top + height / 2] * len(at), "x", color=_FAILED, markersize=7, markeredgewidth=2, clip_on=False
            )
        middles.append(top + height / 2)
        top += height
        axes.axhline(top, color="#EEEEEE", linewidth=0.8, zorder=0)
    axes.set_ylim(top or 1.0, 0)
    axes.set_yticks(middles, [_lane_label(lane, result) for lane in agents], parse_math=False)
    axes.tick_params(axis="y", length=0, labelcolor=_INK)
    title = f"{name}: {result.trace} on {result.machine}"
    axes.set_title(title, loc="left", fontsize=11, color=_INK, weight="bold", parse_math=False)
    _bare(axes)


def _lane_label(lane: Lane, result: Result) -> str:
    stall = longest_stall(result.of(lane.agent))
    name = lane.agent if len(lane.agent) <= 24 else lane.agent[:23] + "…"
    return name if stall is None else f"{name}\nlongest stall {duration(stall.seconds)}"


def _draw_l1(axes: Axes, result: Result, unit_s: float) -> None:
    capacity = result.capacity.l1_tokens
    samples = [*result.samples, *result.samples[-1:]]
    at = [*(sample.at_s / unit_s for sample in result.samples), *[result.ended_s / unit_s][: len(samples)]]
    for tokens, colour in (
        ([sample.l1_tokens for sample in samples], _CACHED),
        ([sample.l1_used_tokens for sample in samples], _IN_USE),
    ):
        axes.fill_between(at, [value / 1000 for value in tokens], step="post", color=colour, linewidth=0)
    axes.axhline(capacity / 1000, color=_FAILED, linewidth=1.2, linestyle="--")
    axes.set_ylim(0, capacity / 1000 * 1.12)
    axes.set_ylabel("L1\nK tokens", color=_INK, fontsize=9)
    axes.tick_params(labelsize=8, labelcolor=_INK)
    _bare(axes)


def _bare(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#BBBBBB")


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra, see the module
    from matplotlib.patches import Patch  # noqa: PLC0415

    signs: list[Patch | Line2D] = [
        Patch(
            facecolor=COLOURS[phase],
            hatch="////" if phase is Phase.QUEUED else None,
            edgecolor="#7A5500",
            linewidth=0,
            label=_LABELS[phase],
        )
        for phase in Phase
    ]
    signs += [
        Line2D([], [], linestyle="", marker="x", color=_FAILED, markeredgewidth=2, label="ended without a token"),
        Patch(facecolor=_IN_USE, label="L1 in use"),
        Patch(facecolor=_CACHED, label="L1 cached"),
        Line2D([], [], linestyle="--", color=_FAILED, label="L1 capacity"),
    ]
    figure.legend(handles=signs, loc="outside lower center", ncols=len(signs), fontsize=8, frameon=False)
