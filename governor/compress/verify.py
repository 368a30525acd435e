"""Whether a compression may be tried, and whether what came out counts. A small value for each session, no I/O.

Sizes here are exact counts of the whole rendered prompt, by whoever asks: a plan adds up messages, and a template may
see them otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256

import msgspec

from governor.compress.limits import Limits

_REMEMBERED_MISSES = 8


class Permit(StrEnum):
    """Whether to try."""

    TRY = "try"
    BELOW_TRIGGER = "below_trigger"
    COOLING_DOWN = "cooling_down"
    """The prompt has not grown enough since the last attempt."""
    FAILED_BEFORE = "failed_before"
    """The very same prompt was tried in vain."""
    STOPPED = "stopped"
    """Too many attempts in a row were in vain."""


class Outcome(StrEnum):
    """What came of an attempt. All but the first are misses."""

    ACCEPTED = "accepted"
    ABOVE_TARGET = "above_target"
    GAIN_TOO_SMALL = "gain_too_small"
    UNCHANGED = "unchanged"
    """What came out is what went in."""
    FIXED_POINT = "fixed_point"
    """Another prompt came out as one that came out before: what was added since has not reached it."""
    NO_RESULT = "no_result"
    """No plan, or a summary that failed."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Both prompts, by their digests and exact counts. ``after`` is absent where nothing came out."""

    before_digest: bytes
    before_tokens: int
    after_digest: bytes | None = None
    after_tokens: int = 0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a session's attempts. Starts empty."""

    misses: int = 0
    """In a row."""
    last_tokens: int | None = None
    """What the prompt had after the last attempt."""
    accepted: tuple[bytes, bytes] | None = None
    """Digests of the last accepted attempt, before and after."""
    missed: tuple[bytes, ...] = ()
    """Digests of the prompts last tried in vain."""


def can_try(
    record: Record, digest: bytes, prompt_tokens: int, *, limits: Limits, attempts: int, cooldown_tokens: int
) -> Permit:
    """Whether a prompt may be compressed. The one that was compressed last, sent again, need not have grown: the same
    comes out."""
    if prompt_tokens < limits.trigger_tokens:
        return Permit.BELOW_TRIGGER
    if record.misses >= attempts:
        return Permit.STOPPED
    if record.accepted is not None and record.accepted[0] == digest:
        return Permit.TRY
    if digest in record.missed:
        return Permit.FAILED_BEFORE
    if record.last_tokens is not None and 0 <= prompt_tokens - record.last_tokens < cooldown_tokens:
        return Permit.COOLING_DOWN
    return Permit.TRY


def on_prompt(record: Record, prompt_tokens: int, limits: Limits) -> Record:
    """A prompt below the trigger ends a row of misses: the client, or we, got it down."""
    is_relief = record.misses and prompt_tokens < limits.trigger_tokens
    return msgspec.structs.replace(record, misses=0, missed=()) if is_relief else record


def judge(record: Record, attempt: Attempt, limits: Limits) -> tuple[Outcome, Record]:
    """Accept an attempt or not, and what to remember of it."""
    outcome = _outcome(record, attempt, limits)
    if outcome is Outcome.ACCEPTED and attempt.after_digest is not None:
        accepted = (attempt.before_digest, attempt.after_digest)
        return outcome, Record(accepted=accepted, last_tokens=attempt.after_tokens)
    missed = (*record.missed, attempt.before_digest)[-_REMEMBERED_MISSES:]
    return outcome, Record(
        misses=record.misses + 1, last_tokens=attempt.before_tokens, accepted=record.accepted, missed=missed
    )


def _outcome(record: Record, attempt: Attempt, limits: Limits) -> Outcome:
    if attempt.after_digest is None:
        return Outcome.NO_RESULT
    if attempt.after_digest == attempt.before_digest:
        return Outcome.UNCHANGED
    before, after = record.accepted or (None, None)
    if attempt.after_digest == after and attempt.before_digest != before:
        return Outcome.FIXED_POINT
    if attempt.after_tokens > limits.target_tokens:
        return Outcome.ABOVE_TARGET
    if attempt.before_tokens - attempt.after_tokens < limits.gain_tokens:
        return Outcome.GAIN_TOO_SMALL
    return Outcome.ACCEPTED


def digest_prompt(messages: Sequence[bytes | msgspec.Raw], tools: bytes | None = None) -> bytes:
    """Names a prompt by its bytes."""
    hasher = sha256(tools or b"")
    for raw in messages:
        view = memoryview(raw)
        hasher.update(len(view).to_bytes(8, "little"))
        hasher.update(view)
    return hasher.digest()
