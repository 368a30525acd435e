"""The oldest rounds are left out, as few as will do; one message stands for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from governor.compress.draft import Draft, Left, Removal
from governor.compress.messages import handle_of
from governor.compress.rounds import Round

_UNKNOWN_MARKER_TOKENS = 128
"""What a marker takes at most, its numbers and its handle not being known before."""


def oldest_removed(draft: Draft) -> Removal | None:
    """What to leave out for the target, or as much as may be; ``None`` where nothing may.

    A round goes as a whole. Of one that holds something that must stay (the first, with the task; the last, with the
    tool calls at work) go the calls and answers, oldest first, but no word of the user that stands by itself.
    """
    gone: list[int] = []
    may_go = bytearray(raw is None for raw in draft.raws)
    for index in draft.within_reach:
        may_go[index] = True
    need = draft.excess_tokens + _UNKNOWN_MARKER_TOKENS
    for part in _parts(draft, may_go):
        if need <= 0:
            break
        gone += part
        need -= sum(draft.sizes[index] for index in part)
    if not gone:
        return None
    everything = sorted({*gone, *_gone_before(draft)})
    values = tuple(draft.originals[index] for index in everything)
    handle = handle_of(*values)
    return Removal(
        indices=tuple(gone),
        marker_at=everything[0],
        marker=_marker(draft, everything, handle),
        why=f"the oldest {len(gone):,} messages that may be left out",
        left=Left(handle, values),
    )


def _parts(draft: Draft, may_go: bytearray) -> Iterator[list[int]]:
    """What goes together, oldest first."""
    for each in draft.rounds.rounds:
        if all(may_go[each.start : each.end]):
            yield [index for index in range(each.start, each.end) if draft.raws[index] is not None]
        else:
            yield from _of_held(draft, each, may_go)


def _of_held(draft: Draft, held: Round, may_go: bytearray) -> Iterator[list[int]]:
    for unit in held.units:
        is_gone = draft.raws[unit.start] is None
        is_user = draft.messages[unit.start].role == "user"
        if all(may_go[unit.start : unit.end]) and not is_gone and not is_user:
            yield list(range(unit.start, unit.end))


def _gone_before(draft: Draft) -> Iterable[int]:
    return (index for index, raw in enumerate(draft.raws) if raw is None)


def _marker(draft: Draft, gone: Sequence[int], handle: str) -> bytes:
    """A record in the role that keeps the roles alternating, and never the user's last word, which would be taken for
    the task."""
    absent = set(gone)
    before = draft.messages[gone[0] - 1].role if gone[0] else ""
    user_follows = any(index > gone[0] and index not in absent for index in draft.rounds.users)
    role = "user" if before != "user" and user_follows else "assistant"
    text = f"[record, not a task: {len(gone):,} earlier messages of this conversation left out: {handle}]"
    return msgspec.json.encode({"role": role, "content": text})
