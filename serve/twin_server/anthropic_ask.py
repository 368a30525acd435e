"""A request of the Messages dialect as the chat request that SGLang makes of it (``anthropic/serving.py``). Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from serve.twin_server.asks import ChatAsk, StreamOptions, ToolChoice
from serve.twin_server.errors import BadRequest

_TOOL_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


class MessagesAsk(msgspec.Struct, frozen=True, kw_only=True):
    """``/v1/messages``; what counts tokens has no ``max_tokens``."""

    messages: list[dict[str, Any]]
    model: str = "default"
    max_tokens: int | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool = False


def chat_ask(ask: MessagesAsk) -> ChatAsk:
    """Raises :class:`BadRequest`, naming the field."""
    messages: list[dict[str, Any]] = []
    if ask.system is not None:
        messages.append({"role": "system", "content": _text(ask.system, "system")})
    for index, message in enumerate(ask.messages):
        messages.extend(_messages(message, f"messages[{index}]"))
    thinks = ask.thinking is None or ask.thinking.get("type") != "disabled"
    return ChatAsk(
        messages=messages,
        model=ask.model,
        max_tokens=ask.max_tokens,
        stop=ask.stop_sequences,
        tools=None if ask.tools is None else [_tool(tool) for tool in ask.tools],
        tool_choice=_tool_choice(ask.tool_choice),
        chat_template_kwargs=None if thinks else {"enable_thinking": False},
        stream=ask.stream,
        stream_options=StreamOptions(include_usage=True, continuous_usage_stats=True) if ask.stream else None,
    )


def _messages(message: dict[str, Any], field: str) -> list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise BadRequest(f"{field}.role: must be user or assistant, not {role!r}")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise BadRequest(f"{field}.content: a text or a list is needed")
    if role == "assistant":
        return [_assistant(content, field)]
    told: list[dict[str, Any]] = []
    texts: list[str] = []
    for index, block in enumerate(content):
        place = f"{field}.content[{index}]"
        match _kind(block, place):
            case "text":
                texts.append(str(block.get("text", "")))
            case "tool_result":
                result = {"role": "tool", "tool_call_id": block.get("tool_use_id")}
                told.append(result | {"content": _text(block.get("content") or "", place)})
            case kind:
                raise BadRequest(f"{place}.type: only text and tool results can be read, not {kind!r}")
    if texts:
        told.append({"role": role, "content": "\n".join(texts)})
    return told


def _assistant(content: list[Any], field: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(content):
        place = f"{field}.content[{index}]"
        match _kind(block, place):
            case "text":
                texts.append(str(block.get("text", "")))
            case "thinking":
                thoughts.append(str(block.get("thinking", "")))
            case "redacted_thinking":
                pass
            case "tool_use":
                arguments = msgspec.json.encode(block.get("input") or {}).decode()
                function = {"name": block.get("name"), "arguments": arguments}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case kind:
                raise BadRequest(f"{place}.type: cannot be read: {kind!r}")
    said: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        said["reasoning_content"] = "\n".join(thoughts)
    return said | {"tool_calls": calls} if calls else said


def _kind(block: Any, place: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise BadRequest(f"{place}.type: a text is needed")
    return kind


def _text(content: Any, field: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{field}: a text or a list is needed")
    return "\n".join(str(block.get("text", "")) for block in content if _kind(block, field) == "text")


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _tool_choice(choice: dict[str, Any] | None) -> ToolChoice | dict[str, Any]:
    if choice is None:
        return "auto"
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _TOOL_CHOICES.get(str(choice.get("type")), "auto")
