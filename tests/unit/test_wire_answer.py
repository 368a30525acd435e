"""Reading answers alongside: what each event is, and what is known at the end, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.types import Usage
from governor.wire.answer import ChatReader, MessagesReader, Reader, ResponsesReader, Seen, reader_for
from serve.engine import Endpoint

_READERS = (ChatReader, MessagesReader, ResponsesReader)


def _feed(reader: Reader, *events: Any) -> list[Seen]:
    return [reader.on_data(event if isinstance(event, bytes) else json.dumps(event).encode()) for event in events]


def _chunk(delta: dict[str, Any] | None = None, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta or {}, "finish_reason": finish}]}


def test_a_chat_stream() -> None:
    reader = ChatReader()
    seen = _feed(
        reader,
        _chunk({"role": "assistant", "content": ""}),
        _chunk({"reasoning_content": "hm"}),
        _chunk({"reasoning": "é"}),
        _chunk({"content": "ab"}),
        _chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a'}}]}),
        _chunk(finish="tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
        b"[DONE]",
    )
    assert seen == [Seen.OTHER, *[Seen.CONTENT] * 4, Seen.OTHER, Seen.USAGE_ONLY, Seen.DONE]
    answer = reader.answer
    assert (answer.reasoning_bytes, answer.text_bytes, answer.tool_bytes) == (4, 2, 4)
    assert (answer.content_events, answer.finish_reason, answer.done) == (4, "tool_calls", True)
    assert answer.ended_well
    assert not answer.truncated
    assert answer.usage == Usage(prompt_tokens=9, completion_tokens=4)


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"", Seen.JUNK),
        (b": still here", Seen.JUNK),
        (b'{"choices":', Seen.JUNK),
        (b"[1]", Seen.JUNK),
        (b'{"choices":[{"delta":{"content":"\xff"}}]}', Seen.JUNK),
        (b"{}", Seen.OTHER),
        (b'{"choices":null}', Seen.OTHER),
        (b'{"choices":[null,7,{"delta":7},{"message":null}]}', Seen.OTHER),
        (b'{"choices":[{"delta":{"tool_calls":[null,{"function":7}]}}]}', Seen.OTHER),
        (b'{"choices":7}', Seen.OTHER),
        (b'{"usage":{"prompt_tokens":"x"},"choices":[]}', Seen.USAGE_ONLY),
        (b'{"usage":{"prompt_tokens":1}}', Seen.USAGE_ONLY),
        (b'{"error":"no"}', Seen.ERROR),
        (b'{"choices":[],"error":{"message":"no"}}', Seen.ERROR),
        (b'{"error":null,"choices":[]}', Seen.OTHER),
        (b'{"choices":[{"text":"a"}]}', Seen.CONTENT),
        (b'{"choices":[{"message":{"content":[{"type":"text","text":"a"}]}}]}', Seen.CONTENT),
    ],
)
def test_single_chat_events(data: bytes, seen: Seen) -> None:
    assert ChatReader().on_data(data) is seen


def test_done_alone_is_no_end() -> None:
    reader = ChatReader()
    _feed(reader, b"[DONE]")
    assert not reader.answer.ended_well
    _feed(reader, _chunk({"content": "a"}))
    assert reader.answer.ended_well


def test_an_error_undoes_a_good_end() -> None:
    reader = ChatReader()
    _feed(reader, _chunk({"content": "a"}, "stop"), {"error": {"message": "no"}})
    assert not reader.answer.ended_well


def test_one_cut_choice_makes_the_answer_a_cut_one() -> None:
    reader = ChatReader()
    _feed(reader, _chunk({"content": "a"}, "length"), _chunk({"content": "b"}, "stop", index=1))
    assert reader.answer.truncated


def test_lost_to_reasoning() -> None:
    reader = ChatReader()
    _feed(reader, _chunk({"reasoning_content": "hm"}, "length"))
    assert reader.answer.lost_to_reasoning
    _feed(reader, _chunk({"content": "a"}))
    assert not reader.answer.lost_to_reasoning


def test_tiers_of_sglang() -> None:
    reader = ChatReader()
    details = {"device": 5, "host": 3, "storage": None}
    _feed(reader, {"choices": [], "usage": {}, "sglext": {"cached_tokens_details": details}})
    usage = reader.answer.usage
    assert (usage.cached_device_tokens, usage.cached_host_tokens, usage.cached_storage_tokens) == (5, 3, None)


def test_usage_by_choice() -> None:
    reader = ChatReader()

    def report(index: int, tokens: int) -> dict[str, Any]:
        return _chunk({"content": "a"}, index=index) | {"usage": {"prompt_tokens": 9, "completion_tokens": tokens}}

    _feed(reader, report(0, 1), report(1, 4), report(0, 3))
    assert reader.answer.usage == Usage(prompt_tokens=9, completion_tokens=7)
    _feed(reader, {"choices": [], "usage": {"completion_tokens": 8}})
    assert reader.answer.usage.completion_tokens == 8


def test_a_messages_stream() -> None:
    reader = MessagesReader()
    start = {"usage": {"input_tokens": 5, "cache_read_input_tokens": 40, "output_tokens": 1}}
    seen = _feed(
        reader,
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "ab"}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f", "input": {}}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": '{"a'}},
    )
    assert seen == [Seen.OTHER, Seen.OTHER, Seen.OTHER, Seen.CONTENT, Seen.CONTENT, Seen.CONTENT, Seen.CONTENT]
    assert reader.answer.usage == Usage(prompt_tokens=45, cached_tokens=40)
    seen = _feed(
        reader,
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 12}},
        {"type": "message_stop"},
    )
    assert seen == [Seen.OTHER, Seen.DONE]
    answer = reader.answer
    assert (answer.reasoning_bytes, answer.text_bytes, answer.tool_bytes) == (2, 2, 4)
    assert (answer.truncated, answer.ended_well) == (True, True)
    assert answer.usage == Usage(prompt_tokens=45, cached_tokens=40, completion_tokens=12)


def test_a_whole_message() -> None:
    reader = MessagesReader()
    blocks = [{"type": "text", "text": "ab"}, {"type": "tool_use", "name": "f", "input": {"a": 1}}]
    usage = {"input_tokens": 5, "output_tokens": 2}
    body = {"type": "message", "content": blocks, "stop_reason": "tool_use", "usage": usage}
    assert _feed(reader, body) == [Seen.CONTENT]
    answer = reader.answer
    assert (answer.text_bytes, answer.tool_bytes, answer.finish_reason) == (2, 1 + len(b'{"a":1}'), "tool_use")
    assert answer.usage == Usage(prompt_tokens=5, completion_tokens=2)


def test_a_count() -> None:
    reader = reader_for(Endpoint.COUNT_TOKENS)
    _feed(reader, {"input_tokens": 17})
    assert reader.answer.ended_well
    assert reader.answer.usage == Usage(prompt_tokens=17)


def test_a_responses_stream() -> None:
    reader = ResponsesReader()
    seen = _feed(
        reader,
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.reasoning_text.delta", "delta": "hm"},
        {"type": "response.output_text.delta", "delta": "ab"},
        {"type": "response.function_call_arguments.delta", "delta": "{}"},
        {"type": "response.completed", "response": {"status": "completed", "usage": {"input_tokens": 5}}},
    )
    assert seen == [Seen.OTHER, Seen.CONTENT, Seen.CONTENT, Seen.CONTENT, Seen.DONE]
    answer = reader.answer
    assert (answer.reasoning_bytes, answer.text_bytes, answer.tool_bytes) == (2, 2, 2)
    assert (answer.finish_reason, answer.ended_well) == ("stop", True)
    assert answer.usage == Usage(prompt_tokens=5)


def test_an_incomplete_response_is_a_cut_one() -> None:
    reader = ResponsesReader()
    response = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    _feed(reader, {"type": "response.incomplete", "response": response})
    assert reader.answer.truncated


def test_a_whole_response() -> None:
    reader = ResponsesReader()
    output = [
        {"type": "reasoning", "content": [{"text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "abc"}]},
        {"type": "function_call", "arguments": "{}"},
    ]
    assert _feed(reader, {"object": "response", "status": "completed", "output": output}) == [Seen.CONTENT]
    answer = reader.answer
    assert (answer.reasoning_bytes, answer.text_bytes, answer.tool_bytes) == (2, 3, 2)


@pytest.mark.parametrize(
    ("reader", "event"),
    [
        (MessagesReader(), {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}),
        (ResponsesReader(), {"type": "error", "error": {"message": "no"}}),
        (ResponsesReader(), {"type": "response.failed", "response": {"error": {"message": "no"}}}),
        (ResponsesReader(), {"error": {"message": "no"}}),
    ],
)
def test_errors_of_the_named_dialects(reader: Reader, event: dict[str, Any]) -> None:
    assert _feed(reader, event) == [Seen.ERROR]
    assert reader.answer.error is not None
    assert reader.answer.error["message"] == "no"


_ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "object", "choices", "delta", "message", "usage", "error", "content", "tool_calls", "function",
                 "response", "output", "stop_reason", "finish_reason", "index", "sglext", "cached_tokens_details",
                 "status", "incomplete_details", "reason"]
            ),
            inner | st.sampled_from(["message_start", "message_delta", "response.completed", "message", "response"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize("kind", _READERS)
@given(events=st.lists(_ODD, max_size=4))
def test_no_reader_raises_on_odd_events(kind: type[Reader], events: list[Any]) -> None:
    reader = kind()
    _feed(reader, *events)
    assert reader.answer.finish_reason is None or isinstance(reader.answer.finish_reason, str)
    assert reader.answer.generated_bytes >= 0
    assert not (reader.answer.lost_to_reasoning and reader.answer.text_bytes)


def test_the_tool_that_is_called_is_told_in_every_dialect() -> None:
    chat, messages, responses = ChatReader(), MessagesReader(), ResponsesReader()
    _feed(
        chat,
        _chunk({"tool_calls": [{"index": 0, "function": {"name": "bash", "arguments": ""}}]}),
        _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]}),
    )
    _feed(
        messages,
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "bash", "input": {}}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
    )
    _feed(responses, {"type": "response.output_item.added", "item": {"type": "function_call", "name": "bash"}})
    assert [reader.answer.tool for reader in (chat, messages, responses)] == ["bash"] * 3
    whole = ResponsesReader()
    _feed(whole, {"object": "response", "output": [{"type": "function_call", "name": "b" * 1000, "arguments": "{}"}]})
    assert whole.answer.tool == "b" * 64
    plain = ChatReader()
    _feed(plain, _chunk({"content": "no"}), _chunk({"tool_calls": [{"function": {"name": 7}}]}))
    assert plain.answer.tool == ""
