"""Change one key of a policy file and leave the person's comments and layout as they are."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from governor.errors import ConfigError
from governor.files import locked, read_text, write_atomic
from governor.policy.resolve import PolicyFile, Resolved, parse, resolve_agent

Value = str | int | float | bool | list[str]
Check = Callable[[Resolved], None]
"""Raises :class:`ConfigError` for a policy that is good by itself and cannot be had."""


def _all_good(resolved: Resolved) -> None:
    pass


def starter(base: str | None) -> str:
    """The text of a new agent's policy file."""
    named = f'base = "{base}"\n' if base else ""
    return (
        "# Limits of one agent. What is not set here comes from the policy named in `base`, then from the default.\n"
        "# Changes take effect within 2 s; `governor policy show` prints every value and where it comes from.\n"
        f"{named}"
    )


def value_of(text: str) -> Value:
    """What a person typed as a value: TOML where it is TOML (``4096``, ``true``, ``["a"]``), else plain text. So are
    ``nan`` and ``inf``: JSON has no such number, and the null in its place would take the key out."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    value: Value = tree["value"] if tree.keys() == {"value"} else text
    return text if isinstance(value, float) and not math.isfinite(value) else value


def set_key(
    path: Path, key: str, value: Value, shipped: Mapping[str, PolicyFile], check: Check = _all_good
) -> Resolved:
    """Set ``key`` (dotted) in the file, which is made if missing. The new text is checked before it is written, by
    ``check``, too.

    Raises :class:`ConfigError`, also for a file that is bad already, and then leaves the file as it was.
    """
    names = key.split(".")

    def put(document: MutableMapping[str, Any]) -> None:
        table = document
        for name in names[:-1]:
            inner = table.get(name)
            if not isinstance(inner, MutableMapping):
                inner = tomlkit.table()
                table[name] = inner
                inner = table[name]
            table = inner
        table[names[-1]] = value

    return _edit(path, key, put, shipped, check)


def unset_key(path: Path, key: str, shipped: Mapping[str, PolicyFile], check: Check = _all_good) -> Resolved:
    """Take ``key`` out of the file, so that the policy under it decides. Raises :class:`ConfigError`."""
    names = key.split(".")

    def take(document: MutableMapping[str, Any]) -> None:
        table = document
        for name in names[:-1]:
            inner = table.get(name)
            if not isinstance(inner, MutableMapping):
                return
            table = inner
        table.pop(names[-1], None)

    return _edit(path, key, take, shipped, check)


def _edit(
    path: Path,
    key: str,
    change: Callable[[MutableMapping[str, Any]], None],
    shipped: Mapping[str, PolicyFile],
    check: Check,
) -> Resolved:
    with locked(path):
        before = read_text(path)
        if before is None:
            before = starter(None)
        expected = parse(before, str(path)).tree
        change(expected)
        try:
            document = tomlkit.parse(before)
            change(document)
        except TOMLKitError as error:
            raise ConfigError(f"cannot be set here: {error}", file=str(path), key=key) from error
        after = tomlkit.dumps(document) or starter(None)
        edited = parse(after, str(path))
        if _without_empty_tables(edited.tree) != _without_empty_tables(expected):
            raise ConfigError("cannot be edited without changing other keys; edit by hand", file=str(path), key=key)
        resolved = resolve_agent(edited, shipped)
        check(resolved)
        write_atomic(path, after)
    return resolved


def _without_empty_tables(tree: Mapping[str, Any]) -> dict[str, Any]:
    """With the last of ``output.final``, ``output.title`` the table ``output`` goes, too; under a header it stays."""
    inner = {
        name: _without_empty_tables(value) if isinstance(value, Mapping) else value for name, value in tree.items()
    }
    return {name: value for name, value in inner.items() if value != {}}
