"""From the texts of policy files to one policy whose every value knows its file and line. Pure.

Tables merge key by key, other values are replaced as a whole; the nearest file wins. A value once set can be changed
by a nearer file but not unset, since TOML has no null.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from governor.errors import ConfigError
from governor.policy.checks import contradictions
from governor.policy.keys import advice_for_unknown, all_keys, key_at, nearest
from governor.policy.lines import KeyPath, key_lines
from governor.policy.model import Policy

DEFAULT = "default"
"""Name of the shipped policy under all others."""
BUILT_IN = "built-in"
"""``Source.file`` of a value that no file sets."""

_SYNTAX_AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_MEANING_AT = re.compile(r"^(?P<reason>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


class Source(msgspec.Struct, frozen=True):
    """Where a value comes from; ``line`` counts from 1."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class PolicyFile(msgspec.Struct, frozen=True):
    """A policy file that is good TOML; what its keys mean is not yet looked at."""

    file: str
    tree: dict[str, Any]
    lines: Mapping[KeyPath, int]


class Resolved(msgspec.Struct, frozen=True):
    """One agent's policy. A request keeps the one it began with."""

    policy: Policy
    sources: Mapping[str, Source]
    """By dotted key, for every key of the model and every sampling field set."""


def parse(text: str, file: str) -> PolicyFile:
    """Read TOML. Raises :class:`ConfigError` with the line."""
    if not text:
        # An interrupted save leaves an empty file, and an empty file would mean: no limits of this agent's own.
        raise ConfigError("is empty; to take every value from the default, write a comment", file=file)
    try:
        return PolicyFile(file=file, tree=tomllib.loads(text), lines=key_lines(text))
    except RecursionError as error:
        raise ConfigError("is nested too deeply", file=file) from error
    except ValueError as error:
        at = _SYNTAX_AT.search(str(error))
        line = None if at is None else int(at[1]) if at[1] else text.rstrip("\n").count("\n") + 1
        reason = str(error)[: at.start()] if at else str(error)
        raise ConfigError(f"not valid TOML: {reason}", file=file, line=line) from error


def resolve_agent(own: PolicyFile | None, shipped: Mapping[str, PolicyFile]) -> Resolved:
    """The policy of an agent with the file ``own``: over the shipped policy it names in ``base``, over the default.

    Raises :class:`ConfigError` naming file, key and line. ``own`` may be one of the shipped files.
    """
    layers = [shipped[DEFAULT]]
    if own is not None:
        base = own.tree.get("base")
        if isinstance(base, str):
            if base not in shipped:
                near = nearest(base, shipped)
                hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(sorted(shipped))}"
                message = f"there is no shipped policy {base!r}; {hint}"
                raise ConfigError(message, file=own.file, key="base", line=own.lines.get(("base",)))
            layers.append(shipped[base])
        layers.append(own)
    return resolve(layers)


def resolve(layers: Sequence[PolicyFile]) -> Resolved:
    """Merge files, the nearest last, and check the result. Raises :class:`ConfigError`."""
    tree: dict[str, Any] = {}
    for layer in layers:
        tree = _merged(tree, layer.tree)
    try:
        policy = msgspec.convert(tree, Policy)
    except msgspec.ValidationError as error:
        raise _located(error, tree, layers) from error
    for conflict in contradictions(policy):
        # The nearest file that has a part in it is the one that its author can mend.
        found = [(rank, key) for key in conflict.keys if (rank := _rank(key, layers)) is not None]
        rank, key = max(found, key=lambda item: item[0], default=(len(layers) - 1, conflict.keys[0]))
        at = layers[rank]
        others = [f"{'.'.join(other)} from {layers[r].file}" for r, other in found if r != rank]
        message = f"{conflict.message} ({', '.join(others)})" if others else conflict.message
        raise ConfigError(message, file=at.file, key=".".join(key), line=at.lines.get(key))
    return Resolved(policy=policy, sources=_sources(policy, layers))


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for name, value in over.items():
        below = result.get(name)
        result[name] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _rank(path: KeyPath, layers: Sequence[PolicyFile]) -> int | None:
    """Index of the nearest file that names the key."""
    return next((rank for rank in reversed(range(len(layers))) if path in layers[rank].lines), None)


def _source(path: KeyPath, layers: Sequence[PolicyFile]) -> Source:
    rank = _rank(path, layers)
    return Source(BUILT_IN) if rank is None else Source(layers[rank].file, layers[rank].lines[path])


def _sources(policy: Policy, layers: Sequence[PolicyFile]) -> dict[str, Source]:
    paths = [key.path for key in all_keys()]
    paths += [("request", "sampling", name) for name in policy.request.sampling]
    return {".".join(path): _source(path, layers) for path in paths}


def _located(error: msgspec.ValidationError, tree: dict[str, Any], layers: Sequence[PolicyFile]) -> ConfigError:
    """msgspec's complaint about the merged tree, as one about a key on a line of a file."""
    match = _MEANING_AT.match(str(error))
    reason, steps = (match["reason"], match["path"] or "") if match else (str(error), "")
    path = tuple(re.sub(r"\[.*", "", steps).split(".")[1:])
    if "[...]" in steps:
        path = _guilty_entry(path, tree)
    unknown = _UNKNOWN.fullmatch(reason)
    if unknown:
        reason = f"unknown key; {advice_for_unknown(path, unknown[1])}"
        path = (*path, unknown[1])
    elif key := key_at(path):
        value = _at(tree, path)
        if key.choices:
            near = nearest(str(value), key.choices)
            reason = f"expected {key.type_text}, got {value!r}" + (f"; did you mean {near!r}?" if near else "")
        elif "got" not in reason:
            reason = f"{reason}, got {value!r:.80}"
    source = _source(path, layers)
    file = layers[-1].file if source.file == BUILT_IN else source.file
    return ConfigError(reason, file=file, key=".".join(path) or None, line=source.line)


def _at(tree: Mapping[str, Any], path: KeyPath) -> Any:
    value: Any = tree
    for name in path:
        value = value[name]
    return value


def _guilty_entry(path: KeyPath, tree: dict[str, Any]) -> KeyPath:
    """msgspec does not name the entry of a free table that it refuses: try them one by one."""
    for name, value in _at(tree, path).items():
        alone: dict[str, Any] = {name: value}
        for outer in reversed(path):
            alone = {outer: alone}
        try:
            msgspec.convert(alone, Policy)
        except msgspec.ValidationError:
            return (*path, name)
    return path
