"""Changes settings in one top-level section of a YAML text and leaves every other line byte for byte.

Within the section ``ruamel.yaml`` keeps comments, order and quotes. Hermes reads its file as YAML 1.1, where words such
as ``on`` are not text, so text that could be taken for something else is written in quotes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from governor.connect.model import Change, at, put
from governor.errors import ConfigError

_UNMISTAKABLE = re.compile(r"https?://[\w.:/\[\]-]*[\w/]|[A-Za-z][\w./-]*", re.ASCII)
_NOT_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_NO_FOLDING = 1 << 20


def read(text: str, file: str) -> dict[str, Any]:
    """The settings. Raises :class:`ConfigError` with line and column."""
    tree = _loaded(YAML(typ="safe", pure=True), text, file)
    if not isinstance(tree, dict):
        raise ConfigError("is not a table of settings", file=file)
    return tree


def edited(text: str, section: str, changes: Sequence[Change], file: str) -> str:
    """``text`` with the changes made, all of them below the top-level key ``section``; ``None`` takes a setting out.

    Raises :class:`ConfigError` if that cannot be done without changing more.
    """
    before = read(text, file)
    expected = before
    for path, value in changes:
        expected = put(expected, path, value)
    expected = {**expected, section: {name: value for name, value in expected[section].items() if value is not None}}
    lines = text.splitlines(keepends=True)
    first, last = _section(text, section, file)
    body = _section_edited("".join(lines[first:last]), section, changes, file)
    newline = "\r\n" if "\r\n" in text else "\n"
    if first and not lines[first - 1].endswith(("\n", "\r")):
        body = "\n" + body
    after = "".join(lines[:first]) + body.replace("\n", newline) + "".join(lines[last:])
    if read(after, file) != expected:
        raise ConfigError("cannot be changed without changing other settings; edit it by hand", file=file, key=section)
    return after


def _section_edited(body: str, section: str, changes: Sequence[Change], file: str) -> str:
    writer = _round_trip()
    tree = _loaded(writer, body.replace("\r\n", "\n"), file)
    table = tree.get(section)
    if not isinstance(table, CommentedMap):
        table = tree[section] = CommentedMap()
    for path, value in changes:
        inner = table
        for step in path[1:-1]:
            if not isinstance(inner.get(step), CommentedMap):
                inner[step] = CommentedMap()
            inner = inner[step]
        if value is None:
            inner.pop(path[-1], None)
        elif at(inner, path[-1:]) != value:
            inner[path[-1]] = _plain_or_quoted(value)
    sink = io.StringIO()
    writer.dump(tree, sink)
    return sink.getvalue()


def _section(text: str, section: str, file: str) -> tuple[int, int]:
    """The section's lines, from the first up to but not including the last; an empty range at the end of the text if
    there is no such section. All lines, if the whole text is written in one pair of braces.

    Empty lines and comments after the section's last setting belong to what follows.
    """
    tree = _loaded(_round_trip(), text, file)
    lines = text.splitlines(keepends=True)
    if tree.fa.flow_style():
        return 0, len(lines)
    if section not in tree:
        last = len(lines)
        return last, last
    starts = sorted(tree.lc.key(name)[0] for name in tree)
    first = tree.lc.key(section)[0]
    last = next((start for start in starts if start > first), len(lines))
    while last > first + 1 and (not lines[last - 1].strip() or lines[last - 1].startswith("#")):
        last -= 1
    return first, last


def _round_trip() -> YAML:
    writer = YAML(typ="rt", pure=True)
    writer.preserve_quotes = True
    writer.width = _NO_FOLDING
    writer.indent(mapping=2, sequence=4, offset=2)
    return writer


def _loaded(reader: YAML, text: str, file: str) -> Any:
    try:
        tree = reader.load(text)
    except RecursionError as error:
        raise ConfigError("is nested too deeply", file=file) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(str(error.problem or error.context).split())
        where = "" if mark is None else f" at column {mark.column + 1}"
        raise ConfigError(f"not valid YAML: {reason}{where}", file=file, line=mark and mark.line + 1) from error
    except YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", file=file) from error
    return CommentedMap() if tree is None else tree


def _plain_or_quoted(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if _UNMISTAKABLE.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return DoubleQuotedScalarString(value)
