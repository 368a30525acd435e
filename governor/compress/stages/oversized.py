"""Results larger than the room for one. Only this stage touches results that the model has not seen: where one of them
fills the window, nothing else can help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from governor.compress.draft import Draft, Edit
from governor.compress.rounds import Hold
from governor.compress.trimming import trimmed_result
from governor.policy.model import CompressionStage

_LEAST_TOKENS = 200
"""Less than this of a fresh result tells the model nothing."""


def oversized_edits(draft: Draft) -> Iterator[Edit]:
    """Each result above its room, cut down to it, the largest first. Where all else is done, the room is a fair part of
    what the target leaves for the results that wait."""
    waiting = [index for index in draft.open_results if not draft.is_protected(index)]
    room = draft.limits.oversized_tokens
    if draft.reach is Hold.OPEN and waiting:
        sizes = [draft.sizes[index] for index in waiting]
        room = min(room, _fair_part(sizes, sum(sizes) - draft.excess_tokens))
    if room < _LEAST_TOKENS:
        return
    olds = draft.editable_results(over_tokens=room)
    for index in sorted({*waiting, *olds}, key=lambda index: (-draft.sizes[index], index)):
        if draft.sizes[index] <= room:
            return
        edit = trimmed_result(
            draft,
            index,
            CompressionStage.OVERSIZED,
            aim_tokens=room * 4 // 5,
            most_tokens=room,
            why=f"more than the room of {room:,} tokens for one result",
        )
        if edit is not None:
            yield edit


def _fair_part(sizes: Sequence[int], left_tokens: int) -> int:
    """The size to which the largest are cut so that all have ``left_tokens`` together; the smaller ones keep theirs."""
    part = left_tokens
    for taken, size in enumerate(sorted(sizes)):
        part = left_tokens // (len(sizes) - taken)
        if size > part:
            break
        left_tokens -= size
    return part
