"""Changes single settings of a JSON5 text (comments, trailing commas, bare names) and leaves every other byte.

Values are read by ``json5``, which keeps no positions. So the text is scanned once more for where each value stands;
the scan may rely on a text that ``json5`` has accepted. Each result is read back and compared before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import json5
import msgspec

from governor.connect.model import Change, Path, put
from governor.errors import ConfigError

_SPACE = re.compile(r"(?:[\s\ufeff]|//[^\n\r\u2028\u2029]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|' r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_WORD = re.compile(r"[^\s\ufeff,:{}\[\]\"'/]+")
_SAME_LINE = re.compile(r"(?:[^\S\n\r]|/\*[^\n\r]*?\*/)*(?://[^\n\r]*)?")
_COMMA = re.compile(r"(?:[\s\ufeff]|//[^\n\r\u2028\u2029]*|/\*.*?\*/)*,", re.DOTALL)
_INDENT = re.compile(r"[ \t]*")
_ERROR_AT = re.compile(r"^[^:]*:(\d+) (.*) at column (\d+)$", re.DOTALL)


class _Node(msgspec.Struct):
    """Where one value stands; ``inner`` has the values within, by name or position, and where each entry begins."""

    start: int
    end: int
    inner: dict[str | int, tuple[int, _Node]] = msgspec.field(default_factory=dict)


def read(text: str, file: str) -> Any:
    """The value of a JSON5 text; an empty text is an empty object. Raises :class:`ConfigError` with line and column."""
    if not text.strip():
        return {}
    try:
        # A strict JSON text, which most are, is read a thousand times faster.
        return json.loads(text)
    except RecursionError as error:
        raise ConfigError("is nested too deeply", file=file) from error
    except ValueError:
        pass
    try:
        return json5.loads(text)
    except RecursionError as error:
        raise ConfigError("is nested too deeply", file=file) from error
    except ValueError as error:
        at = _ERROR_AT.match(str(error))
        if at is None:
            raise ConfigError(f"not valid JSON5: {error}", file=file) from error
        raise ConfigError(f"not valid JSON5: {at[2]} at column {at[3]}", file=file, line=int(at[1])) from error


def edited(text: str, changes: Sequence[Change], file: str) -> str:
    """``text`` with the changes made. Raises :class:`ConfigError` if that cannot be done without changing more."""
    expected = read(text, file)
    after = text if text.strip() else "{}\n"
    for path, value in changes:
        expected = put(expected, path, value)
        after = _put(after, path, value)
    if read(after, file) != expected:
        raise ConfigError("cannot be changed without changing other settings; edit it by hand", file=file)
    return after


def _put(text: str, path: Path, value: Any) -> str:
    node, _ = _scan(text, _skip(text, 0))
    for depth, step in enumerate(path):
        if step not in node.inner:
            if text[node.start] == ("[" if isinstance(step, int) else "{"):
                return _inserted(text, node, step, put(None, path[depth + 1 :], value))
            return _replaced(text, node, put(None, path[depth:], value))
        node = node.inner[step][1]
    return _replaced(text, node, value)


def _replaced(text: str, node: _Node, value: Any) -> str:
    written = _written(text, value, _indent_of_line(text, node.start))
    return text[: node.start] + written + text[node.end :]


def _inserted(text: str, node: _Node, step: str | int, value: Any) -> str:
    """A new last entry, laid out like the one before it."""
    own_indent, newline = _indent_of_line(text, node.start), _newline(text)
    if not node.inner:
        indent = own_indent + _unit(text)
        opening = text[: node.end - 1].rstrip()
        entry = _entry(text, step, value, indent)
        return f"{opening}{newline}{indent}{entry}{newline}{own_indent}{text[node.end - 1 :]}"
    begins, last = list(node.inner.values())[-1]
    comma = _COMMA.match(text, last.end)
    has_comma = comma is not None
    after = last.end if comma is None else comma.end()
    if not re.search(r"[\n\r]", text[node.start : begins]):
        entry = _entry(text, step, value, own_indent)
        return f"{text[:after]}{' ' if has_comma else ', '}{entry}{text[after:]}"
    indent = _indent_of_line(text, begins)
    entry = _entry(text, step, value, indent) + ("," if has_comma else "")
    # A comment behind the last entry is about that entry, and stays on its line.
    end = _match(_SAME_LINE, text, after).end()
    before = text[:after] + ("" if has_comma else ",") + text[after:end].rstrip()
    gap = "" if text[end] in "\n\r" else f"{newline}{own_indent}"
    return f"{before}{newline}{indent}{entry}{gap}{text[end:]}"


def _entry(text: str, step: str | int, value: Any, indent: str) -> str:
    written = _written(text, value, indent)
    return written if isinstance(step, int) else f"{json.dumps(step, ensure_ascii=False)}: {written}"


def _written(text: str, value: Any, indent: str) -> str:
    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).split("\n")
    return f"{_newline(text)}{indent}".join(lines)


def _unit(text: str) -> str:
    """One step of indentation as the file has it."""
    found = re.search(r"[\n\r]([ \t]+)[\"'\w]", text)
    return found[1] if found else "  "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent_of_line(text: str, at: int) -> str:
    begins = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
    return _match(_INDENT, text, begins)[0]


def _scan(text: str, at: int) -> tuple[_Node, int]:
    """The value that begins at ``at``, and where it ends."""
    opening = text[at]
    if opening in "\"'":
        end = _match(_STRING, text, at).end()
        return _Node(at, end), end
    if opening not in "{[":
        end = _match(_WORD, text, at).end()
        return _Node(at, end), end
    node = _Node(at, at)
    position = _skip(text, at + 1)
    while text[position] not in "}]":
        begins = position
        name: str | int = len(node.inner)
        if opening == "{":
            word = _match(_STRING if text[position] in "\"'" else _WORD, text, position)
            (name,) = json5.loads(f"{{{word[0]}: 0}}")
            position = _skip(text, _skip(text, word.end()) + 1)
        inner, position = _scan(text, position)
        # Of two entries with one name the last counts, for every reader.
        node.inner.pop(name, None)
        node.inner[name] = begins, inner
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
    node.end = position + 1
    return node, node.end


def _skip(text: str, at: int) -> int:
    return _match(_SPACE, text, at).end()


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    if found is None:
        raise ValueError(f"{pattern.pattern} expected at {at}: a text was scanned that json5 would refuse")
    return found
