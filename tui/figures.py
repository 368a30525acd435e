"""Figures as words: tokens, shares, times, rates, curves. Pure. Unknown is ``-``, never 0."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

_UNITS = (("K", 1e3), ("M", 1e6), ("G", 1e9))
_LEVELS = "▁▂▃▄▅▆▇█"
UNKNOWN = "-"


def figure(value: float | None, *, at_least: bool = False) -> str:
    """A count in at most six characters: exact below 10,000, then three digits and a unit. ``+`` says that more may
    have been used unreported."""
    if value is None:
        return UNKNOWN
    mark = "+" if at_least else ""
    if value < 9_999.5:
        return f"{value:,.0f}{mark}"
    for unit, size in _UNITS:
        in_unit = value / size
        if in_unit < 999.5 or unit == "G":
            digits = 2 if in_unit < 9.995 else 1 if in_unit < 99.95 else 0
            return f"{in_unit:.{digits}f}{unit}{mark}"
    raise AssertionError("the last unit takes all")


def size(byte_count: float | None, *, at_least: bool = False) -> str:
    """Bytes, in units of 1,000. ``+`` says that there may be more."""
    return UNKNOWN if byte_count is None else f"{figure(byte_count)}B{'+' if at_least else ''}"


def share(part: float | None, whole: float | None) -> str:
    """``part`` of ``whole`` in percent; ``-`` while either is unknown or there is nothing to share. Neither end is
    rounded to: 99.9 % is not all, and a little is not nothing."""
    if part is None or not whole:
        return UNKNOWN
    percent = round(100 * part / whole)
    if percent == 100 and part < whole:
        return "99%"
    return "<1%" if percent == 0 and part > 0 else f"{percent}%"


def ratio(value: float | None) -> str:
    """A factor: ``x3.1``."""
    if value is None:
        return UNKNOWN
    return f"x{value:.1f}" if value < 99.95 else f"x{value:,.0f}"


def duration(seconds: float) -> str:
    """Whole time passed, in at most five characters: ``0s``, ``99s``, ``5m20``, ``3h05``, ``4d``."""
    whole = max(0, math.floor(seconds))
    if whole < 100:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 100:
        return f"{minutes}m{rest:02}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}" if hours < 48 else f"{hours // 24}d"


def latency(milliseconds: float | None) -> str:
    """A measured time: with tenths where they matter, ``-`` where it is unknown."""
    if milliseconds is None:
        return UNKNOWN
    return f"{milliseconds / 1000:.1f}s" if milliseconds < 9_950 else duration(milliseconds / 1000)


def rate(per_s: float | None) -> str:
    """An estimate of tokens per second: tenths below ten."""
    if per_s is None:
        return UNKNOWN
    return f"~{per_s:.1f}" if 0 < per_s < 9.95 else f"~{figure(per_s)}"


def clock(at: float) -> str:
    """Wall-clock time of this machine; nothing for an event without a time."""
    return time.strftime("%H:%M:%S", time.localtime(at)) if at else ""


def curve(values: Sequence[float | None], *, top: float | None = None) -> str:
    """One character a value, the newest at the right; the tallest is ``top`` or the largest. A gap is a space."""
    known = [value for value in values if value is not None]
    tallest = top or max(known, default=0)
    if tallest <= 0:
        return "".join(" " if value is None else _LEVELS[0] for value in values)
    last = len(_LEVELS) - 1
    return "".join(
        " " if value is None else _LEVELS[min(last, max(0, math.ceil(value / tallest * len(_LEVELS)) - 1))]
        for value in values
    )
