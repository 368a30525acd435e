"""SGLang's own request fields, pure."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import BadRequest
from governor.types import AgentClass
from governor.wire.sse import SseSplitter
from serve.engine import Endpoint, EngineCall, TokenIds, TurnFacts
from serve.engines.sglang_fields import (
    additions,
    asking_for_ids,
    continue_from,
    ids_in,
    priority_of,
    rid_of,
)
from serve.profile.model import PriorityOrder

TURN = "t-0123456789abcdef"
turn_ids = st.text(alphabet="0123456789abcdef", min_size=1, max_size=16).map(lambda digits: f"t-{digits}")
parts = st.integers(0, 9999)


def chat(**fields: object) -> EngineCall:
    return EngineCall(endpoint=Endpoint.CHAT, body=msgspec.json.encode({"model": "m", **fields}), turn_id=TURN)


@given(turn_ids, parts, turn_ids, parts, st.sampled_from(Endpoint), st.sampled_from(Endpoint))
def test_no_name_is_the_beginning_of_another(
    one: str, part: int, other: str, other_part: int, endpoint: Endpoint, other_endpoint: Endpoint
) -> None:
    left, right = rid_of(endpoint, one, part), rid_of(other_endpoint, other, other_part)
    assert left == right or not (left.startswith(right) or right.startswith(left))


@pytest.mark.parametrize(("turn", "part"), [("", 0), ("t" * 21, 0), (TURN, -1), (TURN, 10_000)])
def test_what_has_no_room_in_a_name_is_refused(turn: str, part: int) -> None:
    with pytest.raises(ValueError, match="no request name"):
        rid_of(Endpoint.CHAT, turn, part)


def test_priorities_order_the_classes_in_either_direction_and_never_preempt() -> None:
    classes = list(AgentClass)
    higher = [priority_of(each, PriorityOrder.HIGHER_FIRST) for each in classes]
    lower = [priority_of(each, PriorityOrder.LOWER_FIRST) for each in classes]
    assert higher == sorted(higher, reverse=True)
    assert lower == sorted(lower)
    assert len(set(higher)) == len(set(lower)) == len(classes)
    assert max(higher) - min(higher) <= 10
    assert priority_of(AgentClass.NORMAL, PriorityOrder.LOWER_FIRST) == 0


@pytest.mark.parametrize(
    ("endpoint", "field"),
    [
        (Endpoint.CHAT, "rid"),
        (Endpoint.COMPLETIONS, "rid"),
        (Endpoint.RESPONSES, "request_id"),
        (Endpoint.MESSAGES, None),
        (Endpoint.COUNT_TOKENS, None),
    ],
)
def test_each_dialect_gets_the_name_in_its_own_field(endpoint: Endpoint, field: str | None) -> None:
    facts = TurnFacts(turn_id=TURN)
    added = additions(endpoint, facts, PriorityOrder.OFF, keeps_sessions=True)
    assert added == ({} if field is None else {field: rid_of(endpoint, TURN)})


def test_a_continuation_has_the_ids_a_name_of_its_own_and_the_cap_that_is_left() -> None:
    call = chat(max_tokens=100, rid="old", messages=[{"role": "user", "content": "π"}])
    on = continue_from(call, TokenIds((1, 2, 3), (4, 5)))
    body = msgspec.json.decode(on.body)
    assert body["input_ids"] == [1, 2, 3, 4, 5]
    assert (body["max_tokens"], body["rid"], on.part) == (98, rid_of(Endpoint.CHAT, TURN, 1), 1)
    assert body["messages"] == [{"role": "user", "content": "π"}]
    again = continue_from(on, TokenIds((1, 2, 3, 4, 5), (6,)))
    body = msgspec.json.decode(again.body)
    assert body["input_ids"] == [1, 2, 3, 4, 5, 6]
    assert (body["max_tokens"], body["rid"], again.part) == (97, rid_of(Endpoint.CHAT, TURN, 2), 2)


def test_both_spellings_of_the_cap_shrink() -> None:
    body = msgspec.json.decode(continue_from(chat(max_completion_tokens=9), TokenIds((1,), (2,))).body)
    assert body["max_completion_tokens"] == 8
    assert "max_tokens" not in body


def test_a_used_up_cap_and_another_dialect_are_refused() -> None:
    with pytest.raises(BadRequest, match="used up"):
        continue_from(chat(max_tokens=2), TokenIds((1,), (2, 3)))
    with pytest.raises(BadRequest, match="Only a chat"):
        continue_from(EngineCall(endpoint=Endpoint.MESSAGES, body=b"{}", turn_id=TURN), TokenIds((), ()))


def test_ids_are_asked_for_and_read_from_their_own_event_only() -> None:
    call = asking_for_ids(chat(stream=True))
    assert call.headers == {"x-sglext-ids-framed": "1"}
    assert msgspec.json.decode(call.body)["return_output_ids_in_sglext"] is True
    ids = b'{"id":"x","choices":[],"sglext":{"input_ids":[1,2],"output_ids":[[3]]}}'
    stream = b"data: " + ids + b"\n\nevent: sglext_ids\ndata: " + ids + b"\n\nevent: sglext_ids\ndata: {}\n\n"
    assert [ids_in(event) for event in SseSplitter().feed(stream)] == [None, TokenIds((1, 2), (3,)), None]
