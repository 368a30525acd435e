"""Old results replaced by a line, the oldest first."""

from __future__ import annotations

from collections.abc import Iterator

from governor.compress.draft import Draft, Edit
from governor.compress.instead import described, with_line
from governor.compress.messages import size_bytes
from governor.policy.model import CompressionStage


def stub_edits(draft: Draft) -> Iterator[Edit]:
    """Each old result worth it as a line that names the call, the size and the handle."""
    for index in draft.editable_results(over_tokens=draft.policy.stub_over_tokens):
        what = f"{described(draft, index)}, {size_bytes(draft.content_as_sent(index)):,} bytes, left out"
        edit = with_line(draft, index, CompressionStage.STUB, what, "an old result")
        if edit is not None:
            yield edit
