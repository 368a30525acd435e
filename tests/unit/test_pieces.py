"""What of an answer in pieces is pure: which requests, what is claimed, how streams are joined and made whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from governor.budget.claim import Claim, Segment
from governor.gateway.claims import claim_now
from governor.gateway.pausable import can_continue
from governor.policy.model import Policy, SlicePolicy
from governor.types import AgentName, TurnId
from governor.wire.joined import Joined
from governor.wire.request import parse
from governor.wire.seam import Kind
from governor.wire.sse import SseEvent, SseSplitter, encode
from governor.wire.whole import Whole
from serve.engine import Endpoint
from serve.engines.openai_upstream import OpenAIUpstream
from serve.engines.sglang import Sglang

URL = "http://127.0.0.1:9"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("more", "can"),
    [
        ({}, True),
        ({"stream": True, "stream_options": {"include_usage": True}}, True),
        ({"tools": [TOOL], "tool_choice": "auto"}, True),
        ({"response_format": {"type": "text"}, "logprobs": False, "stop": None, "n": 1}, True),
        ({"n": 2}, False),
        ({"logprobs": True}, False),
        ({"stop": "\n"}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"tools": [TOOL], "tool_choice": "required"}, False),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, False),
        ({"regex": "a+"}, False),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, False),
        ({"return_output_ids_in_sglext": True}, False),
    ],
)
def test_only_what_several_generations_can_give_is_generated_so(more: dict[str, Any], can: bool) -> None:
    request = parse(Endpoint.CHAT, msgspec.json.encode(CHAT | more))
    assert can_continue(Sglang(URL), request) is can
    assert not can_continue(OpenAIUpstream("upstream", URL), request)


def test_other_dialects_are_one_generation() -> None:
    request = parse(Endpoint.COMPLETIONS, b'{"model":"m","prompt":"hi"}')
    assert not can_continue(Sglang(URL), request)


def test_a_claim_grows_by_what_was_written_and_is_exact() -> None:
    segments = (Segment(b"shared", 100), Segment(b"own", 20))
    claim = Claim(
        turn_id=TurnId("t"),
        agent=AgentName("a"),
        segments=segments,
        output_tokens=50,
        most_output_tokens=90,
        margin_tokens=9,
    )
    policy = Policy(slices=SlicePolicy(lookahead=50))
    later = claim_now(claim, policy, 90, 160, 35)
    assert later.segments == (Segment(b"shared", 100), Segment(b"own", 60))
    assert (later.output_tokens, later.most_output_tokens, later.margin_tokens) == (50, 55, 0)
    assert claim_now(claim, policy, 90, 200, 85).output_tokens == 5
    assert claim_now(claim, policy, 90, None, 0) == claim
    assert claim_now(claim, policy, 90, 80, 0).segments == (Segment(b"own", 80),)  # the count was too high


def chunk(delta: dict[str, Any] | None, *, finish: str | None = None, name: str = "a", **more: Any) -> SseEvent:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    data = {"id": name, "created": 1 if name == "a" else 2, "model": "m", "choices": choices} | more
    (event,) = SseSplitter().feed(encode(msgspec.json.encode(data)))
    return event


DONE = SseEvent(b"data: [DONE]\n\n", b"[DONE]")


def usage(prompt: int, completion: int, reasoning: int, cached: int) -> dict[str, Any]:
    details = {"reasoning_tokens": reasoning} if reasoning else None
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "reasoning_tokens": reasoning,
        "completion_tokens_details": details,
    }


def test_one_generation_passes_byte_for_byte() -> None:
    joined = Joined()
    events = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hi"}),
        chunk({}, finish="stop"),
        chunk(None, sglext={"cached_tokens_details": {"device": 1}}),
        chunk(None, usage=usage(3, 2, 0, 1)),
        DONE,
    ]
    out = b"".join(joined.on_event(event) for event in events)
    assert out == events[0].raw + events[1].raw
    assert out + joined.ending() == b"".join(event.raw for event in events)


def test_two_generations_are_one_answer_with_its_own_usage() -> None:
    joined = Joined()
    role = {"role": "assistant", "content": ""}
    out = b"".join(joined.on_event(each) for each in (chunk(role), chunk({"reasoning_content": "Hm, "})))
    joined.piece.stop_asked = joined.piece.holding = True
    late = chunk({"reasoning_content": "so \N{REPLACEMENT CHARACTER}"})
    ends = (chunk({}, finish="abort"), chunk(None, sglext={"t": 1}), chunk(None, usage=usage(10, 7, 7, 4)), DONE)
    assert b"".join(joined.on_event(each) for each in (late, *ends)) == b""
    assert joined.piece.was_stopped
    out += joined.settle()
    assert [(each.kind, each.text) for each in joined.piece.said] == [(Kind.REASONING, "Hm, so")]
    joined.next_piece(kept_tokens=5, repeats="")
    assert joined.thinking
    second = (
        chunk(role, name="b"),
        chunk({"reasoning_content": " be it."}, name="b"),
        chunk({"content": "Yes."}, name="b"),
        chunk({}, finish="stop", name="b"),
        chunk(None, sglext={"t": 2}, name="b"),
        chunk(None, usage=usage(15, 9, 6, 14), name="b"),
        DONE,
    )
    out += b"".join(joined.on_event(each) for each in second) + joined.ending()
    told = [msgspec.json.decode(each.data) for each in SseSplitter().feed(out) if each.data != b"[DONE]" and each.data]
    assert {(each["id"], each["created"]) for each in told} == {("a", 1)}
    deltas = [choice["delta"] for each in told for choice in each["choices"]]
    assert [delta for delta in deltas if delta] == [
        role,
        {"reasoning_content": "Hm, "},
        {"reasoning_content": "so"},
        {"reasoning_content": " be it."},
        {"content": "Yes."},
    ]
    assert [each["sglext"] for each in told if "sglext" in each] == [{"t": 1}]
    assert told[-1]["usage"] == usage(10, 14, 11, 4)


def test_what_was_shown_of_a_token_is_not_shown_again() -> None:
    joined = Joined()
    joined.on_event(chunk({"content": "Well "}))
    joined.next_piece(kept_tokens=1, repeats=" ")
    out = joined.on_event(chunk({"content": " "})) + joined.on_event(chunk({"content": "\N{PARTY POPPER}!"}))
    assert [msgspec.json.decode(each.data)["choices"][0]["delta"] for each in SseSplitter().feed(out) if each.data] == [
        {"content": "\N{PARTY POPPER}!"}
    ]
    assert not joined.redrawn
    joined.next_piece(kept_tokens=1, repeats=" ")
    joined.on_event(chunk({"content": "else"}))
    assert joined.redrawn


def test_an_answer_that_ends_although_it_was_asked_to_stop_is_whole() -> None:
    joined = Joined()
    joined.on_event(chunk({"content": "Yes"}))
    joined.piece.stop_asked = joined.piece.holding = True
    for event in (chunk({"content": ".\n"}), chunk({}, finish="stop"), DONE):
        assert joined.on_event(event) == b""
    assert not joined.piece.was_stopped
    assert joined.release() + joined.ending() == chunk({"content": ".\n"}).raw + chunk({}, finish="stop").raw + DONE.raw


def test_a_stream_is_put_together_to_a_plain_answer() -> None:
    whole = Whole()
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "id": None, "type": "function", "function": {"name": None, "arguments": '{"a": 1}'}}
    for delta in ({"reasoning_content": "Hm"}, {"content": "So: "}, {"tool_calls": [call]}, {"tool_calls": [more]}):
        whole.on_data(chunk(delta).data or b"")
    whole.on_data(chunk({"content": "\n"}).data or b"")
    assert not whole.is_complete
    whole.on_data(chunk({}, finish="tool_calls").data or b"")
    whole.on_data(chunk(None, usage=usage(1, 2, 1, 0)).data or b"")
    body = msgspec.json.decode(whole.body())
    assert body["usage"] == usage(1, 2, 1, 0)
    assert (body["id"], body["object"], body["created"], body["model"]) == ("a", "chat.completion", 1, "m")
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    told = {**call, "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert choice["message"] == {
        "role": "assistant",
        "content": "So: ",
        "reasoning_content": "Hm",
        "tool_calls": [told],
    }


def test_an_error_is_the_body() -> None:
    whole = Whole()
    whole.on_data(chunk({"content": "So"}).data or b"")
    whole.on_data(b'{"error":{"message":"no"}}')
    assert whole.is_complete
    assert whole.body() == b'{"error":{"message":"no"}}'
