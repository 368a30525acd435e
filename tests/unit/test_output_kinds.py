"""What a request is for. The recorded requests of real clients are told apart in ``tests/replay``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.output.kinds import turn_kind
from governor.types import TurnKind
from governor.wire.request import parse
from serve.engine import Endpoint
from tests.replay.recorded import RecordedRequest, recorded_requests

_TOOLS = [{"type": "function", "function": {"name": "f"}}]
_SUMMARISE = "You are a summarization agent creating a context checkpoint. Do it."


def _kind(*messages: tuple[str, Any], **fields: Any) -> TurnKind:
    body = {"model": "m", "messages": [{"role": role, "content": content} for role, content in messages]} | fields
    return turn_kind(parse(Endpoint.CHAT, json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("messages", "fields", "kind"),
    [
        ([("user", "hi")], {}, TurnKind.FINAL),
        ([("user", "hi")], {"tools": _TOOLS}, TurnKind.TOOL_STEP),
        ([("user", "hi")], {"tools": _TOOLS, "tool_choice": "none"}, TurnKind.FINAL),
        ([("user", "hi")], {"tools": []}, TurnKind.FINAL),
        ([("user", _SUMMARISE)], {}, TurnKind.COMPACTION),
        ([("user", [{"type": "text", "text": _SUMMARISE}])], {}, TurnKind.COMPACTION),
        (
            [("user", "[Sun 2026-11-29 11:42 UTC] Pre-compaction memory flush. Go.")],
            {"tools": _TOOLS},
            TurnKind.COMPACTION,
        ),
        ([("system", "You are a context summarization assistant. X"), ("user", "a")], {}, TurnKind.COMPACTION),
        ([("developer", "You are a context summarization assistant."), ("user", "a")], {}, TurnKind.COMPACTION),
        ([("system", "Generate a short, descriptive title (3-7 words)"), ("user", "a")], {}, TurnKind.TITLE),
        ([("system", "Generate a short, descriptive title"), ("user", "a")], {"tools": _TOOLS}, TurnKind.TOOL_STEP),
        ([("user", "a"), ("user", "Review the conversation above and learn")], {"tools": _TOOLS}, TurnKind.BACKGROUND),
        ([("user", "Skill review. Distill new durable learning"), ("user", "<<<carrier")], {}, TurnKind.BACKGROUND),
    ],
)
def test_kinds(messages: list[tuple[str, Any]], fields: dict[str, Any], kind: TurnKind) -> None:
    assert _kind(*messages, **fields) is kind


@pytest.mark.parametrize(
    "messages",
    [
        [("user", f"Why does it say: {_SUMMARISE}")],
        [("user", f"> {_SUMMARISE}")],
        [("assistant", _SUMMARISE), ("user", "what?")],
        [("tool", _SUMMARISE)],
        [("user", _SUMMARISE), ("assistant", "ok"), ("user", "thanks"), ("user", "more")],
        [("system", f"Never say: {_SUMMARISE}"), ("user", "a")],
    ],
)
def test_quoting_changes_nothing(messages: list[tuple[str, Any]]) -> None:
    assert _kind(*messages) is TurnKind.FINAL


def test_system_prompt_outside_the_messages() -> None:
    body = {
        "model": "m",
        "system": "Generate a short, descriptive title",
        "messages": [{"role": "user", "content": "a"}],
    }
    assert turn_kind(parse(Endpoint.MESSAGES, json.dumps(body).encode())) is TurnKind.TITLE


@pytest.mark.parametrize("recorded", recorded_requests(), ids=lambda recorded: recorded.name)
def test_recorded_requests_keep_their_kind_in_another_spelling(recorded: RecordedRequest) -> None:
    """As another JSON library would write them: with spaces, and every character escaped."""
    respelled = json.dumps(json.loads(recorded.body), indent=1).encode()
    assert respelled != recorded.body
    assert turn_kind(parse(recorded.endpoint, respelled)) is recorded.kind
