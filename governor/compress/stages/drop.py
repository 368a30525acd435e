"""Messages that are left out: the oldest rounds, as few as will do, or all that a summary was written about. One
message stands for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from governor.compress.draft import Draft, Left, Removal
from governor.compress.messages import handle_of
from governor.compress.record import is_record, record
from governor.compress.rounds import Round
from governor.policy.model import CompressionStage

_UNKNOWN_MARKER_TOKENS = 128
"""What a marker takes at most, its numbers and its handle not being known before."""


class Summary(msgspec.Struct, frozen=True):
    """What the engine has written about the beginning of a history."""

    text: str
    covered: int
    """Messages, from the first, that it was written about; it stands for none beyond them."""


def oldest_removed(draft: Draft) -> Removal | None:
    """What to leave out for the target, or as much as may be; ``None`` where nothing may.

    A round goes as a whole. Of one that holds something that must stay (the first, with the task; the last, with the
    tool calls at work) go the calls and answers, oldest first, but no word of the user that stands by itself.
    """
    gone: list[int] = []
    need = draft.excess_tokens + _UNKNOWN_MARKER_TOKENS
    for part in _parts(draft, draft.within_reach):
        if need <= 0:
            break
        gone += part
        need -= sum(draft.sizes[index] for index in part)
    why = f"the oldest {len(gone):,} messages that may be left out"
    return _removal(draft, CompressionStage.DROP, gone, why, draft.summary)


def summarised_removed(draft: Draft, summary: Summary) -> Removal | None:
    """All that may be left out of what the summary was written about, so that the cut lasts; ``None`` where nothing
    may."""
    about = [index for index in draft.within_reach if index < summary.covered]
    gone = [index for part in _parts(draft, about) for index in part]
    why = f"a summary stands for {len(gone):,} messages"
    return _removal(draft, CompressionStage.SUMMARY, gone, why, summary.text)


def _removal(draft: Draft, stage: CompressionStage, gone: Sequence[int], why: str, summary: str) -> Removal | None:
    if not gone:
        return None
    everything = sorted({*gone, *_gone_before(draft)})
    values = tuple(draft.originals[index] for index in everything)
    handle = handle_of(*values)
    return Removal(
        stage=stage,
        indices=tuple(gone),
        marker_at=everything[0],
        marker=_marker(draft, everything, handle, summary),
        why=why,
        left=Left(handle, values),
        summary=summary,
    )


def _parts(draft: Draft, indices: Iterable[int]) -> Iterator[list[int]]:
    """Those of ``indices`` that may go, as they go together, oldest first."""
    may_go = bytearray(raw is None for raw in draft.raws)
    for index in indices:
        may_go[index] = True
    for each in draft.rounds.rounds:
        if all(may_go[each.start : each.end]):
            yield [index for index in range(each.start, each.end) if draft.raws[index] is not None]
        else:
            yield from _of_held(draft, each, may_go)


def _of_held(draft: Draft, held: Round, may_go: bytearray) -> Iterator[list[int]]:
    for unit in held.units:
        is_gone = draft.raws[unit.start] is None
        first = draft.messages[unit.start]
        is_user = first.role == "user" and not is_record(first)
        if all(may_go[unit.start : unit.end]) and not is_gone and not is_user:
            yield list(range(unit.start, unit.end))


def _gone_before(draft: Draft) -> Iterable[int]:
    return (index for index, raw in enumerate(draft.raws) if raw is None)


def _marker(draft: Draft, gone: Sequence[int], handle: str, summary: str) -> bytes:
    """A record in the role that keeps the roles alternating, and never the user's last word, which would be taken for
    the task."""
    absent = set(gone)
    before = draft.messages[gone[0] - 1].role if gone[0] else ""
    user_follows = any(index > gone[0] and index not in absent for index in draft.rounds.users)
    role = "user" if before != "user" and user_follows else "assistant"
    return record(role, len(gone), handle, summary)
