"""What the doctor says."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    ERROR = "error"
    """It will not start, will crash, or will answer wrongly."""
    WARNING = "warning"
    """It runs, and worse than it could: slower, with less capacity, or with a risk that somebody has met."""
    INFO = "info"
    """Nothing is wrong; a person should know."""


ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """Stable, for scripts."""
    severity: Severity
    what: str
    """With the figures of this machine."""
    why: str
    """What comes of it."""
    evidence: str
    """Where it is known from: a measurement, an issue, a line of source, or this machine."""
    cure: str
