"""Whatever a client sends: no message is lost or invented, the same comes out again, and nothing is done twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.compress.messages import read_message
from governor.compress.rounds import rounds_of
from governor.output.interleaved import repair
from governor.output.stable import Stabiliser, StableLimits
from governor.policy.model import Attribution, Interleaved, RequestPolicy, SystemBytes, ToolOrder
from governor.tokens.volatile import volatile_changes
from governor.wire.request import GenerationRequest
from serve.engine import Endpoint
from tests.stabilising import BILLING, ON, Sending, anthropic, chat, decoded, parts, raws, responses, value

clocks = st.sampled_from(["12:00", "12:01", "7%", "2026-11-30", "Mon", "0f9a", ""])
words = st.lists(st.sampled_from(["be", "kind", "\n", "#"]) | clocks, max_size=5).map(" ".join)
lines = st.sampled_from(["", BILLING, f"{BILLING}\n", f"x {BILLING}", BILLING[:30]])
prompts = st.tuples(lines, words).map("".join)
ids = st.sampled_from(["a", "b", "call_a", "calla", ""])
blocks = st.fixed_dictionaries({"type": st.just("text"), "text": prompts})
odd: st.SearchStrategy[Any] = st.sampled_from([None, 7, [], {}, [7], [{"type": "image"}]])
contents = prompts | st.lists(blocks, max_size=3) | odd


def message(role: str, content: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"role": st.just(role), "content": content})


def asking(call: Any) -> dict[str, Any]:
    calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in call]
    return {"role": "assistant", "content": None, "tool_calls": calls}


answers = st.lists(ids, max_size=3).map(asking) | message("assistant", contents)
results = st.fixed_dictionaries({"role": st.just("tool"), "content": words, "tool_call_id": ids | st.none()})
instructions = message("system", contents) | message("developer", contents)
chats = st.tuples(
    st.lists(instructions, max_size=2),
    st.lists(message("user", contents) | answers | results | instructions, min_size=1, max_size=12),
).map(lambda both: [*both[0], *both[1]])

uses = st.lists(ids.map(lambda each: {"type": "tool_use", "id": each, "name": "f", "input": {}}), max_size=2)
used = st.lists(ids.map(lambda each: {"type": "tool_result", "tool_use_id": each, "content": "x"}), max_size=2)
anthropics = st.lists(
    message("user", contents | used) | message("assistant", uses | words) | message("system", contents),
    min_size=1,
    max_size=12,
)
calls = st.sampled_from(["function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"])
items = st.lists(
    message("user", contents)
    | instructions
    | st.fixed_dictionaries({"type": calls, "call_id": ids})
    | st.just({"type": "reasoning"}),
    min_size=1,
    max_size=12,
)
schemas = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["a", "b", "c", "", 3])
functions = st.fixed_dictionaries({"name": names}, optional={"description": words, "parameters": schemas, "x": schemas})
tools = st.lists(functions.map(lambda each: {"function": each, "type": "function"}) | functions | odd, max_size=4)
policies = st.builds(
    RequestPolicy,
    attribution=st.sampled_from(Attribution),
    system_bytes=st.sampled_from(SystemBytes),
    tool_order=st.sampled_from(ToolOrder),
    interleaved=st.sampled_from(Interleaved),
)


@st.composite
def requests(draw: st.DrawFn) -> GenerationRequest:
    fields: dict[str, Any] = {"tools": draw(tools)} if draw(st.booleans()) else {}
    dialect = draw(st.sampled_from(["chat", "anthropic", "responses"]))
    if dialect == "chat":
        return chat(*draw(chats), **fields)
    if draw(st.booleans()):
        fields["system" if dialect == "anthropic" else "instructions"] = draw(prompts | st.lists(blocks, max_size=3))
    return anthropic(*draw(anthropics), **fields) if dialect == "anthropic" else responses(*draw(items), **fields)


@settings(deadline=None)
@given(st.lists(requests(), min_size=1, max_size=4), policies)
def test_deterministic_and_idempotent(sent: list[GenerationRequest], policy: RequestPolicy) -> None:
    """``Sending`` checks each result for consistency."""
    one, other = Sending(policy), Sending(policy)
    for request in sent:
        made, again = one(request), other(request)
        assert parts(made.request) == parts(again.request)
        assert (made.edits, made.warnings) == (again.edits, again.warnings)
        twice = one(made.request)
        assert twice.request is made.request
        assert not twice.warnings
        other(again.request)


@settings(deadline=None)
@given(st.lists(requests(), min_size=1, max_size=4), policies)
def test_nothing_is_lost_or_invented(sent: list[GenerationRequest], policy: RequestPolicy) -> None:
    sending = Sending(policy)
    for request in sent:
        after = sending(request).request
        head = _leading(request)
        assert not raws(request.messages[head:]) or Counter(raws(request.messages[head:])) <= Counter(
            raws(after.messages)
        )
        assert len(request.messages) - head <= len(after.messages) <= len(request.messages)
        if policy.interleaved is Interleaved.AS_SENT:
            tail = len(request.messages) - head
            assert raws(after.messages)[len(after.messages) - tail :] == raws(request.messages[head:])
        if policy.attribution is Attribution.KEEP:
            assert len(after.messages) == len(request.messages)
        assert _meanings(value(after.tools)) == _meanings(value(request.tools))


def _leading(request: GenerationRequest) -> int:
    roles = [message.get("role") for message in decoded(request)]
    return next((n for n, role in enumerate(roles) if role not in ("system", "developer")), len(roles))


def _meanings(listed: Any) -> Counter[bytes]:
    """A tool list as a bag, whatever the order of keys."""
    return Counter(msgspec.json.encode(each, order="sorted") for each in listed or ())


@settings(deadline=None)
@given(chats)
def test_a_repaired_history_has_no_word_before_a_result_of_its_calls(messages: list[dict[str, Any]]) -> None:
    request = chat(*messages)
    made = repair(Endpoint.CHAT, request.messages, request.roles)
    order = list(range(len(messages))) if made is None else list(made.order)
    assert sorted(order) == list(range(len(messages)))
    after = [request.messages[index] for index in order]
    read = [read_message(raw) for raw in after]
    for kept in (
        [n for n in order if read_message(request.messages[n]).role == role] for role in {m.role for m in read}
    ):
        assert kept == sorted(kept), "the order of each role stays"
    for round_ in rounds_of(read).rounds:
        for unit in round_.units:
            inside = [read[index].role for index in range(unit.start, unit.end)]
            if inside.count("assistant") == 1:
                assert not {"user", "system", "developer"} & set(inside)


@settings(deadline=None)
@given(st.lists(chats, min_size=1, max_size=5))
def test_what_was_repaired_stays_as_it_is(rounds: list[list[dict[str, Any]]]) -> None:
    """A group is settled when the next assistant message has come."""
    talk: list[dict[str, Any]] = []
    before: list[Any] = []
    for more in rounds:
        talk += [*more, {"role": "assistant", "content": "done"}]
        request = chat(*talk)
        made = repair(Endpoint.CHAT, request.messages, request.roles)
        now = list(talk) if made is None else [talk[index] for index in made.order]
        assert now[: len(before)] == before
        before = now


@settings(deadline=None)
@given(words, words, words)
def test_volatile_is_an_equivalence(one: str, two: str, three: str) -> None:
    assert volatile_changes(one, one) == []
    assert (volatile_changes(one, two) is None) == (volatile_changes(two, one) is None)
    if volatile_changes(one, two) is not None and volatile_changes(two, three) is not None:
        assert volatile_changes(one, three) is not None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), prompts, tools), max_size=20), st.integers(0, 3000))
def test_memory_holds_no_more_than_it_may(turns: list[tuple[int, str, Any]], most: int) -> None:
    sending = Sending(ON, Stabiliser(StableLimits(sessions=3, held_bytes=most)))
    for session, prompt, listed in turns:
        sending(
            chat({"role": "system", "content": prompt}, {"role": "user", "content": "x"}, tools=listed), str(session)
        )
        assert sending.stabiliser.held_bytes <= most
