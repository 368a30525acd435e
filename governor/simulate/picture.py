"""A run as a picture of characters: a lane an agent over time, how full L1 was below. Readable without colour."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from governor.simulate.lanes import Phase, lanes, shares
from governor.simulate.result import Result
from governor.simulate.table import duration

SIGNS: Final = {Phase.HELD: ("░", "bright_black"), Phase.QUEUED: ("▒", "yellow"), Phase.PREFILL: ("▓", "cyan"),
                Phase.DECODE: ("█", "blue")}  # fmt: skip
"""From light to full: the further a turn is, the darker."""
FAILED: Final = ("✗", "bold red")
BRIEF: Final = "▏"
"""In the phase's colour: a column that is mostly idle."""
_MOSTLY_IDLE: Final = 0.25
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_NAME_WIDTH: Final = 18
_FEWEST_COLUMNS: Final = 20
_TICKS: Final = 5


def picture(result: Result, width: int, until_s: float | None = None) -> Text:
    """``width`` characters wide. ``until_s``: where time ends, so that several pictures have one scale."""
    drawn = lanes(result)
    end_s = until_s or result.ended_s
    label = min(_NAME_WIDTH, max((len(lane.agent) for lane in drawn), default=0))
    label = max(label, len("L1 in use"))
    columns = max(_FEWEST_COLUMNS, width - label - 2)
    text = Text(no_wrap=True, overflow="crop")
    for lane in drawn:
        spans = [span for track in lane.tracks for span in track]
        text.append(f"{_short(lane.agent, label):<{label}} ")
        failed = {min(columns - 1, int(at / end_s * columns)) for at in lane.failed_s} if end_s else set()
        for column, seconds in enumerate(shares(spans, 0.0, end_s, columns)):
            if column in failed:
                text.append(*FAILED)
            elif seconds:
                sign, style = SIGNS[max(seconds, key=lambda phase: seconds[phase])]
                is_brief = sum(seconds.values()) < _MOSTLY_IDLE * end_s / columns
                text.append(BRIEF if is_brief else sign, style)
            else:
                text.append("·", "bright_black")
        text.append("\n")
    text.append(f"{'L1 in use':<{label}} ")
    text.append(_levels(result, end_s, columns), "magenta")
    text.append(f"\n{' ' * label} {_axis(end_s, columns)}\n{' ' * label} ")
    for phase, (sign, style) in SIGNS.items():
        text.append(sign, style)
        text.append(f" {phase.value}  ")
    text.append(f"{BRIEF} mostly idle  ")
    text.append(*FAILED)
    text.append(" no answer")
    return text


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _levels(result: Result, end_s: float, columns: int) -> str:
    """The highest use in each column; a column without a look at the engine shows the one before."""
    capacity = result.capacity.l1_tokens
    if not end_s or not capacity:
        return ""
    peaks: list[float | None] = [None] * columns
    for sample in result.samples:
        column = int(sample.at_s / end_s * columns)
        if column < columns:
            peaks[column] = max(peaks[column] or 0.0, sample.l1_used_tokens / capacity)
    signs, share = [], 0.0
    for peak in peaks:
        share = share if peak is None else peak
        # Anything above nothing is seen.
        signs.append(_LEVELS[min(len(_LEVELS) - 1, max(bool(share), round(share * (len(_LEVELS) - 1))))])
    return "".join(signs)


def _axis(end_s: float, columns: int) -> str:
    line = [" "] * columns
    for tick in range(_TICKS):
        column = round((columns - 1) * tick / (_TICKS - 1))
        label = duration(end_s * tick / (_TICKS - 1)) if tick else "0"
        start = 0 if not tick else columns - len(label) if tick == _TICKS - 1 else max(0, column - len(label) // 2)
        if all(sign == " " for sign in line[max(0, start - 1) : start + len(label) + 1]):
            line[start : start + len(label)] = label
    return "".join(line[:columns])
