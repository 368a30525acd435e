"""Chat messages to token ids, in the ChatML form of Qwen3.5.

As Qwen's template does, it writes the tools into the system turn, trims what each message says, and drops the reasoning
of answers before the last question. Unlike it, each tool result is a turn of its own, so that a further message only
appends tokens.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from serve.twin_server.calls import ToolSpec, write_call, write_json
from serve.twin_server.pieces import Ids, encode

ASSISTANT = "<|im_start|>assistant\n"
"""Where an answer begins."""
THINKING = "<think>\n"
NOT_THINKING = "<think>\n\n</think>\n\n"
THINKING_ENDS = "\n</think>\n\n"

_ROLES = ("system", "developer", "user", "assistant", "tool")
_FORMAT = """\
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
</function>
</tool_call>

Reasoning may come before a function call, nothing may come after it."""


class BadMessages(ValueError):
    """The request's messages or tools cannot be rendered. ``field`` says which part, such as ``messages[2].role``."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    raw: str
    """Content as it came."""
    content: str
    reasoning: str
    calls: tuple[tuple[str, Mapping[str, Any]], ...]


def chat_ids(
    messages: Any,
    tools: Any = None,
    *,
    enable_thinking: bool = True,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> Ids:
    """The prompt of a chat request, from its decoded JSON. ``continue_final_message``: an answer at the end is the
    beginning of the one to be written; without it, it is taken for a user's (``_handle_last_assistant_message``).
    Raises :class:`BadMessages`."""
    read = [_message(message, f"messages[{index}]") for index, message in enumerate(_list(messages, "messages"))]
    if not read:
        raise BadMessages("messages", "at least one is needed")
    begun = ""
    if read[-1].role == "assistant" and continue_final_message:
        begun = read.pop().raw
    elif read[-1].role == "assistant" and add_generation_prompt:
        read[-1] = msgspec.structs.replace(read[-1], role="user", content=read[-1].raw.strip())
    offered = _list(tools, "tools")
    tool_specs(offered)
    turns = [*_turns(read, offered)]
    if add_generation_prompt or continue_final_message:
        turns.append(ASSISTANT + (THINKING if enable_thinking else NOT_THINKING))
    # A turn begins with a marker, so no token reaches into it from the one before.
    return array("I", b"".join(map(_encoded, turns))) + encode(begun)


def tool_specs(tools: Any) -> tuple[ToolSpec, ...]:
    """The functions that a request offers. Raises :class:`BadMessages`."""
    return tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(_list(tools, "tools")))


def last_user_text(messages: Any) -> str:
    """What the last user message says; nothing without one. Raises :class:`BadMessages`."""
    for index, message in reversed(list(enumerate(_list(messages, "messages")))):
        if _object(message, f"messages[{index}]").get("role") == "user":
            return _text(message.get("content"), f"messages[{index}].content")
    return ""


def turn_number(messages: Any) -> int:
    """Which answer of the conversation is asked for, the first being 1. Raises :class:`BadMessages`."""
    listed = enumerate(_list(messages, "messages"))
    return 1 + [_object(message, f"messages[{index}]").get("role") for index, message in listed].count("assistant")


def _turns(messages: Sequence[_Message], tools: Sequence[Any]) -> Iterator[str]:
    has_system = bool(messages) and messages[0].role in ("system", "developer")
    told = messages[0].content if has_system else ""
    if tools:
        listed = "".join(f"{write_json(tool)}\n" for tool in tools)
        system = f"# Tools\n\nYou have access to the following functions:\n\n<tools>\n{listed}{_FORMAT}"
        yield _turn("system", f"{system}\n\n{told}" if told else system)
    elif has_system:
        yield _turn("system", told)
    rest = messages[has_system:]
    last_question = max((index for index, message in enumerate(rest) if message.role == "user"), default=-1)
    for index, message in enumerate(rest):
        if message.role == "assistant":
            yield _turn("assistant", _answer(message, keeps_reasoning=index > last_question))
        elif message.role == "tool":
            yield _turn("user", f"<tool_response>\n{message.content}\n</tool_response>")
        else:
            yield _turn("system" if message.role == "developer" else message.role, message.content)


@lru_cache(maxsize=1024)
def _encoded(turn: str) -> bytes:
    """Conversations come again with each request, and are most of what is read."""
    return encode(turn).tobytes()


def _turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _answer(message: _Message, *, keeps_reasoning: bool) -> str:
    parts = [part for part in (message.content, "\n".join(write_call(*call) for call in message.calls)) if part]
    said = "\n\n".join(parts)
    return f"{THINKING}{message.reasoning}{THINKING_ENDS}{said}" if keeps_reasoning else said


def _message(value: Any, field: str) -> _Message:
    message = _object(value, field)
    role = message.get("role")
    if role not in _ROLES:
        raise BadMessages(f"{field}.role", f"must be one of {', '.join(_ROLES)}, not {role!r}")
    raw = _text(message.get("content"), f"{field}.content")
    content = raw.strip()
    reasoning = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    if role == "assistant":
        reasoning = _text(message.get("reasoning_content"), f"{field}.reasoning_content").strip()
        if not reasoning and "</think>" in content:
            reasoning, _, content = content.rpartition("</think>")
            reasoning, content = reasoning.rpartition("<think>")[2].strip(), content.strip()
        listed = _list(message.get("tool_calls"), f"{field}.tool_calls")
        calls = tuple(_call(call, f"{field}.tool_calls[{index}]") for index, call in enumerate(listed))
    return _Message(role=role, raw=raw, content=content, reasoning=reasoning, calls=calls)


def _call(value: Any, field: str) -> tuple[str, Mapping[str, Any]]:
    function = _object(_object(value, field).get("function"), f"{field}.function")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        raise BadMessages(f"{field}.function.name", "a text is needed")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise BadMessages(f"{field}.function.arguments", f"is not JSON: {error}") from error
    return name, _object(arguments, f"{field}.function.arguments")


def _tool(value: Any, field: str) -> ToolSpec:
    tool = _object(value, field)
    if tool.get("type", "function") != "function":
        raise BadMessages(f"{field}.type", f"must be function, not {tool['type']!r}")
    function = _object(tool.get("function"), f"{field}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise BadMessages(f"{field}.function.name", "a text is needed")
    parameters = function.get("parameters")
    return ToolSpec(name, {} if parameters is None else _object(parameters, f"{field}.function.parameters"))


def _text(value: Any, field: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return "".join(_part(part, f"{field}[{index}]") for index, part in enumerate(_list(value, field)))


def _part(value: Any, field: str) -> str:
    part = _object(value, field)
    if part.get("type") != "text":
        raise BadMessages(f"{field}.type", f"only text can be read, not {part.get('type')!r}")
    if not isinstance(part.get("text"), str):
        raise BadMessages(f"{field}.text", "a text is needed")
    return str(part["text"])


def _list(value: Any, field: str) -> Sequence[Any]:
    """Without it there is nothing in it."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise BadMessages(field, f"a list is needed, not {type(value).__name__}")
    return value


def _object(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadMessages(field, f"an object is needed, not {type(value).__name__}")
    return value
