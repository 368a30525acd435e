"""From profile files to a :class:`Profile`; a mistake is told with file, line and key.

Apart from the model, since this reads disk. A profile stands on at most one other, a shipped one.
"""

from __future__ import annotations

import difflib
import importlib.resources
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from governor.errors import ConfigError
from governor.files import read_text
from governor.policy.lines import KeyPath, key_lines
from serve.profile.checks import contradictions
from serve.profile.model import Profile

_SYNTAX_AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_MEANING_AT = re.compile(r"^(?P<reason>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


class ProfileFile(msgspec.Struct, frozen=True):
    """A profile's file that is good TOML."""

    file: str
    tree: dict[str, Any]
    lines: Mapping[KeyPath, int]


def shipped_folder() -> Path:
    """The profiles that come with the program."""
    return Path(str(importlib.resources.files("serve"))) / "profiles"


def shipped_names(folder: Path | None = None) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (folder or shipped_folder()).glob("*.toml")))


def load_profile(name_or_path: str | Path, *, shipped: Path | None = None) -> Profile:
    """A shipped profile by name, or the owner's by path (one that ends in ``.toml`` or has a folder in it).

    Raises :class:`ConfigError` naming file, line and key.
    """
    folder = shipped or shipped_folder()
    path = _locate(name_or_path, folder)
    own = _read(path)
    layers = [own]
    base = own.tree.get("base")
    if isinstance(base, str):
        if path.parent == folder:
            raise _error(own, ("base",), "a shipped profile stands alone")
        if base not in shipped_names(folder):
            raise _error(own, ("base",), _no_such(base, folder))
        layers = [_read(folder / f"{base}.toml"), own]
    profile = _convert(layers, path.stem)
    for conflict in contradictions(profile):
        at, key = _nearest_layer(conflict.keys, layers)
        raise _error(at, key, conflict.message)
    return profile


def _locate(name_or_path: str | Path, folder: Path) -> Path:
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text:
        return Path(name_or_path).expanduser()
    if text not in shipped_names(folder):
        raise ConfigError(_no_such(text, folder), file=str(folder))
    return folder / f"{text}.toml"


def _no_such(name: str, folder: Path) -> str:
    near = _nearest(name, shipped_names(folder))
    hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(shipped_names(folder))}"
    return f"there is no shipped profile {name!r}; {hint} (a file of yours is given by its path)"


def _read(path: Path) -> ProfileFile:
    text = read_text(path)
    if text is None:
        raise ConfigError("there is no such file", file=str(path))
    try:
        return ProfileFile(file=str(path), tree=tomllib.loads(text), lines=key_lines(text))
    except RecursionError as error:
        raise ConfigError("is nested too deeply", file=str(path)) from error
    except ValueError as error:
        at = _SYNTAX_AT.search(str(error))
        line = None if at is None else int(at[1]) if at[1] else text.rstrip("\n").count("\n") + 1
        reason = str(error)[: at.start()] if at else str(error)
        raise ConfigError(f"not valid TOML: {reason}", file=str(path), line=line) from error


def _convert(layers: list[ProfileFile], name: str) -> Profile:
    own = layers[-1]
    if "name" in own.tree:
        raise _error(own, ("name",), "unknown key; a profile is named after its file")
    tree: dict[str, Any] = {}
    for layer in layers:
        tree = _merged(tree, layer.tree)
    try:
        return msgspec.convert(tree | {"name": name}, Profile)
    except msgspec.ValidationError as error:
        raise _located(error, layers) from error


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for name, value in over.items():
        below = result.get(name)
        result[name] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _located(error: msgspec.ValidationError, layers: list[ProfileFile]) -> ConfigError:
    match = _MEANING_AT.match(str(error))
    reason, steps = (match["reason"], match["path"] or "") if match else (str(error), "")
    path: KeyPath = tuple(re.sub(r"\[.*", "", steps).split(".")[1:])
    unknown = _UNKNOWN.fullmatch(reason)
    if unknown:
        known = _keys_of(path)
        near = _nearest(unknown[1], known)
        reason = f"unknown key; did you mean {near!r}?" if near else f"unknown key; known here: {', '.join(known)}"
        path = (*path, unknown[1])
    at, key = _nearest_layer((path,), layers)
    return _error(at, key, reason)


def _keys_of(table: KeyPath) -> tuple[str, ...]:
    owner: Any = Profile
    for name in table:
        owner = next(field.type for field in msgspec.structs.fields(owner) if field.encode_name == name)
    return tuple(field.encode_name for field in msgspec.structs.fields(owner) if field.name != "name")


def _nearest_layer(keys: Iterable[KeyPath], layers: list[ProfileFile]) -> tuple[ProfileFile, KeyPath]:
    """The file nearest to the owner that names one of the keys: there it can be mended."""
    paths = tuple(keys)
    for layer in reversed(layers):
        for path in paths:
            if path in layer.lines:
                return layer, path
    return layers[-1], paths[0]


def _error(at: ProfileFile, key: KeyPath, reason: str) -> ConfigError:
    return ConfigError(reason, file=at.file, key=".".join(key) or None, line=at.lines.get(key))


def _nearest(word: str, among: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(among), n=1)), None)
