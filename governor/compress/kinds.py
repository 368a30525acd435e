"""What kind of text a tool result is, told from its beginning.

Rules over lines rather than a model or a parser for each language: they cost microseconds, and a wrong guess only means
that other lines of the middle are kept, since head and tail are kept of every kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

_SAMPLE_CHARS = 4096
_LINES = 40


class Kind(Enum):
    """How a text is best cut down."""

    JSON = "json"
    DIFF = "diff"
    TABLE = "table"
    CODE = "code"
    LOG = "log"
    """Also any other output of a program."""


_DIFF = re.compile(r"^(?:diff --git |@@ -\d+(?:,\d+)? \+\d+|--- a/|Index: )", re.MULTILINE)
_MARKDOWN_ROW = re.compile(r"\s*\|.*\|\s*$")
_NUMBERED = re.compile(r"\s*\d+\s*[|:\t→]")
SIGNATURE = re.compile(
    r"(?:[ \t]*\d+[ \t]*[|:\t→] ?)?[ \t]*(?:"
    r"(?:(?:export|public|private|protected|static|async|abstract|final|pub|unsafe|default) +)*"
    r"(?:def|class|func|function|fn|struct|enum|interface|trait|impl|type|module|package|namespace|import|const) +"
    r"[\w\"'{*]"
    r"|from +\S+ +import|use +\w+::|#include|@\w)"
)
"""A line that declares something, in the languages that agents mostly read; line numbers before it are skipped."""
_CODE_LINE = re.compile(
    r"\s*(?:#|//|/\*|\*/|return\b|(?:if|for|while|else)\b.*[:{]\s*$|[})\]]+[;,]?\s*$|[\w.]+(?::\s*[\w\[\]]+)?\s*=\s|"
    r".*[;{]\s*$)"
)


def kind_of(text: str) -> Kind:
    """Looks at the first 4,096 characters. JSON only by its first character; whether it is any is for its reader."""
    sample = text[:_SAMPLE_CHARS]
    if sample.lstrip()[:1] in {"{", "["}:
        return Kind.JSON
    if _DIFF.search(sample):
        return Kind.DIFF
    lines = [line for line in sample.split("\n")[:_LINES] if line.strip()]
    if len(lines) >= 4 and _is_table(lines):
        return Kind.TABLE
    if lines and _share(lines, _is_code) >= 0.4:
        return Kind.CODE
    return Kind.LOG


def _is_code(line: str) -> bool:
    numbered = _NUMBERED.match(line)
    return bool(SIGNATURE.match(line) or _CODE_LINE.match(line, numbered.end() if numbered else 0))


def _is_table(lines: list[str]) -> bool:
    if _share(lines, lambda line: _MARKDOWN_ROW.match(line) is not None) >= 0.7:
        return True
    for separator in ("\t", ",", ";"):
        counts = [line.count(separator) for line in lines]
        if counts[0] >= 2 and sum(count == counts[0] for count in counts) >= 0.8 * len(counts):
            return True
    return False


def _share(lines: list[str], rule: Callable[[str], bool]) -> float:
    return sum(map(rule, lines)) / len(lines)
