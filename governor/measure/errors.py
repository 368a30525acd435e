"""Why nothing was measured.

::

    MeasureFailed
    ├── NoUsage             the engine does not report usage; chunks of a stream are not tokens
    └── NotComparable       two results that say nothing of each other
"""

from __future__ import annotations

from collections.abc import Sequence


class MeasureFailed(Exception):
    """Nothing that was asked for can be measured, or a file is none of ours. The message says what to do."""


class NoUsage(MeasureFailed):
    """An answer without usage: no rate can be had from it."""


class NotComparable(MeasureFailed):
    """``reasons``: each difference, as a sentence."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)
