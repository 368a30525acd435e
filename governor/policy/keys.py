"""The keys of a policy file, read off the model, and what a mistyped one may have meant."""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from governor.policy.model import Policy


class Key(msgspec.Struct, frozen=True):
    """One key of a policy file."""

    path: tuple[str, ...]
    """As it stands in files."""
    owner: type[msgspec.Struct]
    """The model's class that has the field."""
    field: str
    """The attribute's name, which differs where the file's name is a word of Python's."""
    type: Any
    default: Any

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def enumeration(self) -> type[StrEnum] | None:
        """The enumeration that the value, or each item of a list, is of."""
        kind = get_args(self.type)[0] if get_origin(self.type) is tuple else self.type
        return kind if isinstance(kind, type) and issubclass(kind, StrEnum) else None

    @property
    def choices(self) -> tuple[str, ...]:
        """The values its enumeration allows; empty for other types."""
        return tuple(map(str, self.enumeration or ()))

    @property
    def type_text(self) -> str:
        """The type as a person writes it: ``integer >= 1``."""
        if get_origin(self.type) is tuple and self.choices:
            return f"list of {', '.join(f'`{choice}`' for choice in self.choices)}"
        return " or ".join(f"`{choice}`" for choice in self.choices) or _type_text(self.type)


def _walk(owner: type[msgspec.Struct], table: tuple[str, ...]) -> Iterator[Key]:
    for field in msgspec.structs.fields(owner):
        path = (*table, field.encode_name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _walk(field.type, path)
        else:
            made = field.default_factory is not msgspec.NODEFAULT
            default = field.default_factory() if made else field.default
            yield Key(path=path, owner=owner, field=field.name, type=field.type, default=default)


@functools.cache
def all_keys() -> tuple[Key, ...]:
    """Every key, in the model's order."""
    return tuple(_walk(Policy, ()))


def key_at(path: tuple[str, ...]) -> Key | None:
    return next((key for key in all_keys() if key.path == path), None)


def names_in(table: tuple[str, ...]) -> tuple[str, ...]:
    """The names known in a table, the whole file being ``()``."""
    depth = len(table)
    inside = (key.path[depth] for key in all_keys() if key.path[:depth] == table and len(key.path) > depth)
    return tuple(dict.fromkeys(inside))


def nearest(word: str, among: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(among), n=1)), None)


def advice_for_unknown(table: tuple[str, ...], name: str) -> str:
    """What to write instead of an unknown key: a neighbour of like spelling, the same key of another table, or the
    table's own keys."""
    near = nearest(name, names_in(table))
    if near is not None:
        return f"did you mean {near!r}?"
    leaves = {key.path[-1]: key.dotted for key in all_keys()}
    elsewhere = nearest(name, leaves)
    if elsewhere is not None:
        return f"did you mean {leaves[elsewhere]!r}?"
    return f"known here: {', '.join(names_in(table))}"


def _type_text(annotation: Any) -> str:
    names = {int: "integer", float: "number", str: "text", bool: "true or false"}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = arguments[1]
        limits = [f"> {bounds.gt}" if bounds.gt is not None else "", f">= {bounds.ge}" if bounds.ge is not None else ""]
        return " ".join([names.get(arguments[0], str(arguments[0])), *filter(None, limits)])
    if origin in (types.UnionType, Union):
        return " or ".join(_type_text(part) for part in arguments if part is not type(None))
    if origin is tuple:
        return f"list of {_type_text(arguments[0])}"
    if origin is dict:
        return f"table of {_type_text(arguments[1])}"
    return names.get(annotation, str(annotation))
