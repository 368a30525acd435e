"""A generation request: the fields we govern as types, all else as the bytes it came in. One parser for each dialect.

What may be odd and is let through: unknown fields, consecutive user messages, a trailing empty assistant message,
content as part lists, unparsable tool-call arguments, ``reasoning_content`` anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from governor.errors import BadRequest
from governor.wire.beginnings import Known
from governor.wire.jsonobject import JsonObject, Span
from governor.wire.messages import joined
from serve.engine import Endpoint

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
MAX_MODEL_CHARS = 512
WITH_MESSAGES = frozenset({Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS})
"""Their prompt is a list in the field ``messages``, whose items have roles."""

_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder()
_NULL = b"null"


class _Head(msgspec.Struct):
    role: Any = None


_HEADS = msgspec.json.Decoder(list[_Head])


_Parser: TypeAlias = Callable[[JsonObject, Known | None], "GenerationRequest"]


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, whichever the dialect."""

    endpoint: Endpoint
    json: JsonObject
    model: str
    stream: bool = False
    wants_usage: bool = False
    """The client asked for a usage chunk (``stream_options.include_usage``)."""
    caps: Mapping[str, int] = {}
    """Output caps the client gave, by the field it used. Nulls are absent."""
    choices: int = 1
    messages: tuple[bytes, ...] = ()
    roles: tuple[str, ...] = ()
    """Role of each message; ``""`` where the dialect has none."""
    system: msgspec.Raw | None = None
    """System prompt where the dialect keeps it outside the messages."""
    tools: msgspec.Raw | None = None
    tools_usable: bool = False
    """Tools are offered and not switched off."""
    cache_key: str | None = None
    known: Known | None = None
    """What of its messages was read before."""

    @property
    def requested_cap(self) -> int | None:
        """The smallest cap the client gave."""
        return min(self.caps.values(), default=None)


def with_messages(request: GenerationRequest, messages: Sequence[bytes | msgspec.Raw]) -> GenerationRequest:
    """The same chat with other messages, all else byte for byte. Raises :class:`BadRequest` for messages that could not
    have come from a client."""
    json = JsonObject(request.json.edited({"messages": joined(messages)}))
    items, roles = _messages(json, ROLES, None)
    return msgspec.structs.replace(request, json=json, messages=items, roles=roles, known=None)


def with_beginning(request: GenerationRequest, beginning: Sequence[bytes], covered: int) -> GenerationRequest:
    """The same chat with these messages in place of the first ``covered``, all else byte for byte. Raises
    :class:`BadRequest` for messages that could not have come from a client."""
    messages = (*beginning, *request.messages[covered:])
    items = joined(messages)
    start = request.json.value_start("messages") + 1
    json = JsonObject(request.json.edited({"messages": items}), Span(start, start + len(items) - 2))
    roles = (*_roles(msgspec.Raw(joined(beginning)), ROLES), *request.roles[covered:])
    return msgspec.structs.replace(request, json=json, messages=messages, roles=roles, known=None)


def parse(endpoint: Endpoint, body: bytes, known: Known | None = None) -> GenerationRequest:
    """Read a body. ``known``: what it begins with, which is not read again. Raises :class:`BadRequest` that names the
    field at fault."""
    if known is not None and endpoint in WITH_MESSAGES:
        with contextlib.suppress(BadRequest):  # the whole of it says where
            return _PARSERS[endpoint](JsonObject(body, known.span), known)
    return _PARSERS[endpoint](JsonObject(body), None)


def _value(json: JsonObject, name: str) -> Any:
    raw = json.raw(name)
    try:
        return None if raw is None else _ANY.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"'{name}' is not valid JSON: {error}.", param=name) from error
    except RecursionError as error:
        raise BadRequest(f"'{name}' is nested too deeply.", param=name) from error


def _model(json: JsonObject) -> str:
    model = _value(json, "model")
    if not isinstance(model, str):
        raise BadRequest("'model' must be a string.", param="model")
    if not model or len(model) > MAX_MODEL_CHARS:
        raise BadRequest(f"'model' must have 1 to {MAX_MODEL_CHARS} characters.", param="model")
    return model


def _flag(json: JsonObject, name: str) -> bool:
    value = _value(json, name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"'{name}' must be true or false.", param=name)
    return bool(value)


def _integer(json: JsonObject, name: str, least: int = 1, most: int | None = None) -> int | None:
    value = _value(json, name)
    if value is None:
        return None
    if type(value) is not int or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise BadRequest(f"'{name}' must be an integer {span}.", param=name)
    return value


def _caps(json: JsonObject, *names: str) -> dict[str, int]:
    given = {name: _integer(json, name) for name in names}
    return {name: cap for name, cap in given.items() if cap is not None}


def _wants_usage(json: JsonObject) -> bool:
    options = _value(json, "stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise BadRequest("'stream_options' must be an object.", param="stream_options")
    return options.get("include_usage") is True


def _text(json: JsonObject, name: str) -> str | None:
    value = _value(json, name)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"'{name}' must be a string.", param=name)
    return value


def _items(raw: msgspec.Raw | None, name: str) -> tuple[bytes, ...]:
    try:
        return tuple(map(bytes, _LIST.decode(_NULL if raw is None else raw)))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"'{name}' must be a list.", param=name) from error


