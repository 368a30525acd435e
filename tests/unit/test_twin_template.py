"""Chat messages as the twin's prompt."""

from __future__ import annotations

from typing import Any

import pytest

from serve.twin_server.pieces import decode
from serve.twin_server.template import BadMessages, chat_ids, last_user_text, tool_specs, turn_number

_TOOL = {
    "type": "function",
    "function": {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
}
_CALL = {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path": "ä.txt", "lines": [1, 2]}'}}


def rendered(messages: Any, tools: Any = None, **options: bool) -> str:
    return decode(chat_ids(messages, tools, **options))


def test_turns() -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}]
    assert rendered(messages) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    assert rendered(messages, enable_thinking=False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert rendered(messages, add_generation_prompt=False).endswith("hi<|im_end|>\n")


def test_parts_are_joined_and_a_developer_is_the_system() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    text = rendered([{"role": "developer", "content": parts}, {"role": "user", "content": None}])
    assert text.startswith("<|im_start|>system\none two<|im_end|>\n<|im_start|>user\n<|im_end|>\n")


def test_tools_stand_before_the_system_text() -> None:
    text = rendered([{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}], [_TOOL])
    head, _, rest = text.partition("<|im_end|>")
    assert head.startswith("<|im_start|>system\n# Tools\n")
    assert '\n<tools>\n{"type": "function", "function": {"name": "read"' in head
    assert head.endswith("\n\nBe short.")
    assert rest.startswith("\n<|im_start|>user\nhi")


def test_calls_and_results() -> None:
    text = rendered(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "Reading.", "reasoning_content": "why not", "tool_calls": [_CALL, _CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ],
        add_generation_prompt=False,
    )
    call = (
        "<tool_call>\n<function=read>\n<parameter=path>\nä.txt\n</parameter>\n"
        "<parameter=lines>\n[1, 2]\n</parameter>\n</function>\n</tool_call>"
    )
    assert text == (
        "<|im_start|>user\ngo<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nwhy not\n</think>\n\nReading.\n\n{call}\n{call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n"
    )


def test_reasoning_before_the_last_question_is_dropped() -> None:
    history = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "first", "reasoning_content": "old"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "<think>\nnew\n</think>\n\nsecond"},
    ]
    text = rendered(history, add_generation_prompt=False)
    assert "<|im_start|>assistant\nfirst<|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n<think>\nnew\n</think>\n\nsecond<|im_end|>\n")


def test_a_further_message_only_appends() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": "r1"},
        {"role": "tool", "content": "r2"},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": "really"},
    ]
    before = chat_ids(messages[:2], [_TOOL], add_generation_prompt=False)
    for count in range(3, len(messages) + 1):
        ids = chat_ids(messages[:count], [_TOOL], add_generation_prompt=False)
        assert ids[: len(before)] == before
        assert len(ids) > len(before)
        before = ids


def test_an_answer_at_the_end() -> None:
    question = "<|im_start|>user\nhi<|im_end|>\n"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": " Well, "}]
    begun = rendered(messages, continue_final_message=True)
    assert begun == f"{question}<|im_start|>assistant\n<think>\n Well, "
    begun = rendered(messages, continue_final_message=True, enable_thinking=False)
    assert begun == f"{question}<|im_start|>assistant\n<think>\n\n</think>\n\n Well, "
    assert rendered(messages) == f"{question}<|im_start|>user\nWell,<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert rendered(messages[:1], continue_final_message=True) == rendered(messages[:1])
    assert rendered(messages[1:], continue_final_message=True) == "<|im_start|>assistant\n<think>\n Well, "


def test_what_is_said_is_trimmed() -> None:
    messages = [{"role": "user", "content": " hi\n"}, {"role": "assistant", "content": "\n\nYes.\n"}]
    assert rendered(messages, add_generation_prompt=False) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nYes.<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("hi", "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": {}}] * 2, "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_bad_message_is_named(messages: Any, field: str) -> None:
    with pytest.raises(BadMessages) as caught:
        chat_ids(messages)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("tool", "field"),
    [("read", "tools[1]"), ({"type": "custom"}, "tools[1].type"), ({"function": {}}, "tools[1].function.name")],
)
def test_a_bad_tool_is_named(tool: Any, field: str) -> None:
    with pytest.raises(BadMessages) as caught:
        chat_ids([{"role": "user", "content": "hi"}], [_TOOL, tool])
    assert caught.value.field == field


def test_what_a_script_looks_at() -> None:
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "three"}]},
        {"role": "tool", "content": "four"},
    ]
    assert last_user_text(messages) == "three"
    assert turn_number(messages) == 2
    assert (last_user_text([]), turn_number([])) == ("", 1)
    assert [tool.name for tool in tool_specs([_TOOL])] == ["read"]
