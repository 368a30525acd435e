"""Keeps secrets out of what is shown: values under telling names, and texts that look like keys by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MASK = "***"
NEW_KEY_MASK = "*** (new key)"

_TELLING_NAME = (
    r"[\w.-]*(?:api[_-]?key|private[_-]?key|token(?!s)|secret|passw|passphrase|credential|authorization|cookie)[\w.-]*"
)
_IS_TELLING = re.compile(rf"{_TELLING_NAME}|key|\w*(?:[a-z]Key|_key)", re.IGNORECASE)
_ALL_SECRET_TABLES = frozenset({"env", "vars"})
_SAID_INLINE = re.compile(
    rf"""(?P<before>(?P<quote>["']?)\b{_TELLING_NAME}(?P=quote)\s*[:=]\s*)"""
    r"""(?:\$\{[^}]*\}|"(?P<double>(?:[^"\\\n]|\\.)+)"|'(?P<single>[^'\n]+)'|(?P<plain>[^\s"',{}\[\]#][^\s,}\]]*))""",
    re.IGNORECASE,
)
_LOOKS_LIKE_ONE = re.compile(
    r"\b(?:gov|adm|sk|pk|rk|hf|gh[opsu]|github_pat|xox[abeoprs]|AIza|ya29|glpat|nvapi|gsk)[-_.]?[A-Za-z0-9_-]{16,}"
    r"|(?<=Bearer )[^\s\"']+"
)
_REFERENCE = re.compile(r"\$\{[A-Za-z_]\w*\}")
_NO_VALUES = frozenset({"null", "true", "false", "|", "|-", ">", ">-"})
_SHORTEST_UNMISTAKABLE = 8
"""A shorter value could be part of any word; it is masked only where its name stands beside it."""


def secret_values(tree: Any, *, all_of_it: bool = False) -> Iterator[str]:
    """Strings in a parsed configuration that stand under a name for secrets."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            secret = all_of_it or _IS_TELLING.fullmatch(str(name)) is not None
            if isinstance(value, str) and secret:
                yield value
            elif not isinstance(value, str):
                yield from secret_values(value, all_of_it=str(name) in _ALL_SECRET_TABLES)
    elif isinstance(tree, list):
        for item in tree:
            yield from [item] if all_of_it and isinstance(item, str) else secret_values(item)


def masked(text: str, secrets: Iterable[str], new_key: str | None = None) -> str:
    """``text`` with its secrets masked, each in place, so that lines stay lines. References to variables stay."""
    if new_key:
        text = text.replace(new_key, NEW_KEY_MASK)
    lines = {line.strip() for secret in secrets if not _REFERENCE.fullmatch(secret) for line in secret.splitlines()}
    for secret in sorted(lines, key=len, reverse=True):
        if len(secret) >= _SHORTEST_UNMISTAKABLE:
            text = text.replace(secret, MASK)
    text = _SAID_INLINE.sub(_mask_inline, text)
    return _LOOKS_LIKE_ONE.sub(MASK, text)


def _mask_inline(said: re.Match[str]) -> str:
    quote = {"double": '"', "single": "'", "plain": ""}.get(said.lastgroup or "")
    if quote is None:
        return said[0]
    value = said[said.lastgroup or 0]
    if value.startswith(MASK) or _REFERENCE.fullmatch(value) or value in _NO_VALUES:
        return said[0]
    return f"{said['before']}{quote}{MASK}{quote}"
