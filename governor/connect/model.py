"""What it takes to point a client at the governor, whichever client it is. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from governor.settings import Secret

Path = tuple[str | int, ...]
"""Where a setting stands: names of tables, and positions in lists."""
Change = tuple[Path, Any]
"""A setting and its new value, a plain JSON value."""


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """One agent's way to the governor."""

    agent: str
    base_url: str
    """With ``/v1``."""
    key: Secret
    model: str
    window_tokens: int | None = None
    """Prompt + output of one turn; ``None`` when nobody knows yet."""
    output_tokens: int
    """Longest answer of one turn."""


class Connected(msgspec.Struct, frozen=True):
    """A client's configuration file that points at the governor."""

    text: str
    notes: tuple[str, ...] = ()
    """What a person should know about it."""


class ClientConfig(Protocol):
    """One client's configuration file. Pure: texts in, texts out. All methods raise :class:`ConfigError`, naming the
    line, for a text that is not a configuration."""

    def present_key(self, text: str, agent: str) -> str | None:
        """The key by which ``text`` already speaks for ``agent``; possibly a ``${VARIABLE}``."""
        ...

    def connected(self, text: str, connection: Connection) -> Connected:
        """``text`` with the connection in it and all else as it was; the same text when nothing is to change."""
        ...

    def secrets(self, text: str) -> frozenset[str]:
        """Values in ``text`` that must not be shown."""
        ...


def at(tree: Any, path: Path) -> Any:
    """The value at ``path``; ``None`` if there is none."""
    for step in path:
        inside = step in tree if isinstance(tree, Mapping) else isinstance(tree, list) and step in range(len(tree))
        if not inside:
            return None
        tree = tree[step]
    return tree


def put(tree: Any, path: Path, value: Any) -> Any:
    """A copy of ``tree`` with ``value`` at ``path``. Missing tables are made; what stands in their way is replaced."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        items = list(tree) if isinstance(tree, list) else []
        if step == len(items):
            items.append(None)
        items[step] = put(items[step], rest, value)
        return items
    table = dict(tree) if isinstance(tree, Mapping) else {}
    table[step] = put(table.get(step), rest, value)
    return table
