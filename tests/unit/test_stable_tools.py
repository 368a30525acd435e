"""Tools in the order of their names, and a word when one came, went or moved."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from governor.policy.model import RequestPolicy, ToolOrder
from governor.wire.request import GenerationRequest, parse
from serve.engine import Endpoint
from tests.stabilising import OFF, Sending, anthropic, chat, parts, responses, tool, user, value

BY_NAME = RequestPolicy(tool_order=ToolOrder.BY_NAME)
STRING = {"type": "string", "description": "a path"}
TOOLS = [tool("zeta", b=STRING, a={"type": "integer"}), tool("alpha"), tool("Mid", path=STRING)]


def in_chat(tools: Any) -> GenerationRequest:
    return chat(user("hi"), tools=tools)


def in_anthropic(tools: Any) -> GenerationRequest:
    return anthropic(user("hi"), tools=[flat(each, "input_schema") for each in tools])


def in_responses(tools: Any) -> GenerationRequest:
    return responses(user("hi"), tools=[{"type": "function"} | flat(each, "parameters") for each in tools])


def flat(each: dict[str, Any], schema: str) -> dict[str, Any]:
    function = each["function"]
    return {"name": function["name"], "description": function["description"], schema: function["parameters"]}


dialects = pytest.mark.parametrize("written", [in_chat, in_anthropic, in_responses])


def turned(what: Any) -> Any:
    """The same value with the keys of each object the other way round."""
    if isinstance(what, dict):
        return {key: turned(each) for key, each in reversed(what.items())}
    return [turned(each) for each in what] if isinstance(what, list) else what


def names(request: GenerationRequest) -> list[str]:
    return [(each.get("function") or each)["name"] for each in value(request.tools)]


@dialects
def test_permutations_are_the_same_bytes_from_the_first_turn(written: Any) -> None:
    sent = set()
    for order in itertools.permutations(TOOLS):
        for tools in (list(order), turned(list(order))):
            made = Sending(BY_NAME)(written(tools))
            sent.add(bytes(made.request.tools or b""))
            assert made.request.tools_usable
    (only,) = sent
    assert names(Sending(BY_NAME)(written(TOOLS)).request) == ["Mid", "alpha", "zeta"]
    by_name = sorted(value(written(TOOLS).tools), key=lambda each: (each.get("function") or each)["name"])
    assert value(Sending(BY_NAME)(written(TOOLS)).request.tools) == by_name, "the same meaning"
    assert b'"required":["b","a"]' in only, "lists keep their order"


def test_schemas_are_sorted_and_the_frame_is_as_models_know_it() -> None:
    made = Sending(BY_NAME)(in_chat(turned(TOOLS[:1])))
    raw = bytes(made.request.tools or b"")
    order = [b'"type":"function"', b'"function"', b'"name"', b'"description":"zetas"', b'"parameters"', b'"properties"']
    order += [b'"a"', b'"b"', b'"required"', b'"type":"object"']
    places = [raw.index(each) for each in order]
    assert places == sorted(places)


@dialects
def test_untouched_by_default(written: Any) -> None:
    sending = Sending(OFF)
    for tools in (TOOLS, TOOLS[::-1]):
        request = written(tools)
        assert sending(request).request is request


@dialects
def test_a_missing_tool_is_named_and_not_added_again(written: Any) -> None:
    for policy in (OFF, BY_NAME):
        sending = Sending(policy)
        assert not sending(written(TOOLS)).warnings
        gone = sending(written(TOOLS[:1] + TOOLS[2:]))
        assert gone.warnings == ("tool_missing: alpha, prefix lost",)
        assert sorted(names(gone.request)) == ["Mid", "zeta"]
        assert not sending(written(TOOLS[:1] + TOOLS[2:])).warnings
        assert sending(written(TOOLS)).warnings == ("tool_new: alpha, prefix lost",)
        other = sending(written([*TOOLS[1:], tool("omega")]))
        assert other.warnings == ("tool_missing: zeta, prefix lost", "tool_new: omega, prefix lost")


@dialects
def test_a_flip_is_told_where_it_is_sent(written: Any) -> None:
    sending = Sending(OFF)
    sending(written(TOOLS))
    assert sending(written([TOOLS[0], TOOLS[2], TOOLS[1]])).warnings == ("tool_order: from Mid on, prefix lost",)
    sending = Sending(BY_NAME)
    sending(written(TOOLS))
    assert not sending(written(TOOLS[::-1])).warnings


def test_a_call_without_tools_says_nothing() -> None:
    sending = Sending(OFF)
    sending(in_chat(TOOLS))
    for none in (chat(user("title")), in_chat([]), in_chat(None)):
        assert not sending(none).warnings
    assert not sending(in_chat(TOOLS)).warnings


def test_many_names_are_cut_short() -> None:
    sending = Sending(OFF)
    sending(in_chat(TOOLS[:1]))
    many = [tool(f"t{number}" + "x" * 100) for number in range(9)]
    (warning,) = sending(in_chat(TOOLS[:1] + many)).warnings
    assert len(warning) < 250
    assert warning.endswith("and 6 more, prefix lost")
    (warning,) = sending(in_chat([*TOOLS[:1], *many, tool("a\nb")])).warnings
    assert warning == r"tool_new: 'a\nb', prefix lost"


def test_a_tool_without_a_name_keeps_its_place() -> None:
    search = {"type": "web_search", "filters": {"b": 1, "a": 2}}
    for odd in (search, 7, {"function": "x"}, {"function": {"name": 3}}, {"name": ""}):
        made = Sending(BY_NAME)(in_chat([TOOLS[0], odd, TOOLS[1]]))
        assert value(made.request.tools) == [TOOLS[1], odd, TOOLS[0]]
        again = Sending(BY_NAME)(made.request)
        assert again.request is made.request
    made = Sending(BY_NAME)(in_chat([search]))
    assert b'{"a":2,"b":1}' in bytes(made.request.tools or b"")


def test_one_name_twice() -> None:
    one, other = tool("same", a=STRING), tool("same", b=STRING)
    first, second = (Sending(BY_NAME)(in_chat(tools)) for tools in ([one, other], [other, one]))
    assert parts(first.request) == parts(second.request)
    sending = Sending(OFF)
    sending(in_chat([one, other]))
    assert sending(in_chat([one])).warnings == ("tool_missing: same, prefix lost",)


def test_numbers_mean_the_same() -> None:
    tools = b'[{"name":"a","n":[1.50,1e5,-0,12345678901234567890123]}]'
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":%s}' % tools
    request = parse(Endpoint.CHAT, body)
    assert value(Sending(BY_NAME)(request).request.tools) == value(request.tools)


def test_what_cannot_be_written_again_keeps_its_bytes() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"name":"b"},{"n":1e999,"name":"a"}]}'
    request = parse(Endpoint.CHAT, body)
    assert Sending(BY_NAME)(request).request is request
