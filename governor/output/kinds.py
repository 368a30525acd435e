"""What a request is for, told from what real clients send.

The phrases are those of Hermes Agent 0.19.0 and OpenClaw 2026.9.6, recorded on the wire. They are anchored at the
start of the message (after OpenClaw's ``[date] `` stamp), so a person who quotes one does not change the kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
LAST_MESSAGES = 2
"""OpenClaw ends each request with a carrier message, so the instruction is the last or the one before."""


def _starts(text: str, phrases: tuple[str, ...]) -> bool:
    stamp = _STAMP.match(text)
    return text.startswith(phrases, stamp.end() if stamp else 0) or text.startswith(phrases)


def turn_kind(request: GenerationRequest) -> TurnKind:
    """The kind of a turn. Reads at most four messages, however long the conversation."""
    system = text_of(request.system)
    if not system and request.roles and request.roles[0] in {"system", "developer"}:
        system = text_of(request.messages[0])
    last = zip(request.messages[-LAST_MESSAGES:], request.roles[-LAST_MESSAGES:], strict=True)
    return prompt_kind(system, [text_of(raw) for raw, role in last if role == "user"], request.tools_usable)


def prompt_kind(system: str, last_users: Sequence[str], tools_usable: bool) -> TurnKind:
    """The same of a prompt that is no longer a request. ``last_users``: the user's among the last
    :data:`LAST_MESSAGES` messages."""
    if _starts(system, _COMPACTION_SYSTEM):
        return TurnKind.COMPACTION
    if not tools_usable and _starts(system, _TITLE_SYSTEM):
        return TurnKind.TITLE
    for text in reversed(last_users):
        if _starts(text, _COMPACTION_USER):
            return TurnKind.COMPACTION
        if _starts(text, _BACKGROUND_USER):
            return TurnKind.BACKGROUND
    return TurnKind.TOOL_STEP if tools_usable else TurnKind.FINAL
