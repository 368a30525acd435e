"""What is the same answer, and what is another."""

from __future__ import annotations

from typing import Any

import pytest

from governor.wire.same import difference

CALL = {
    "id": "call_7f-a",
    "index": 0,
    "type": "function",
    "function": {"name": "look", "arguments": '{"city": "Zürich", "days": 3, "deep": {"b": [1, true], "a": null}}'},
}
SHOWN: dict[str, Any] = {
    "role": "assistant",
    "content": " Let me see.\n\n",
    "reasoning_content": "They ask.\n",
    "tool_calls": [CALL],
}


def call(**changes: Any) -> dict[str, Any]:
    function = CALL["function"] | {name: changes.pop(name) for name in ("name", "arguments") if name in changes}  # type: ignore[operator]
    return CALL | {"function": function} | changes


def sent(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "Let me see.", "tool_calls": [call()]} | changes


@pytest.mark.parametrize(
    "message",
    [
        SHOWN,
        sent(),
        sent(content=[{"type": "text", "text": "Let me"}, {"type": "text", "text": " see."}]),
        sent(reasoning_content="They ask."),
        sent(reasoning="They ask."),
        sent(reasoning_content=None, reasoning=""),
        sent(content="<think>\nThey ask.\n</think>\n\nLet me see."),
        sent(refusal=None, annotations=[], audio=None, name=""),
        sent(tool_calls=[call(id="call7fa")]),
        sent(tool_calls=[{key: CALL[key] for key in ("id", "function")}]),
        sent(tool_calls=[call(arguments='{"city":"Zürich","days":3,"deep":{"a":null,"b":[1,true]}}')]),
        sent(tool_calls=[call(arguments='{"city":"Z\\u00fcrich","days":3.0,"deep":{"a":null,"b":[1,true]}}')]),
    ],
)
def test_harmless(message: dict[str, Any]) -> None:
    assert difference(SHOWN, message) is None


def test_nothing_has_many_forms() -> None:
    shown = {"role": "assistant", "content": "", "reasoning_content": None}
    nothing: tuple[Any, ...] = (None, "", [], " \n")
    for content in nothing:
        assert difference(shown, {"role": "assistant", "content": content}) is None
    assert difference(shown, {"role": "assistant"}) is None
    assert difference(shown, {"role": "assistant", "tool_calls": []}) is None


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("role", sent(role="user")),
        ("content", sent(content="Let me  see.")),
        ("content", sent(content="let me see.")),
        ("content", sent(content=None)),
        ("content", sent(content=[{"type": "image_url", "image_url": {"url": "x"}}])),
        ("content", sent(content=[{"type": "odd", "text": "Let me see."}])),
        ("content", sent(content=7)),
        ("content", sent(content="<think>They lie.</think>Let me see.")),
        ("content", sent(content="<think>They ask.</think>Let me be.")),
        ("reasoning_content", sent(reasoning_content="They lie.")),
        ("reasoning", sent(reasoning={"text": "They ask."})),
        ("name", sent(name="bob")),
        ("function_call", sent(function_call={"name": "look"})),
        ("reasoning_details", sent(reasoning_details=[{"text": "They lie."}])),
        ("tool_calls", sent(tool_calls=None)),
        ("tool_calls", sent(tool_calls=[call(), call()])),
        ("tool_calls", sent(tool_calls={"0": call()})),
        ("tool_calls[0]", sent(tool_calls=["look"])),
        ("tool_calls[0].function", sent(tool_calls=[call(function="look")])),
        ("tool_calls[0].id", sent(tool_calls=[call(id="call_7f-b")])),
        ("tool_calls[0].type", sent(tool_calls=[call(type="custom")])),
        ("tool_calls[0].name", sent(tool_calls=[call(name="Look")])),
        ("tool_calls[0].extra_content", sent(tool_calls=[call(extra_content={"a": 1})])),
        ("tool_calls[0].arguments", sent(tool_calls=[call(arguments='{"city":"Zürich","days":3}')])),
        (
            "tool_calls[0].arguments",
            sent(tool_calls=[call(arguments='{"city":"Zürich","days":3,"deep":{"a":null,"b":[true,1]}}')]),
        ),
        (
            "tool_calls[0].arguments",
            sent(tool_calls=[call(arguments='{"city":"Zürich","days":3,"deep":{"a":null,"b":[1,1]}}')]),
        ),
        (
            "tool_calls[0].arguments",
            sent(tool_calls=[call(arguments='{"city":"Zürich","days":"3","deep":{"a":null,"b":[1,true]}}')]),
        ),
        ("tool_calls[0].arguments", sent(tool_calls=[call(arguments={"city": "Zürich"})])),
        ("tool_calls[0].arguments", sent(tool_calls=[call(arguments='{"city": ')])),
    ],
)
def test_another_meaning(field: str, message: dict[str, Any]) -> None:
    assert difference(SHOWN, message) == field


def test_arguments_that_are_no_json_are_the_same_only_byte_for_byte() -> None:
    shown = {"role": "assistant", "content": None, "tool_calls": [call(arguments='{"city": "Zü')]}
    assert difference(shown, shown) is None
    assert difference(shown, shown | {"tool_calls": [call(arguments='{"city":"Zü')]}) == "tool_calls[0].arguments"


def test_numbers_that_javascript_rounds_are_another() -> None:
    shown = {"role": "assistant", "tool_calls": [call(arguments='{"id":12345678901234567890}')]}
    rounded = {"role": "assistant", "tool_calls": [call(arguments='{"id":12345678901234567000}')]}
    assert difference(shown, rounded) == "tool_calls[0].arguments"
