"""What a request is for, told from what real clients send.

The phrases are those of Hermes Agent 0.19.0 and OpenClaw 2026.9.6, recorded on the wire. They are anchored at the
start of the message (after OpenClaw's ``[date] `` stamp), so a person who quotes one does not change the kind.
"""

from __future__ import annotations

import re

from governor.types import TurnKind
from governor.wire.messages import text_of
from governor.wire.request import GenerationRequest

_STAMP = re.compile(r"\s*(?:\[[^\]\n]{1,80}\]\s*)?")
_COMPACTION_SYSTEM = ("You are a context summarization assistant.",)
_COMPACTION_USER = (
    "You are a summarization agent creating a context checkpoint.",
    "Pre-compaction memory flush.",
)
_TITLE_SYSTEM = ("Generate a short, descriptive title",)
_BACKGROUND_USER = ("Review the conversation above and", "Skill review. Distill new durable learning")
_LAST_USERS = 2
"""OpenClaw ends each request with a carrier message, so the instruction is the last or the one before."""


def _starts(text: str, phrases: tuple[str, ...]) -> bool:
    stamp = _STAMP.match(text)
    return text.startswith(phrases, stamp.end() if stamp else 0) or text.startswith(phrases)


def turn_kind(request: GenerationRequest) -> TurnKind:
    """The kind of a turn. Reads at most four messages, however long the conversation."""
    system = text_of(request.system)
    if not system and request.roles and request.roles[0] in {"system", "developer"}:
        system = text_of(request.messages[0])
    if _starts(system, _COMPACTION_SYSTEM):
        return TurnKind.COMPACTION
    if not request.tools_usable and _starts(system, _TITLE_SYSTEM):
        return TurnKind.TITLE
    for raw, role in zip(
        request.messages[: -_LAST_USERS - 1 : -1], request.roles[: -_LAST_USERS - 1 : -1], strict=True
    ):
        text = text_of(raw) if role == "user" else ""
        if _starts(text, _COMPACTION_USER):
            return TurnKind.COMPACTION
        if _starts(text, _BACKGROUND_USER):
            return TurnKind.BACKGROUND
    return TurnKind.TOOL_STEP if request.tools_usable else TurnKind.FINAL
