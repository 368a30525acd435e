"""Several generations as one answer without the calls of one tool: streams in pieces, whole answers, odd engines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.wire import sse
from governor.wire.spliced import SplicedStream, SplicedWhole, ended_with
from governor.wire.sse import SseSplitter
from governor.wire.whole import Whole

OWN = "ours"
DONE = sse.encode(b"[DONE]")


def event(delta: dict[str, Any] | None, finish: str | None = None, *, number: int = 1, **fields: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": f"c{number}", "object": "chat.completion.chunk", "created": number, "model": "m"}
    return sse.encode(msgspec.json.encode({**head, "choices": choices, **fields}))


def piece(index: int, name: str | None = None, arguments: str = "", id_: str | None = None) -> dict[str, Any]:
    return {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def usage(prompt: int, written: int, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip


def fed(spliced: SplicedStream, raw: bytes) -> bytes:
    return b"".join(map(spliced.on_event, SseSplitter().feed(raw)))


def message(raw: bytes) -> dict[str, Any]:
    whole = Whole()
    for each in SseSplitter().feed(raw):
        if each.data not in (None, b"[DONE]"):
            whole.on_data(each.data or b"")
    return dict(msgspec.json.decode(whole.body()))


ASKS = (
    event({"role": "assistant", "content": ""})
    + event({"reasoning_content": "Hm."})
    + event({"content": "I look."})
    + event({"tool_calls": [piece(0, OWN, "", "a")]})
    + event({"tool_calls": [piece(0, None, '{"x": 1}')]})
    + event({}, "tool_calls")
    + event(None, sglext={"cached_tokens_details": {"device": 7}})
    + event(None, usage=usage(100, 20, 64))
    + DONE
)
ANSWERS = (
    event({"role": "assistant", "content": ""}, number=2)
    + event({"content": "It is "}, number=2)
    + event({"content": "so."}, number=2)
    + event({}, "stop", number=2)
    + event(None, number=2, sglext={"cached_tokens_details": {"device": 9}})
    + event(None, number=2, usage=usage(150, 9, 120))
    + DONE
)


def test_two_generations_are_one_answer() -> None:
    spliced = SplicedStream(OWN)
    out = fed(spliced, ASKS)
    asked = spliced.generation
    assert (asked.asks, asked.is_done, asked.content, asked.reasoning) == (True, True, "I look.", "Hm.")
    assert [(call.id, call.arguments) for call in asked.own] == [("a", '{"x": 1}')]
    assert asked.usage == usage(100, 20, 64)
    spliced.next()
    out += fed(spliced, ANSWERS)
    assert not spliced.generation.asks
    answer = message(out)
    assert (answer["id"], answer["created"]) == ("c1", 1)
    assert answer["choices"][0]["message"] == {
        "role": "assistant", "content": "I look.\n\nIt is so.", "reasoning_content": "Hm.",
    }  # fmt: skip
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == usage(100, 29, 64)
    assert answer["sglext"] == {"cached_tokens_details": {"device": 7}}
    assert out.count(b"[DONE]") == 1
    assert out.count(b'"role"') == 1
    assert OWN.encode() not in out
    assert b'"c2"' not in out


def test_without_a_call_every_byte_is_as_it_came() -> None:
    odd = b": keep-alive\n\n" + b"data: {not json\n\n" + event(None, usage=None) + event({"tool_calls": []})
    theirs = event({"tool_calls": [piece(0, "theirs", "{", "b")]}) + event({"tool_calls": [piece(0, None, "}")]})
    raw = odd + ANSWERS[: -len(DONE)] + theirs + DONE
    assert fed(SplicedStream(OWN), raw) == raw


def test_the_end_that_was_kept_back() -> None:
    spliced = SplicedStream(OWN)
    answer = message(fed(spliced, ASKS) + spliced.ending("length"))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert "tool_calls" not in answer["choices"][0]["message"]
    assert answer["usage"] == usage(100, 20, 64)
    assert answer["sglext"]


def test_what_was_said_before_is_apart_only_where_it_is_not() -> None:
    for before, after, together in (("a", "b", "a\n\nb"), ("a\n", "b", "a\nb"), ("a", " b", "a b"), ("", "b", "b")):
        spliced = SplicedStream(OWN)
        own = event({"content": before, "tool_calls": [piece(0, OWN)]}) + event({}, "tool_calls") + DONE
        out = fed(spliced, own)
        spliced.next()
        out += fed(spliced, event({"role": "assistant", "content": after}, "stop", number=2) + DONE)
        assert message(out)["choices"][0]["message"]["content"] == together
        assert out.count(b'"role"') == 0


@pytest.mark.parametrize("finish", ["length", "abort", "content_filter"])
def test_calls_that_were_cut_are_not_asked_for(finish: str) -> None:
    spliced = SplicedStream(OWN)
    out = fed(spliced, event({"tool_calls": [piece(0, OWN, '{"x')]}) + event({}, finish) + DONE)
    assert not spliced.generation.asks
    assert out == event({}, finish) + DONE


def test_a_name_that_never_comes_is_not_ours() -> None:
    spliced = SplicedStream(OWN)
    out = fed(spliced, event({"tool_calls": [piece(0, None, "{}")]}) + event({}, "tool_calls") + DONE)
    assert spliced.generation.has_others
    (call,) = message(out)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == "{}"


def test_reasoning_under_two_names_is_said_once() -> None:
    spliced = SplicedStream(OWN)
    both = {"reasoning": "Hm.", "reasoning_content": "Hm."}
    fed(spliced, event(both) + event({"tool_calls": [piece(0, OWN)]}) + event({}, "stop") + DONE)
    assert spliced.generation.reasoning == "Hm."


def test_usage_beside_a_choice() -> None:
    spliced = SplicedStream(OWN)
    fed(spliced, event({"tool_calls": [piece(0, OWN)]}) + event({}, "stop", usage=usage(100, 20)) + DONE)
    assert spliced.generation.asks
    spliced.next()
    out = fed(spliced, event({"content": "b"}, number=2) + event({}, "stop", number=2, usage=usage(150, 9)) + DONE)
    assert message(out)["usage"] == usage(100, 29)


_CALLS = st.lists(st.tuples(st.sampled_from([OWN, "theirs", "others"]), st.text(max_size=12)), max_size=5)


@given(calls=_CALLS, data=st.data())
def test_calls_in_any_pieces_and_any_order(calls: list[tuple[str, str]], data: st.DataObject) -> None:
    """Each call's pieces stay in order, the calls are mixed, and a name comes in any of them."""
    queues: list[list[dict[str, Any]]] = []
    for index, (name, arguments) in enumerate(calls):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
        parts = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        named = data.draw(st.integers(0, len(parts) - 1))
        queues.append([piece(index, name if at == named else None, part, f"i{index}") for at, part in enumerate(parts)])
    raw = b""
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        raw += event({"tool_calls": [queue.pop(0)]})
    spliced = SplicedStream(OWN)
    out = fed(spliced, raw + event({}, "tool_calls") + DONE)
    shown = message(out + DONE)["choices"][0]["message"].get("tool_calls", []) if out else []
    wanted = sorted((name, arguments) for name, arguments in calls if name != OWN)
    assert sorted((call["function"]["name"], call["function"]["arguments"]) for call in shown) == wanted
    assert [call["index"] for call in shown] == list(range(len(shown)))
    assert [call.arguments for call in spliced.generation.own] == [text for name, text in calls if name == OWN]
    assert spliced.generation.asks is (bool(calls) and not wanted)