def _not_empty(items: tuple[bytes, ...], name: str) -> tuple[bytes, ...]:
    if not items:
        raise BadRequest(f"'{name}' must not be empty.", param=name)
    return items


def _messages(
    json: JsonObject, allowed: frozenset[str], known: Known | None
) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    raw = json.raw_new("messages")
    items = _items(raw, "messages")
    if known is not None:
        return (*known.messages, *items), (*known.roles, *_roles(raw, allowed))
    return _not_empty(items, "messages"), _roles(raw, allowed)


def _roles(messages: msgspec.Raw | None, allowed: frozenset[str]) -> tuple[str, ...]:
    try:
        heads = _HEADS.decode(_NULL if messages is None else messages)
    except msgspec.ValidationError as error:
        raise BadRequest("'messages' must be a list of objects.", param="messages") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"'messages' is not valid JSON: {error}.", param="messages") from error
    roles = []
    for index, head in enumerate(heads):
        if not isinstance(head.role, str) or head.role not in allowed:
            shown = head.role if isinstance(head.role, str) and head.role.isprintable() else type(head.role).__name__
            raise BadRequest(
                f"'messages[{index}].role' is {shown[:64]!r}; it must be one of {', '.join(sorted(allowed))}.",
                param=f"messages[{index}].role",
            )
        roles.append(head.role)
    return tuple(roles)


def _tools(json: JsonObject) -> tuple[msgspec.Raw | None, bool]:
    raw = json.raw("tools")
    if raw is None or bytes(raw) == _NULL:
        return None, False
    try:
        tools = _LIST.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest("'tools' must be a list.", param="tools") from error
    choice = _value(json, "tool_choice")
    off = choice == "none" or (isinstance(choice, dict) and choice.get("type") == "none")
    return raw, bool(tools) and not off


def _chat(json: JsonObject, known: Known | None) -> GenerationRequest:
    messages, roles = _messages(json, ROLES, known)
    tools, usable = _tools(json)
    return GenerationRequest(
        endpoint=Endpoint.CHAT,
        json=json,
        model=_model(json),
        stream=_flag(json, "stream"),
        wants_usage=_wants_usage(json),
        caps=_caps(json, "max_tokens", "max_completion_tokens"),
        choices=_integer(json, "n", most=128) or 1,
        messages=messages,
        roles=roles,
        tools=tools,
        tools_usable=usable,
        cache_key=_text(json, "prompt_cache_key"),
        known=known,
    )


def _text_or_list(json: JsonObject, name: str) -> msgspec.Raw | None:
    raw = json.raw(name)
    if raw is None or (len(raw) == len(_NULL) and bytes(raw) == _NULL):
        return None
    if bytes(memoryview(raw)[:1]) not in {b'"', b"["}:
        raise BadRequest(f"'{name}' must be a string or a list.", param=name)
    return raw


def _required(json: JsonObject, name: str) -> msgspec.Raw:
    raw = _text_or_list(json, name)
    if raw is None:
        raise BadRequest(f"'{name}' is missing.", param=name)
    return raw


def _completions(json: JsonObject, _known: Known | None) -> GenerationRequest:
    prompt = _required(json, "prompt")
    return GenerationRequest(
        endpoint=Endpoint.COMPLETIONS,
        json=json,
        model=_model(json),
        stream=_flag(json, "stream"),
        wants_usage=_wants_usage(json),
        caps=_caps(json, "max_tokens"),
        choices=_integer(json, "n", most=128) or 1,
        messages=(bytes(prompt),),
        roles=("",),
    )


def _responses(json: JsonObject, _known: Known | None) -> GenerationRequest:
    given = _required(json, "input")
    as_sent = bytes(given)
    items = _not_empty(_items(given, "input"), "input") if as_sent.startswith(b"[") else (as_sent,)
    tools, usable = _tools(json)
    return GenerationRequest(
        endpoint=Endpoint.RESPONSES,
        json=json,
        model=_model(json),
        stream=_flag(json, "stream"),
        wants_usage=True,
        caps=_caps(json, "max_output_tokens"),
        messages=items,
        roles=("",) * len(items),
        system=_text_or_list(json, "instructions"),
        tools=tools,
        tools_usable=usable,
        cache_key=_text(json, "prompt_cache_key"),
    )


def _anthropic(endpoint: Endpoint) -> _Parser:
    def parse_messages(json: JsonObject, known: Known | None) -> GenerationRequest:
        messages, roles = _messages(json, frozenset({"user", "assistant", "system"}), known)
        tools, usable = _tools(json)
        return GenerationRequest(
            endpoint=endpoint,
            json=json,
            model=_model(json),
            stream=_flag(json, "stream"),
            wants_usage=True,
            caps=_caps(json, "max_tokens"),
            messages=messages,
            roles=roles,
            system=_text_or_list(json, "system"),
            tools=tools,
            tools_usable=usable,
            known=known,
        )

    return parse_messages


_PARSERS: Mapping[Endpoint, _Parser] = {
    Endpoint.CHAT: _chat,
    Endpoint.COMPLETIONS: _completions,
    Endpoint.RESPONSES: _responses,
    Endpoint.MESSAGES: _anthropic(Endpoint.MESSAGES),
    Endpoint.COUNT_TOKENS: _anthropic(Endpoint.COUNT_TOKENS),
}
