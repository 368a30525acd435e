"""Sessions found again, shapes of prompts, and breaks named: what real Hermes and OpenClaw were recorded to send."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from governor.tokens.chain import (
    BreakCause,
    Located,
    SessionIndex,
    SessionLimits,
    client_session_id,
    digest_head,
    digest_loosely,
    digest_message,
    trace_id,
)
from governor.types import AgentName, PromptShape

ME = AgentName("me")
HEAD = digest_head("model", None)


def raw(role: str, content: object, **more: object) -> bytes:
    return json.dumps({"role": role, "content": content, **more}).encode()


def call(arguments: str = '{"path": "a b", "all": true}', id_: str = "call_1", **more: object) -> bytes:
    function = {"name": "look", "arguments": arguments}
    return raw("assistant", "Let me see.", tool_calls=[{"id": id_, "type": "function", "function": function}], **more)


SYSTEM = raw("system", "You are careful. Started: Sunday, November 29, 2026 11:42. Run 7 of nonce 3fa9c.")
LATER_SYSTEM = raw("system", "You are careful. Started: Monday, March 2, 2027 9:05. Run 12 of nonce be01d.")
OTHER_SYSTEM = raw("system", "You are bold. Started: Sunday, November 29, 2026 11:42. Run 7 of nonce 3fa9c.")
OPENING = raw("user", "Please look.")
RESULT = raw("tool", "seen", tool_call_id="call_1", name="look")
ANSWER = raw("assistant", "It is there.")
MORE = raw("user", "And the other?")
TALK = [SYSTEM, OPENING, call(), RESULT, ANSWER, MORE]
CARRIER = raw("user", "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> none <<<END_OPENCLAW_INTERNAL_CONTEXT>>>")


class Index(SessionIndex):
    """Checks its books after every prompt."""

    def see(self, messages: list[bytes], client: str | None = None, **more: Any) -> Located:
        head, agent = more.pop("head", HEAD), more.pop("agent", ME)
        located = self.locate(agent, head, messages, client, **more)
        self.check_integrity()
        return located


def cause(located: Located) -> BreakCause | None:
    return located.broke_at.cause if located.broke_at else None


def test_a_conversation_goes_on_in_its_session() -> None:
    index = Index()
    first = index.see(TALK[:2])
    grown = index.see(TALK[:4])
    again = index.see(TALK[:4])
    earlier = index.see(TALK[:2])

    assert [x.shape for x in (first, grown, again, earlier)] == [
        PromptShape.FRESH,
        PromptShape.CONTINUATION,
        PromptShape.REPEAT,
        PromptShape.REPEAT,
    ]
    assert [x.shared_messages for x in (first, grown, again, earlier)] == [0, 2, 4, 2]
    assert {x.session_id for x in (first, grown, again, earlier)} == {first.session_id}
    assert grown.broke_at is None


def test_a_background_review_branches_off_and_the_main_line_goes_on() -> None:
    index = Index()
    index.see(TALK[:4])
    main = index.see(TALK)
    review = index.see([*TALK[:5], raw("user", "Review the conversation above and save what you learned.")])
    onward = index.see([*TALK, ANSWER])

    assert (review.shape, review.shared_messages, cause(review)) == (PromptShape.BRANCH, 5, BreakCause.EDITED)
    assert (onward.shape, onward.shared_messages) == (PromptShape.CONTINUATION, 6)
    assert (main.parent, review.parent, onward.parent) == (None, main.path, None)
    assert main.session_id == review.session_id == onward.session_id


def test_a_prompt_cut_back_to_a_place_where_none_ended_is_a_branch_without_break() -> None:
    index = Index()
    index.see(TALK)
    back = index.see(TALK[:3])

    assert (back.shape, back.shared_messages, back.broke_at) == (PromptShape.BRANCH, 3, None)


def test_other_openings_and_other_agents_are_other_sessions() -> None:
    index = Index()
    mine = index.see(TALK)
    other_topic = index.see([SYSTEM, raw("user", "Something else.")])
    other_agent = index.see(TALK, agent=AgentName("you"))

    assert len({x.session_id for x in (mine, other_topic, other_agent)}) == 3
    assert other_topic.shape is other_agent.shape is PromptShape.FRESH


def test_a_session_has_the_same_id_after_a_restart() -> None:
    for client in (None, "s-1"):
        assert Index().see(TALK, client).session_id == Index().see(TALK[:2], client).session_id


@pytest.mark.parametrize(
    ("at", "changed", "expected"),
    [
        (0, LATER_SYSTEM, BreakCause.VOLATILE),
        (0, OTHER_SYSTEM, BreakCause.SYSTEM_CHANGED),
        (2, call('{"all":true,"path":"a b"}'), BreakCause.ARGUMENTS_RESERIALISED),
        (2, call(id_="call1"), BreakCause.REFORMATTED),
        (2, call('{"path": "elsewhere"}'), BreakCause.EDITED),
        (3, raw("tool", "seen", tool_call_id="call_1"), BreakCause.TOOL_NAME_DROPPED),
        (4, raw("assistant", "It is there. \n"), BreakCause.REFORMATTED),
        (4, raw("assistant", [{"type": "text", "text": "It is there."}]), BreakCause.REFORMATTED),
        (4, raw("user", "It is there."), BreakCause.EDITED),
    ],
)  # fmt: skip
def test_the_cause_of_a_break_is_named(at: int, changed: bytes, expected: BreakCause) -> None:
    index = Index()
    index.see(TALK)
    now = [*TALK[:at], changed, *TALK[at + 1 :], ANSWER]

    located = index.see(now)

    assert located.shape is PromptShape.BRANCH
    assert located.broke_at is not None
    assert (located.broke_at.cause, located.broke_at.message, located.shared_messages) == (expected, at, at)
    byte = located.broke_at.byte
    assert byte is not None
    assert changed[:byte] == TALK[at][:byte]
    assert changed[byte : byte + 1] != TALK[at][byte : byte + 1]
    assert str(located.broke_at) == f"message {at}, byte {byte}: {expected}"


def test_dropped_reasoning_is_named() -> None:
    index = Index()
    index.see([SYSTEM, OPENING, call(reasoning_content="Hm."), RESULT])

    assert cause(index.see([SYSTEM, OPENING, call(), RESULT, ANSWER])) is BreakCause.REASONING_DROPPED


def test_openclaws_moving_carrier_is_a_continuation_that_says_so() -> None:
    index = Index()
    first = index.see([*TALK[:2], CARRIER])
    index.record(first, prompt_tokens=500)
    second = index.see([*TALK[:4], CARRIER])
    third = index.see([*TALK, CARRIER])

    assert (second.shape, second.shared_messages, cause(second)) == (
        PromptShape.CONTINUATION,
        2,
        BreakCause.CARRIER_MOVED,
    )
    assert second.known is not None
    assert (second.known.messages, second.known.prompt_tokens, second.known.removed) == (2, 500, (CARRIER,))
    assert (third.shape, third.shared_messages, third.known) == (PromptShape.CONTINUATION, 4, None)


def test_a_compaction_is_named_by_the_tail_it_keeps_though_reasoning_is_gone() -> None:
    index = Index()
    turns = [
        [call(f'{{"n":{n}}}', reasoning_content="Hm."), raw("tool", f"seen {n}", tool_call_id="call_1")]
        for n in range(8)
    ]
    long = [SYSTEM, OPENING, *(part for turn in turns for part in turn)]
    index.see([*long, CARRIER], "s-1")
    kept = [call(f'{{"n":{n}}}') if m == 0 else turns[n][1] for n in (6, 7) for m in (0, 1)]

    located = index.see([SYSTEM, raw("user", "Earlier: much was seen."), *kept, MORE, CARRIER], "s-1")

    assert (located.shape, located.shared_messages, cause(located)) == (PromptShape.BRANCH, 1, BreakCause.COMPACTED)


def test_a_shorter_history_that_keeps_only_the_carrier_is_an_edit() -> None:
    index = Index()
    index.see([*TALK, CARRIER], "s-1")

    located = index.see([SYSTEM, OPENING, raw("assistant", "Quite another thing."), CARRIER], "s-1")

    assert cause(located) is BreakCause.EDITED


def tools(*names: str) -> bytes:
    return json.dumps([{"type": "function", "function": {"name": name}} for name in names]).encode()


@pytest.mark.parametrize(
    ("now", "model", "expected", "detail"),
    [
        (tools("b", "a"), "model", BreakCause.TOOL_ORDER, ""),
        (tools("a"), "model", BreakCause.TOOLS_CHANGED, "without b"),
        (tools("a", "b", "c"), "model", BreakCause.TOOLS_CHANGED, "with c"),
        (None, "model", BreakCause.TOOLS_CHANGED, "without a, b"),
        (tools("a", "b"), "other", BreakCause.MODEL_CHANGED, ""),
    ],
)
def test_a_change_before_all_messages_is_named(
    now: bytes | None, model: str, expected: BreakCause, detail: str
) -> None:
    index = Index()
    before = tools("a", "b")
    first = index.see(TALK[:4], head=digest_head("model", before), tools=before)
    index.record(first, prompt_tokens=100)
    head = digest_head(model, now)

    located = index.see(TALK, head=head, tools=now)
    back = index.see(TALK, head=digest_head("model", before), tools=before)

    assert located.session_id == first.session_id
    assert (located.shape, located.known) == (PromptShape.BRANCH, None)
    assert located.broke_at is not None
    assert (located.broke_at.cause, located.broke_at.message, located.broke_at.detail) == (expected, None, detail)
    assert back.shape is PromptShape.CONTINUATION
    assert back.known is not None


def test_side_calls_of_a_named_session_stay_in_it_and_do_not_disturb_it() -> None:
    index = Index()
    main = index.see(TALK[:4], "s-1")
    title = index.see([raw("system", "Generate a title."), raw("user", "Please look.\nIt is there.")], "s-1")
    onward = index.see(TALK, "s-1")

    assert main.session_id == title.session_id == onward.session_id
    assert (title.shape, title.broke_at) == (PromptShape.FRESH, None)
    assert onward.shape is PromptShape.CONTINUATION


def test_another_client_session_with_the_same_words_is_another_session() -> None:
    index = Index()

    assert index.see(TALK, "s-1").session_id != index.see(TALK, "s-2").session_id


def test_a_trace_ties_an_unnamed_side_call_to_its_session() -> None:
    index = Index()
    main = index.see(TALK, "s-1", trace="t" * 32)
    side = index.see([raw("system", "Summarise."), raw("user", "...")], trace="t" * 32)
    stranger = index.see([raw("system", "Summarise."), raw("user", "others")], trace="u" * 32)

    assert side.session_id == main.session_id != stranger.session_id


def test_a_named_session_that_began_with_nothing_but_a_system_prompt_is_found_unnamed() -> None:
    index = Index()
    index.see(TALK[:1], "s-1")
    named = index.see(TALK[:2], "s-1")
    unnamed = index.see(TALK[:3])

    assert (unnamed.session_id, unnamed.shape) == (named.session_id, PromptShape.CONTINUATION)


def test_reported_sizes_come_back_with_the_prompts_that_share_them() -> None:
    index = Index()
    first = index.see(TALK[:2])
    index.record(first, prompt_tokens=20)
    second = index.see(TALK[:4])
    index.record(second, prompt_tokens=45)
    index.record(second, prompt_tokens=None)
    third = index.see(TALK)
    branch = index.see([*TALK[:3], raw("tool", "nothing", tool_call_id="call_1")])

    known = [(x.known.messages, x.known.prompt_tokens) if x.known else None for x in (first, second, third, branch)]
    assert known == [None, (2, 20), (4, 45), (2, 20)]


def test_limits_hold_and_the_least_recently_used_goes() -> None:
    index = Index(SessionLimits(sessions=6, sessions_per_agent=3, paths_per_session=2, depths_per_path=4))
    for agent in ("a", "b", "c"):
        for topic in range(5):
            for length in range(2, 9):
                index.see([SYSTEM, raw("user", f"Topic {topic}"), *TALK[2:]][:length], agent=AgentName(agent))
            index.see([SYSTEM, raw("user", f"Topic {topic}"), ANSWER], agent=AgentName(agent))
            index.see([SYSTEM, raw("user", f"Topic {topic}"), MORE], agent=AgentName(agent))

    assert len(index) == 6
    assert index.see([SYSTEM, raw("user", "Topic 4"), MORE], agent=AgentName("c")).shape is PromptShape.REPEAT
    assert index.see([SYSTEM, raw("user", "Topic 0"), MORE], agent=AgentName("c")).shape is PromptShape.FRESH


def test_without_the_earlier_bytes_a_break_is_placed_but_not_explained() -> None:
    index = Index(SessionLimits(raw_bytes=100))
    index.see(TALK)
    located = index.see([*TALK[:4], raw("assistant", "Other."), MORE])

    assert index.raw_bytes == 0
    assert located.broke_at is not None
    assert str(located.broke_at) == "message 4: unknown"


NESTED = b'{"role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("messages", [[b""], [NESTED], [b"null", b"{"], [SYSTEM, SYSTEM], [b'{"role":1}']])
def test_odd_prompts_are_located(messages: list[bytes]) -> None:
    index = Index()
    assert index.see(messages).shape is PromptShape.FRESH
    assert index.see(messages).shape is PromptShape.REPEAT
    assert index.see([*messages, b"[1]"]).shared_messages in (0, len(messages))
    assert index.see([]).shape is PromptShape.FRESH


def test_the_loose_digest_sees_meaning_only() -> None:
    same = [
        call(),
        call('{"all":true,"path":"a b"}'),
        call(id_="call1"),
        call(reasoning_content="Hm."),
        call().replace(b"Let me see.", b" Let me see.\\n"),
    ]
    other = [call('{"all":false,"path":"a b"}'), call().replace(b"look", b"book"), ANSWER, b"[]", b"nonsense"]

    assert len({digest_loosely(message) for message in same}) == 1
    assert len({digest_loosely(message) for message in [same[0], *other]}) == len(other) + 1
    assert len({digest_message(message) for message in same}) == len(same)


RUNTIME = "Do it.\n\nRuntime: agent=alpha | session=agent:alpha:k1 | sessionId=dcdbb572-e31b-46c3 | host=vm"


@pytest.mark.parametrize(
    ("headers", "cache_key", "user", "system", "expected"),
    [
        ({"x-agent-session": "s"}, "k:1", RUNTIME, "Session ID: h", "s"),
        ({"x-session-affinity": "dcdb:12", "session_id": "other"}, None, "", "", "dcdb"),
        ({"session_id": "dcdb"}, "k", "", "", "dcdb"),
        ({}, "dcdb:0", "", "", "dcdb"),
        ({}, None, RUNTIME, "Session ID: h", "dcdbb572-e31b-46c3"),
        ({}, None, "hi", "Long prompt\nSession ID: 20261129_1142_ab\nModel: m", "20261129_1142_ab"),
        ({}, None, "about Session ID: x", "no id", None),
        ({"session_id": " "}, "", "hi", "", None),
        ({"session_id": "x" * 300}, "a\x00b", "hi", "", None),
    ],
)
def test_client_session_ids(
    headers: dict[str, str], cache_key: str | None, user: str, system: str, expected: str | None
) -> None:
    assert client_session_id(headers, cache_key, user, system) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [("00-39da35d6618ee5eb3214ce64f87c51fa-bf81bedd225a94cc-01", "39da35d6618ee5eb3214ce64f87c51fa"), ("39da", None)],
)
def test_trace_ids(header: str, expected: str | None) -> None:
    assert trace_id({"traceparent": header}) == expected
    assert trace_id({}) is None


def in_blocks(*texts: str) -> bytes:
    return json.dumps([{"type": "text", "text": text} for text in texts]).encode()


def in_text(*texts: str) -> bytes:
    return json.dumps("\n".join(texts)).encode()


@pytest.mark.parametrize("written", [in_blocks, in_text])
def test_a_system_prompt_outside_the_messages_is_one(written: Callable[..., bytes]) -> None:
    """As Anthropic's ``system`` and the Responses API's ``instructions`` have it, text or blocks."""
    index = Index()
    first = index.see([written("You are careful.", "It is 11:42."), OPENING])
    later = index.see([written("You are careful.", "It is 11:43."), OPENING, ANSWER, MORE])
    assert later.session_id == first.session_id
    again = index.see([written("You are careful.", "It is 11:44."), OPENING, ANSWER, MORE])
    assert (again.session_id, cause(again)) == (first.session_id, BreakCause.VOLATILE)
    other = index.see([written("You are bold.", "It is 11:44."), OPENING, ANSWER, MORE])
    assert (other.session_id, cause(other)) == (first.session_id, BreakCause.SYSTEM_CHANGED)
    stranger = index.see([written("You are careful.", "It is 11:42."), raw("user", "Another question.")])
    assert stranger.session_id != first.session_id


def test_a_prompt_that_is_text_alone_is_its_own_opening() -> None:
    index = Index()
    one, other = (index.see([json.dumps(text).encode()]) for text in ("at 1", "at 2"))
    assert one.session_id != other.session_id
    instructed = [index.see([b'"Be kind."', json.dumps(text).encode()]) for text in ("one", "two")]
    assert instructed[0].session_id != instructed[1].session_id


def test_last_prompts_are_told_latest_first_with_the_depths_along_their_path() -> None:
    index = SessionIndex()
    first = index.locate(ME, HEAD, [SYSTEM, OPENING], "one", tools=b"[]")
    index.record(first, prompt_tokens=100)
    history = [SYSTEM, OPENING, raw("assistant", "Well."), raw("user", "On.")]
    longer = index.locate(ME, HEAD, history, "one", tools=b"[]")
    index.locate(ME, HEAD, [OTHER_SYSTEM, raw("user", "Else.")], "two")
    two, one = index.last_prompts(ME)
    assert (two.message_count, two.tools, two.prompt_tokens) == (2, None, None)
    assert (one.session_id, one.message_count, one.tools) == (first.session_id, 4, b"[]")
    assert one.messages is not None
    assert one.messages[:2] == (SYSTEM, OPENING)
    assert one.sent == ((2, 100), (4, None))
    index.record(longer, prompt_tokens=160)
    assert next(each for each in index.last_prompts(ME) if each.session_id == first.session_id).prompt_tokens == 160
    assert list(index.last_prompts(AgentName("nobody"))) == []
    assert index.named_session(ME, "one") == first.session_id


def test_a_prompt_whose_bytes_had_to_go_says_so() -> None:
    index = SessionIndex(SessionLimits(raw_bytes=600))
    index.locate(ME, HEAD, [SYSTEM, OPENING], "one")
    index.locate(ME, HEAD, [SYSTEM, raw("user", "x" * 450)], "two")
    newest, oldest = index.last_prompts(ME)
    assert newest.messages is not None
    assert (oldest.messages, oldest.message_count) == (None, 2)
    index.check_integrity()
