"""The names clients themselves give their conversations, wherever they put them.

Only hints within one agent: an agent is named by its credential and nothing else. What each client sends was recorded
from Hermes Agent 0.19.0 and OpenClaw 2026.9.6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_HEADERS = ("x-agent-session", "x-session-affinity", "session_id")
_GENERATION = re.compile(r":\d+$")
_RUNTIME_LINE = re.compile(r"^Runtime: .*\bsessionId=([\w-]{8,})", re.MULTILINE)
_SESSION_LINE = re.compile(r"^Session ID:\s*(\S+)\s*$", re.MULTILINE)
_TRACEPARENT = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$")
_TAIL_CHARACTERS = 4000
_LONGEST = 200


def client_session_id(
    headers: Mapping[str, str], prompt_cache_key: str | None, first_user_text: str, system_text: str
) -> str | None:
    """The client's own session id, or ``None``. Pure. ``headers`` have lower-case names.

    In order: a static ``X-Agent-Session`` header, OpenClaw's affinity headers and ``prompt_cache_key`` (the
    ``:<generation>`` that counts its compactions is dropped), OpenClaw's ``Runtime:`` line in the first user message,
    the ``Session ID:`` line that Hermes puts near the end of its system prompt.
    """
    for name in _HEADERS:
        if found := _clean(headers.get(name)):
            return found
    if found := _clean(prompt_cache_key):
        return found
    if line := _RUNTIME_LINE.search(first_user_text[-_TAIL_CHARACTERS:]):
        return line.group(1)
    lines = _SESSION_LINE.findall(system_text[-_TAIL_CHARACTERS:])
    return _clean(lines[-1]) if lines else None


def trace_id(headers: Mapping[str, str]) -> str | None:
    """The W3C trace id, which OpenClaw keeps for one turn and its side calls; ``None`` if absent or malformed."""
    found = _TRACEPARENT.match(headers.get("traceparent", ""))
    return found.group(1) if found else None


def _clean(value: str | None) -> str | None:
    """Without generation; ``None`` for what cannot be an id: empty, overlong, with control characters."""
    if value is None:
        return None
    bare = _GENERATION.sub("", value.strip())
    return bare if bare and len(bare) <= _LONGEST and bare.isprintable() else None
