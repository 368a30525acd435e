"""Cutting one tool result down to a number of tokens, by what kind of text it is."""

from __future__ import annotations

import msgspec

from governor.compress.cuts import Note
from governor.compress.draft import Draft, Edit, Left
from governor.compress.jsontrim import trim_json
from governor.compress.kinds import Kind, kind_of
from governor.compress.lines import trim_lines
from governor.compress.messages import edit_texts, size_bytes, with_fields
from governor.policy.model import CompressionStage

_FEWEST_CHARS = 160
_TRIES = 3


def trim_text(text: str, keep_chars: int, note: Note) -> str:
    """``text`` with about ``keep_chars`` characters left. JSON stays JSON; the same text if it has no more."""
    if len(text) <= keep_chars:
        return text
    kind = kind_of(text)
    if kind is Kind.JSON:
        trimmed = trim_json(text, keep_chars, note, trim_text)
        if trimmed is not None:
            return trimmed
        kind = Kind.LOG
    return trim_lines(text, keep_chars, kind, note, trim_text)


def trimmed_result(
    draft: Draft, index: int, stage: CompressionStage, *, aim_tokens: int, most_tokens: int, why: str
) -> Edit | None:
    """An edit that leaves the result of ``index`` some ``aim_tokens`` and never more than ``most_tokens``; ``None``
    where that cannot be done.

    How many characters a token has is taken from the result itself and corrected by what the first try has.
    """
    message, size = draft.messages[index], draft.sizes[index]
    note = Note(draft.handle(index))
    share = aim_tokens / size
    for _ in range(_TRIES):
        content = _trimmed_content(message.content, share, note)
        if content is None:
            return None
        raw = with_fields(draft.current(index), {"content": content})
        if raw is None:
            return None
        now = draft.size_of(raw)
        if now <= most_tokens:
            return Edit(
                stage=stage,
                index=index,
                raw=raw,
                why=f"{why}; cut from {size:,} tokens to {now:,}",
                left=Left(note.handle, (draft.content_as_sent(index),)),
            )
        share *= aim_tokens / now * 0.9
    return None


def _trimmed_content(content: msgspec.Raw, share: float, note: Note) -> bytes | None:
    """Each text of the content cut to its share of it, but not below what a note takes."""
    least = min(_FEWEST_CHARS, size_bytes(content))
    return edit_texts(content, lambda text: trim_text(text, max(least, int(len(text) * share)), note))
