"""The tool by which a model brings back what left its prompt: how it is offered, what it was asked for, what it says.
Pure.

It lives here because it speaks of the handles that compression leaves in a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from governor.compress.cuts import head, tail
from governor.wire.request import GenerationRequest, parse
from governor.wire.spliced import OwnCall

NAME = "governor_recall"
MOST_RECALLS = 4
"""In one turn; what is asked for beyond is refused in words, once, and then the answer is ended."""
MOST_PARALLEL = 8
"""Calls of one message that are answered, if only by a refusal; the others are as if never made."""
PART_CHARS = 12_000
"""Of a text, where the model does not say how much it wants: some 3,000 to 4,000 tokens."""
MOST_PART_CHARS = 48_000
_MOST_ARGUMENT_CHARS = 1_000
_LEAST_CHARS = 200
"""Less of a text is worth nothing."""
_HANDLE = re.compile(r"gov-[0-9a-f]{16}")
_TOOLS = msgspec.json.Decoder(list[msgspec.Raw])

_DESCRIPTION = (
    "Read again what was left out of this conversation to keep it short. A line in brackets stands in its place and "
    "ends in a handle such as gov-0123456789abcdef. Use it only when you need the exact text that a handle stands for."
)
TOOL: bytes = msgspec.json.encode(
    {
        "type": "function",
        "function": {
            "name": NAME,
            "description": _DESCRIPTION,
            "parameters": {
                "type": "object",
                "properties": {
                    "handle": {"type": "string", "description": "gov- and 16 hexadecimal digits, as it stands there."},
                    "offset": {
                        "type": "integer",
                        "description": "Character to begin at, for a long text; negative: counted from its end.",
                    },
                    "limit": {
                        "type": "integer",
                        "description": f"Most characters to return; {PART_CHARS} if left out.",
                    },
                },
                "required": ["handle"],
            },
        },
    }
)
"""As it is sent; never changed, since all that follows it in a prompt would have to be computed anew."""


class Wanted(msgspec.Struct, frozen=True):
    """What one call asks for."""

    handle: str
    offset: int | None = None
    """Characters; negative from the end. ``None``: all of it, or its head and its tail."""
    limit: int | None = None


def names_of(request: GenerationRequest) -> frozenset[str]:
    """Of the client's own tools, as far as they can be read."""
    try:
        tools: Any = [] if request.tools is None else msgspec.json.decode(request.tools)
    except (msgspec.MsgspecError, RecursionError):
        return frozenset()
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    return frozenset(name for name in names if isinstance(name, str))


def can_offer(request: GenerationRequest) -> bool:
    """A chat of one answer whose client offers tools of its own: a tool list of ours alone would change what the model
    takes itself to be there for, and side calls, as for a title, come without."""
    return request.choices == 1 and request.tools is not None and bool(_TOOLS.decode(request.tools))


def with_tool(request: GenerationRequest) -> GenerationRequest:
    """The same with the tool behind the client's, all else byte for byte."""
    tools = b"[]" if request.tools is None else bytes(request.tools)
    longer = tools[: tools.rindex(b"]")].rstrip() + b"," + TOOL + b"]"
    return parse(request.endpoint, request.json.edited({"tools": longer}))


def wanted(arguments: str) -> Wanted | str:
    """What is asked for, or a sentence for the model that says what is wrong with it."""
    if len(arguments) > _MOST_ARGUMENT_CHARS:
        return f'[{NAME}: these arguments are too long. It takes {{"handle": "gov-…"}}.]'
    try:
        given: Any = msgspec.json.decode(arguments.encode(errors="replace"))
    except (msgspec.MsgspecError, RecursionError):
        return f'[{NAME}: these arguments are not JSON. It takes {{"handle": "gov-…"}}.]'
    handle = given.get("handle") if isinstance(given, dict) else None
    found = _HANDLE.search(handle) if isinstance(handle, str) else None
    if found is None:
        return f"[{NAME}: a handle is gov- and 16 hexadecimal digits, as it stands in the conversation.]"
    offset, limit = _integer(given.get("offset")), _integer(given.get("limit"))
    return Wanted(found[0], offset, limit if limit is None or limit > 0 else None)


def unknown(handle: str) -> str:
    return f"[{NAME}: nothing is kept under {handle}. It was never there, or is no longer kept. Do not ask again.]"


def said_before(asked: Wanted) -> str:
    return f"[{NAME}: {asked.handle} was recalled just before; it stands above.]"


def no_room(handle: str, tokens: int) -> str:
    return f"[{NAME}: {handle} does not fit: {max(0, tokens):,} tokens are left. Go on without it.]"


def no_more(most: int) -> str:
    return f"[{NAME}: no more than {most} recalls in one turn. Answer with what you have.]"


def excerpt(text: str, asked: Wanted, size_of: Callable[[str], int], most_tokens: int) -> str | None:
    """As much of ``text`` as was asked for and as fits, with a line that says what is missing and how to get it;
    ``None`` where so little fits that it is worth nothing."""
    chars = min(asked.limit or PART_CHARS, MOST_PART_CHARS)
    while True:
        part = _part(text, asked, chars)
        tokens = size_of(part)
        if tokens <= most_tokens:
            return part
        chars = min(chars, len(text))
        chars = min(chars - 1, int(chars * max(0, most_tokens) / tokens * 0.9))
        if chars < _LEAST_CHARS:
            return None


def _part(text: str, asked: Wanted, chars: int) -> str:
    total = len(text)
    if asked.offset is None:
        return text if total <= chars else _ends(text, chars)
    start = max(0, total + asked.offset) if asked.offset < 0 else min(asked.offset, total)
    part = head(text[start:], chars)
    end = start + len(part)
    if not part and start < total:  # one character as a reader sees it is longer than was asked for
        part, end = text[start : start + chars], min(total, start + chars)
    where = f"characters {start:,} to {end:,} of {total:,}"
    more = f"; for what follows: offset={end}" if end < total else ""
    return f"{part}\n[{where}{more}]"


def _ends(text: str, chars: int) -> str:
    first = head(text, chars * 3 // 4)
    last = tail(text, chars - len(first))
    left_out = len(text) - len(first) - len(last)
    note = f"[{left_out:,} of {len(text):,} characters left out here; to read them: offset={len(first)}]"
    return f"{first}\n{note}\n{last}"


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def answered_message(content: str, reasoning: str, calls: Sequence[OwnCall], ids: Sequence[str]) -> bytes:
    """The model's own message, which is to stand before the results; ``reasoning``: empty where it is not to be shown
    again. Arguments that are no JSON object would be refused by templates that read them."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    message["tool_calls"] = [
        {"id": id_, "type": "function", "function": {"name": NAME, "arguments": _readable(call.arguments)}}
        for id_, call in zip(ids, calls, strict=True)
    ]
    return msgspec.json.encode(message)


def result_message(call_id: str, text: str) -> bytes:
    """Half a surrogate pair, which JSON may have and no engine takes, becomes a question mark."""
    content = text.encode(errors="replace").decode()
    return msgspec.json.encode({"role": "tool", "tool_call_id": call_id, "content": content})


def _readable(arguments: str) -> str:
    if len(arguments) > _MOST_ARGUMENT_CHARS:
        return "{}"
    try:
        given = msgspec.json.decode(arguments.encode(errors="replace"))
    except (msgspec.MsgspecError, RecursionError):
        return "{}"
    return arguments if isinstance(given, dict) else "{}"
