"""Texts that stand in the prompt twice, byte for byte: the newest stays, since what is old leaves first anyway.

Not only tool results: clients have been seen to send one summary as an assistant's and again as the user's message.
"""

from __future__ import annotations

from collections.abc import Iterator

from governor.compress.draft import Draft, Edit
from governor.compress.instead import described, with_line
from governor.policy.model import CompressionStage


def repeated_edits(draft: Draft) -> Iterator[Edit]:
    """Each large content that a later message has too, as a line that says so."""
    large = draft.large()
    newest = {draft.handle(index): index for index in large}
    editable = frozenset(draft.editable)
    for index in large:
        later = newest[draft.handle(index)]
        if later == index or index not in editable:
            continue
        what = f"{described(draft, index)}, the same text as in a later {draft.messages[later].role} message"
        edit = with_line(draft, index, CompressionStage.REPEATED, what, "a later message has the same text")
        if edit is not None:
            yield edit
