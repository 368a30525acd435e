"""Tools in an order that does not depend on the client's mood, and which of them came or went. Pure.

A tool list stands before all messages in the prompt: when a reconnect gives it in another order, nothing behind it can
come from the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from governor.wire.messages import decode, joined

_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_SORTED = msgspec.json.Encoder(order="sorted")
_FRAME = ("type", "function", "name", "description", "parameters", "input_schema", "strict")
"""As the APIs' references write a tool, and models have seen it; schemas within are sorted by key."""
_MOST_NAMED = 3
_LONGEST_NAME = 64


class Tools(msgspec.Struct, frozen=True):
    """A list of tools as it was sent."""

    raw: bytes
    names: tuple[str, ...]
    """Of those that have one, in order."""
    by_name: bytes
    """The same tools in the order of their names."""


def read_tools(raw: bytes) -> Tools:
    """Whatever cannot be read keeps its place and its bytes."""
    try:
        tools = [bytes(tool) for tool in _LIST.decode(raw)]
    except (msgspec.MsgspecError, RecursionError):
        return Tools(raw, (), raw)
    values = [decode(tool) for tool in tools]
    names = [_name(value) for value in values]
    written = [_written(value, tool) for value, tool in zip(values, tools, strict=True)]
    ordered = iter(sorted((name, tool) for name, tool in zip(names, written, strict=True) if name is not None))
    placed = [tool if name is None else next(ordered)[1] for name, tool in zip(names, written, strict=True)]
    return Tools(raw, tuple(name for name in names if name is not None), joined(placed))


def changes_of(before: Tools, now: Tools, *, by_name: bool) -> list[str]:
    """What lost the prefix, for the turn's row. ``by_name``: the order is not the client's."""
    olds, news = Counter(before.names), Counter(now.names)
    lists = (("tool_missing", list(olds - news)), ("tool_new", list(news - olds)))
    found = [f"{flag}: {_shown(names)}, prefix lost" for flag, names in lists if names]
    if not found and not by_name and before.names != now.names:
        first = next(name for old, name in zip(before.names, now.names, strict=True) if name != old)
        found.append(f"tool_order: from {_shown([first])} on, prefix lost")
    return found


def _name(tool: Any) -> str | None:
    """Chat keeps it in ``function``, the other dialects at the top."""
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) and name else None


def _written(value: Any, raw: bytes) -> bytes:
    if not isinstance(value, dict):
        return raw
    try:
        return msgspec.json.encode(_framed(value))
    except RecursionError:
        return raw


def _framed(fields: dict[str, Any]) -> dict[str, Any]:
    keys = [*(key for key in _FRAME if key in fields), *sorted(fields.keys() - set(_FRAME))]
    return {
        key: _framed(fields[key])
        if key == "function" and isinstance(fields[key], dict)
        else msgspec.Raw(_SORTED.encode(fields[key]))
        for key in keys
    }


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(
        name[:_LONGEST_NAME] if name.isprintable() else ascii(name)[:_LONGEST_NAME] for name in names[:_MOST_NAMED]
    )
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"
