"""Old results cut down by what they are, the oldest first."""

from __future__ import annotations

from collections.abc import Iterator

from governor.compress.draft import Draft, Edit
from governor.compress.trimming import trimmed_result
from governor.policy.model import CompressionStage


def trim_edits(draft: Draft) -> Iterator[Edit]:
    """Each old result above ``trim_over_tokens`` with about ``trim_target_tokens`` of it left."""
    policy = draft.policy
    for index in draft.editable_results(over_tokens=policy.trim_over_tokens):
        edit = trimmed_result(
            draft,
            index,
            CompressionStage.TRIM,
            aim_tokens=policy.trim_target_tokens,
            most_tokens=policy.trim_over_tokens,
            why="an old result",
        )
        if edit is not None:
            yield edit
