"""Arguments made by a schema are valid by it."""

from __future__ import annotations

from typing import Any

import pytest

from serve.twin_server.arguments import make_arguments


def made(schema: dict[str, Any]) -> list[Any]:
    """Values of one required parameter, by many seeds."""
    whole = {"type": "object", "properties": {"it": schema}, "required": ["it"], "$defs": {"Size": {"enum": [1, 2]}}}
    return [make_arguments(whole, str(seed))["it"] for seed in range(40)]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, str),
        ({"type": "boolean"}, bool),
        ({"type": "integer"}, int),
        ({"type": "number"}, float),
        ({"type": "null"}, type(None)),
        ({"type": ["null", "boolean"]}, bool),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}], "default": None}, int),
        ({"properties": {}}, dict),
        ({"items": {}}, list),
        ({}, str),
    ],
)
def test_types(schema: dict[str, Any], kind: type) -> None:
    assert {type(value) for value in made(schema)} == {kind}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"enum": ["a", 2, None]}, {"a", 2, None}),
        ({"const": "x"}, {"x"}),
        ({"type": "boolean"}, {True, False}),
        ({"type": "integer", "minimum": 3, "maximum": 5}, {3, 4, 5}),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6}, {4, 5}),
        ({"type": "integer", "minimum": 1, "maximum": 12, "multipleOf": 5}, {5, 10}),
        ({"$ref": "#/$defs/Size"}, {1, 2}),
        ({"allOf": [{"$ref": "#/$defs/Size"}, {"title": "size"}]}, {1, 2}),
    ],
)
def test_values(schema: dict[str, Any], values: set[Any]) -> None:
    assert set(made(schema)) == values


def test_bounds_of_numbers() -> None:
    assert all(value <= -5 for value in made({"type": "integer", "maximum": -5}))
    assert all(0.5 <= value <= 0.75 for value in made({"type": "number", "minimum": 0.5, "maximum": 0.75}))


def test_lengths() -> None:
    assert {len(value) for value in made({"type": "string", "minLength": 90, "maxLength": 92})} <= {90, 91, 92}
    assert {len(value) for value in made({"type": "array", "items": {}, "minItems": 4, "maxItems": 5})} == {4, 5}
    assert made({"type": "array", "maxItems": 0}) == [[]] * 40


def test_what_is_required_is_there() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "c"],
    }
    keys = {frozenset(value) for value in made(schema)}
    assert keys == {frozenset("ac"), frozenset("abc")}


def test_a_schema_that_contains_itself_ends() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    assert [make_arguments(tree, str(seed)) for seed in range(20)]
    assert make_arguments({"properties": {"again": {"$ref": "#"}}, "required": ["again"]}, "0")


def test_a_tool_without_parameters() -> None:
    assert make_arguments({}, "0") == {}
