"""What a patch is: a pure function that looks at one file's text and says what it sees and what it would write.

Whether a patch is needed is decided by the shape of the text, never by a version number: forks and distributions carry
half of upstream's changes. A shape that was not foreseen is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec


class Status(StrEnum):
    UNKNOWN_SHAPE = "unknown_shape"
    """Neither the text that the patch is for nor its result: nothing is touched."""
    NEEDED = "needed"
    APPLIED = "applied"
    """By us, or by hand in the very same words."""
    FIXED_UPSTREAM = "fixed_upstream"
    """What the patch brings is there, but not by us."""
    NOT_APPLICABLE = "not_applicable"
    """The file has nothing that the patch is about."""


class Place(StrEnum):
    """Which folder the targets of a patch are relative to."""

    KERNEL_SOURCE = "kernel_source"
    """A checkout of SGLang, or the folder with ``setup_rocm.py`` in it."""
    MODEL = "model"
    """The folder of a model's weights."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What stands outside the file and decides all the same."""

    mtp_tensors: tuple[str, ...] = ()
    """Names of the tensors under ``mtp.`` in the model's weights."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one file's text means to one patch."""

    status: Status
    detail: str
    """For a person: what was seen, and for an unknown shape what was expected."""
    patched: str | None = None
    """The whole new text, exactly when the status is ``NEEDED``."""


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """One change. ``look`` is pure, raises nothing, and finds ``APPLIED`` in what it returned as ``patched``."""

    id: str
    title: str
    why: str
    evidence: tuple[str, ...]
    versions: str
    """Engine versions it is meant for, for a person."""
    place: Place
    targets: tuple[str, ...]
    """Relative to the place; those that exist are looked at."""
    look: Callable[[str, Facts], Look]
    afterwards: str
    """What must be done for the change to take effect."""


def mark(patch_id: str) -> str:
    """The words by which a patched source tells our change from the same change made upstream."""
    return f"governor:{patch_id}"


def unknown(expected: str, saw: str) -> Look:
    return Look(status=Status.UNKNOWN_SHAPE, detail=f"expected {expected}; saw {saw}")


def overall(statuses: Iterable[Status]) -> Status:
    """One status for several files: the one that asks for most attention."""
    found = set(statuses)
    return next((status for status in Status if status in found), Status.NOT_APPLICABLE)
