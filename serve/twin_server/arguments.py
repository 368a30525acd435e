"""Arguments for a tool call that are valid for the tool's JSON schema.

Knows what schemas of tools are made of: the types, ``enum``, ``const``, ``required``, bounds of numbers, texts and
lists, ``anyOf`` and its like, and references into the schema itself. ``pattern`` and ``format`` are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

from serve.twin_server.calls import Schema, resolve
from serve.twin_server.words import Writer

_DEEPEST = 8
"""Below this only what is required is made, so a schema that contains itself ends."""
_OPTIONAL_SHARE = 0.4
_LARGEST = 100


def make_arguments(schema: Schema, seed: str) -> dict[str, Any]:
    """Arguments of one call."""
    made = _Maker(schema, seed).value({"type": "object", **schema}, 0)
    return made if isinstance(made, dict) else {}


class _Maker:
    def __init__(self, root: Schema, seed: str) -> None:
        self._root = root
        self._random = Random(seed)  # noqa: S311 - reproducible values, not a secret
        self._writer = Writer(seed)

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping):
            return self._writer.name()
        if depth > _DEEPEST * 2:
            return None  # what is required contains itself: nothing is valid
        if "$ref" in schema:
            return self.value(resolve(schema, self._root), depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._random.choice(schema["enum"])
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            chosen = next((each for each in choices if isinstance(each, Mapping) and each.get("type") != "null"), {})
            return self.value({**_without_choices(schema), **chosen}, depth)
        if parts := schema.get("allOf"):
            merged = _without_choices(schema)
            for part in parts:
                merged.update(resolve(part, self._root))
            return self.value(merged, depth)
        return self._of_type(_type(schema), schema, depth)

    def _of_type(self, kind: str, schema: Schema, depth: int) -> Any:
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                least = int(schema.get("minItems", 0))
                most = min(int(schema.get("maxItems", least + 3)), least + 3)
                count = self._random.randint(max(least, 1), max(most, least, 1)) if depth < _DEEPEST and most else least
                return [self.value(schema.get("items", {}), depth + 1) for _ in range(count)]
            case "integer":
                return self._whole(schema)
            case "number":
                low, high = _bounds(schema)
                return self._whole(schema) if "multipleOf" in schema else round(self._random.uniform(low, high), 2)
            case "boolean":
                return self._random.random() < 0.5
            case "null":
                return None
            case _:
                return self._text(schema)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = schema.get("required") or ()
        return {
            name: self.value(properties.get(name, {}), depth + 1)
            for name in dict.fromkeys((*properties, *required))
            if name in required or (depth < _DEEPEST and self._random.random() < _OPTIONAL_SHARE)
        }

    def _whole(self, schema: Schema) -> int | float:
        low, high = _bounds(schema)
        step = schema.get("multipleOf", 1)
        first, last = math.ceil(low / step), math.floor(high / step)
        drawn: int | float = self._random.randint(first, max(first, last)) * step
        return drawn

    def _text(self, schema: Schema) -> str:
        least = int(schema.get("minLength", 0))
        text = self._writer.phrase()
        while len(text) < least:
            text += " " + self._writer.phrase()
        return text[: int(schema.get("maxLength", len(text)))]


def _type(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    if isinstance(kind, str):
        return kind
    return "object" if "properties" in schema else "array" if "items" in schema else "string"


def _bounds(schema: Schema) -> tuple[float, float]:
    low, high = schema.get("minimum"), schema.get("maximum")
    step = schema.get("multipleOf", 1)
    if low is None and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    if high is None and "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    if low is None:
        low = min(0, high - _LARGEST) if high is not None else 0
    return low, high if high is not None else low + _LARGEST * step


def _without_choices(schema: Schema) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "allOf")}
