"""The chunks of a streamed chat, as far as several generations are joined to one answer. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from governor.errors import BadRequest
from governor.wire import sse
from governor.wire.jsonobject import JsonObject
from governor.wire.seam import Kind


class _Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """What one event's data says. ``Any``: an odd engine must not break the join."""

    id: Any = None
    created: Any = None
    model: Any = None
    choices: list[_Choice] = []
    usage: Any = None
    sglext: Any = None
    error: Any = None

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason if self.choices else None

    @property
    def texts(self) -> list[tuple[Kind, str]]:
        """What it shows, in the order in which it was written."""
        delta = self.choices[0].delta if self.choices else None
        if delta is None:
            return []
        found: list[tuple[Kind, str]] = []
        if delta.reasoning_content and isinstance(delta.reasoning_content, str):
            found.append((Kind.REASONING, delta.reasoning_content))
        if delta.content and isinstance(delta.content, str):
            found.append((Kind.TEXT, delta.content))
        return found

    @property
    def calls(self) -> list[Any]:
        """Pieces of tool calls."""
        delta = self.choices[0].delta if self.choices else None
        return delta.tool_calls if delta is not None and isinstance(delta.tool_calls, list) else []


_CHUNK = msgspec.json.Decoder(Chunk)


def read(data: bytes) -> Chunk | None:
    """``None`` for what is no chunk."""
    try:
        return _CHUNK.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Head(msgspec.Struct, frozen=True):
    """What all chunks of one answer have in common."""

    id: str
    created: int
    model: str

    def on(self, data: bytes) -> bytes:
        """A chunk of another generation as one of this answer's."""
        try:
            return JsonObject(data).edited(
                {"id": msgspec.json.encode(self.id), "created": msgspec.json.encode(self.created)}
            )
        except BadRequest:
            return data

    def text(self, kind: Kind, text: str) -> bytes:
        """An event that shows ``text``."""
        return self._choice({kind.value: text}, None)

    def finish(self, reason: str) -> bytes:
        """An event that says how the answer has ended."""
        return self._choice({}, reason)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """An event of the usage alone."""
        return self._event([], {"usage": usage})

    def _choice(self, delta: dict[str, str], finish_reason: str | None) -> bytes:
        return self._event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}], {})

    def _event(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        return sse.encode(msgspec.json.encode({**head, "choices": choices, **more}))


def head_of(chunk: Chunk) -> Head | None:
    """``None`` where a chunk does not say."""
    if not isinstance(chunk.id, str) or type(chunk.created) is not int or not isinstance(chunk.model, str):
        return None
    return Head(chunk.id, chunk.created, chunk.model)


class Written(msgspec.Struct, frozen=True):
    """What the earlier pieces of an answer add to its last one's usage."""

    usage: dict[str, Any]
    """As the engine reported it of the first piece: its prompt is the answer's."""
    tokens: int
    reasoning_tokens: int


def total(last: dict[str, Any], earlier: Written, *, thought: bool, completion: int | None = None) -> dict[str, Any]:
    """The usage of an answer whose last piece reports ``last``. ``thought``: that piece has begun as reasoning, so its
    count of that is true; ``completion``: what it has written, if not what it reports."""
    reported = last.get("completion_tokens") if completion is None else completion
    written = earlier.tokens + (reported if isinstance(reported, int) else 0)
    prompt = earlier.usage.get("prompt_tokens")
    reasoning = earlier.reasoning_tokens + (reasoning_in(last) if thought else 0)
    usage = {**last, "completion_tokens": written}
    usage |= {name: earlier.usage[name] for name in ("prompt_tokens", "prompt_tokens_details") if name in earlier.usage}
    if isinstance(prompt, int) and "total_tokens" in last:
        usage["total_tokens"] = prompt + written
    if "reasoning_tokens" in last:
        usage["reasoning_tokens"] = reasoning
    details = last.get("completion_tokens_details")
    if isinstance(details, dict):
        usage["completion_tokens_details"] = {**details, "reasoning_tokens": reasoning}
    elif reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


def reasoning_in(usage: dict[str, Any]) -> int:
    """Tokens of reasoning, 0 where nothing is said of them."""
    details = usage.get("completion_tokens_details")
    counts = (usage.get("reasoning_tokens"), details.get("reasoning_tokens") if isinstance(details, dict) else None)
    return next((count for count in counts if type(count) is int), 0)
