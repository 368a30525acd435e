"""Tool calls as the twin's model writes them, in the format of Qwen3-Coder and Qwen3.5, and read back.

One place for both ways and for the template, so that a call which comes back in the history has the tokens it was
written with. What is read follows SGLang's ``function_call/qwen3_coder_detector.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

Schema = Mapping[str, Any]
"""A JSON schema."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool that a request offers."""

    name: str
    parameters: Schema = {}
    """Schema of the arguments, an object."""


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    written = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else write_json(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def write_json(value: Any) -> str:
    """As a chat template's ``tojson``."""
    return json.dumps(value, ensure_ascii=False)


def read_value(text: str, schema: Schema | None) -> Any:
    """An argument of a call by its parameter's schema; without one it is a text."""
    if text.lower() == "null":
        return None
    if schema is None or _kind(schema) == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def parameter_schema(tool: ToolSpec | None, name: str) -> Schema | None:
    properties = tool.parameters.get("properties") if tool else None
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    return resolve(schema, tool.parameters) if tool and isinstance(schema, Mapping) else None


def resolve(schema: Schema, root: Schema) -> Schema:
    """The part of ``root`` that ``schema`` refers to, or itself."""
    if "$ref" not in schema:
        return schema
    found: Any = root
    for part in str(schema["$ref"]).removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _kind(schema: Schema) -> str:
    """The type that decides how an argument is read, as ``infer_type_from_json_schema`` of SGLang finds it."""
    kinds = [kind for kind in _kinds(schema) if kind != "null"]
    return "string" if "string" in kinds or not kinds else kinds[0]


def _kinds(schema: Schema) -> Iterator[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        yield declared
    elif isinstance(declared, list):
        yield from next(([kind] for kind in declared if kind != "null"), ["string"])
    elif choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        for choice in choices:
            yield from _kinds(choice)
    elif "enum" in schema:
        yield from ("string" if isinstance(value, str) else type(value).__name__ for value in schema["enum"])
    elif "properties" in schema:
        yield "object"
    elif "items" in schema:
        yield "array"