def whole(text: str, *names: str, finish: str = "stop", number: int = 1, **fields: Any) -> bytes:
    calls = [
        {"id": f"i{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for at, name in enumerate(names)
    ]
    said = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
    choices = [{"index": 0, "message": said, "finish_reason": finish}]
    return msgspec.json.encode({"id": f"c{number}", "created": number, "choices": choices, **fields})


def test_whole_answers() -> None:
    spliced = SplicedWhole(OWN)
    body = spliced.on_body(whole("I look.", OWN, finish="tool_calls", usage=usage(100, 20, 64)))
    assert spliced.generation.asks
    assert body is not None
    assert msgspec.json.decode(ended_with(body, "length"))["choices"][0] == {
        "index": 0, "message": {"role": "assistant", "content": "I look."}, "finish_reason": "length",
    }  # fmt: skip
    spliced.next()
    body = spliced.on_body(whole("So.", "theirs", finish="tool_calls", number=2, usage=usage(150, 9, 120)))
    answer = msgspec.json.decode(body or b"")
    assert (answer["id"], answer["created"], answer["usage"]) == ("c1", 1, usage(100, 29, 64))
    assert answer["choices"][0]["message"]["content"] == "I look.\n\nSo."
    assert [call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]] == ["theirs"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{not", b'{"choices": 3}', b'{"choices": [3]}', b'{"error": {}}'])
def test_what_is_no_answer(body: bytes) -> None:
    spliced = SplicedWhole(OWN)
    assert spliced.on_body(body) is body
    assert not spliced.generation.asks
    spliced.next()
    assert spliced.on_body(body) is None
    assert spliced.on_body(b'{"error": {"message": "no"}}') == b'{"error": {"message": "no"}}'
