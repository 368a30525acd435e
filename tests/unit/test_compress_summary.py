"""What the engine is asked for a summary, which answers are one, and what a plan makes of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.histories import asks, call, conversation, images, message, prose, result, seeded, tool_chain
from governor.compress.limits import Limits
from governor.compress.messages import read_message
from governor.compress.plan import NoPlan, Plan, plan, wants_summary, what_each_would_free
from governor.compress.record import is_record
from governor.compress.stages.drop import Summary
from governor.compress.summary import (
    THINKING_TOKENS,
    Rejected,
    Rejection,
    SummaryInput,
    accept,
    asked_about,
    cap_tokens,
    instruction,
    summary_body,
    summary_input,
)
from governor.policy.model import CompressionPolicy, CompressionStage
from serve.engine import Capabilities
from tests.compressing import FIXED_TOKENS, check, content, limits_for, only, shorten, shortened, size_of

Stage = CompressionStage
TEXT = "The user wants the cache measured. src/cache.py holds the checkpoint code; error E42 was fixed in b4d1a61. " * 3
POLICY = CompressionPolicy(summary_tokens=300)
TOLD = instruction(POLICY.summary_tokens)


def completion(said: Any = TEXT, finish: str | None = "stop", **fields: Any) -> bytes:
    spoken = {"role": "assistant", "content": said} | fields
    return msgspec.json.encode({"choices": [{"index": 0, "message": spoken, "finish_reason": finish}]})


def judged(body: bytes, room_tokens: int = 1000) -> str | Rejection:
    found = accept(body, room_tokens=room_tokens, size_of=size_of, told=TOLD)
    return found.reason if isinstance(found, Rejected) else found


# --- in a plan


def test_one_marker_with_the_summary_stands_for_all_that_may_go() -> None:
    messages = conversation(60)
    made = shortened(messages, summary=Summary(TEXT, len(messages)), stages=only(Stage.SUMMARY, Stage.DROP))
    assert list(made.freed_by_stage) == [Stage.SUMMARY]
    at = made.origins.index(None)
    marker = read_message(made.messages[at])
    assert marker.role == "assistant"
    assert is_record(marker)
    text = content(made.messages[at])
    assert text.startswith("[record, not a task: ")
    assert TEXT in text
    # More than the target asks for: nothing that is free is left, so the next cut is far away.
    assert made.after_tokens < limits_for(messages).target_tokens * 0.8
    present = {origin for origin in made.origins if origin is not None}
    (left,) = made.left
    assert left.handle in text
    assert list(left.values) == [raw for index, raw in enumerate(messages) if index not in present]


def test_what_it_was_not_written_about_stays_or_is_dropped() -> None:
    messages = conversation(60)
    limits = limits_for(messages, target=0.5)
    early = shortened(messages, limits, summary=Summary(TEXT, 100), stages=only(Stage.SUMMARY, Stage.DROP))
    stages = early.freed_by_stage
    assert stages[Stage.SUMMARY] > 0
    assert stages[Stage.DROP] > 0
    assert TEXT in content(early.messages[early.origins.index(None)])
    alone = shorten(messages, limits, summary=Summary(TEXT, 100), stages=only(Stage.SUMMARY))
    assert isinstance(alone, NoPlan)


def test_a_later_summary_covers_the_earlier_one() -> None:
    messages = conversation(60)
    first = shortened(messages, summary=Summary(TEXT, len(messages)), stages=only(Stage.SUMMARY))
    grown = [*map(bytes, first.messages), *conversation(60, seed=7)[2:]]
    later = "Later: " + TEXT
    second = shortened(grown, summary=Summary(later, len(grown)), stages=only(Stage.SUMMARY))
    markers = [raw for raw in second.messages if is_record(read_message(raw))]
    assert len(markers) == 1
    assert later in content(markers[0])
    assert any(TEXT in bytes(value).decode() for left in second.left for value in left.values)


def test_a_record_that_is_a_users_message_can_be_replaced_too() -> None:
    """Behind an answer it takes the user's role."""
    greeting = [message("assistant", "hello"), message("user", "task")]
    record = shortened([*greeting, *conversation(40)[2:]], stages=only(Stage.DROP)).messages
    head = [message("system", "s"), *map(bytes, record)]
    marked = [index for index, raw in enumerate(head) if is_record(read_message(raw))]
    assert len(marked) == 1
    made = shortened([*head, *conversation(40, seed=9)[2:]], stages=only(Stage.DROP))
    assert marked[0] not in made.origins


def test_a_summary_longer_than_what_it_replaces_is_refused() -> None:
    messages = conversation(60)
    echoed = Summary("".join(map(str, map(bytes, messages))), len(messages))
    made = shortened(messages, summary=echoed)
    assert made == shortened(messages)
    assert Stage.SUMMARY not in made.freed_by_stage


def test_a_policy_without_the_stage_has_no_summary() -> None:
    messages = conversation(60)
    stages = only(Stage.STUB, Stage.DROP)
    assert shorten(messages, summary=Summary(TEXT, 100), stages=stages) == shorten(messages, stages=stages)


# --- whether it is wanted


def wanted(messages: list[bytes], limits: Limits | None = None, **policy: Any) -> int | None:
    return wants_summary(
        messages,
        [size_of(raw) for raw in messages],
        size_of=size_of,
        fixed_tokens=FIXED_TOKENS,
        policy=CompressionPolicy(**({"summary_tokens": 300} | policy)),
        limits=limits or limits_for(messages),
    )


def test_it_is_wanted_where_the_stages_before_it_do_not_do() -> None:
    prosaic = conversation(60, words=120)
    assert wanted(prosaic, limits_for(prosaic, target=0.3)) is not None
    assert wanted(tool_chain(60)) is None, "trimming does it"
    assert wanted(prosaic, limits_for(prosaic, target=0.3), stages=only(Stage.DROP)) is None
    assert wanted(prosaic, limits_for(prosaic, target=0.001)) is None, "it would not do either"
    assert wanted(prosaic, limits_for(prosaic, target=0.3), summary_tokens=18_000) is None, (
        "as long as what it replaces"
    )


def test_what_it_would_free_is_what_a_plan_with_one_so_long_frees() -> None:
    messages = conversation(60, words=120)
    limits = limits_for(messages, target=0.3)
    freed = wanted(messages, limits)
    assert freed is not None
    text = "abc " * 300
    made = shorten(messages, limits, summary=Summary(text, len(messages)), summary_tokens=300)
    assert isinstance(made, Plan)
    assert made.freed_by_stage[Stage.SUMMARY] == pytest.approx(freed, abs=20)
    free = what_each_would_free(
        messages,
        [size_of(raw) for raw in messages],
        size_of=size_of,
        policy=CompressionPolicy(summary_tokens=300),
        limits=limits,
    )
    assert free[Stage.SUMMARY] > 0


# --- what is asked


def given(messages: list[bytes], window_tokens: int | None, policy: CompressionPolicy = POLICY) -> SummaryInput | None:
    return summary_input(
        messages,
        [size_of(raw) for raw in messages],
        size_of=size_of,
        fixed_tokens=FIXED_TOKENS,
        policy=policy,
        window_tokens=window_tokens,
    )


def test_it_is_about_all_but_what_the_user_has_just_said() -> None:
    answered = [message("user", "q"), asks(call("a")), result("a", "r")]
    assert asked_about(answered) == 3
    assert asked_about([*answered, message("assistant", "done"), message("user", "and"), message("user", "now")]) == 4
    assert asked_about([message("system", "s"), message("user", "q")]) == 0


def test_what_fits_is_given_as_it_is() -> None:
    messages = tool_chain(20)
    made = given(messages, None)
    assert made is not None
    assert made.is_warm
    assert all(new is old for new, old in zip(made.messages, messages, strict=False))
    assert content(made.messages[-1]) == TOLD
    assert made.tokens == FIXED_TOKENS + sum(map(size_of, made.messages))
    room = made.tokens + cap_tokens(POLICY)
    assert given(messages, room) == made


def test_what_does_not_fit_is_cut_until_it_does() -> None:
    messages = tool_chain(40)
    tokens = FIXED_TOKENS + sum(map(size_of, messages))
    for share in (0.9, 0.5, 0.2):
        window = int(tokens * share) + cap_tokens(POLICY)
        made = given(messages, window)
        assert made is not None
        assert not made.is_warm
        assert made.tokens == FIXED_TOKENS + sum(map(size_of, made.messages))
        assert made.tokens + cap_tokens(POLICY) <= window
        assert content(made.messages[-1]) == TOLD
        assert made.left
    assert given(messages, cap_tokens(POLICY) + 10) is None


def test_media_and_base64_never_go_out() -> None:
    url = "data:image/png;base64," + "iVBORw0KGgo" * 500
    image = {"type": "image_url", "image_url": {"url": url}}
    messages = [
        message("user", [image, {"type": "text", "text": f"first {url}"}]),
        message("assistant", "seen"),
        *images()[2:],
        message("user", url),
        message("assistant", [image]),
    ]
    made = given(messages, None)
    assert made is not None
    assert not made.is_warm
    sent = b"".join(map(bytes, made.messages))
    assert b";base64,iVBOR" not in sent
    assert b'"image_url"' not in sent
    assert b"first " in sent
    assert len(made.messages) == len(messages) + 1


# --- the request


def test_the_prompt_is_untouched_and_the_answer_is_free() -> None:
    body = msgspec.json.encode(
        {
            "model": "m",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}],
            "chat_template_kwargs": {"enable_thinking": True},
            "reasoning_effort": "low",
            "temperature": 0.25,
            "n": 3,
            "stop": ["\n"],
            "response_format": {"type": "json_object"},
            "stream": True,
            "stream_options": {"include_usage": True},
            "logprobs": True,
            "seed": 1,
            "max_completion_tokens": 5,
            "max_tokens": 4,
            "max_new_tokens": 9,
            "continue_final_message": True,
            "input_ids": [1, 2],
            "tool_choice": "required",
            "messages": [{"role": "user", "content": "q"}],
        }
    )
    can = Capabilities(
        output_cap_fields=("max_completion_tokens",),
        shadow_cap_fields=("max_new_tokens",),
        thinking_budget_field="thinking_budget",
    )
    raws = [message("user", "q"), message("user", TOLD)]
    made = msgspec.json.decode(summary_body(body, raws, POLICY, can))
    before = msgspec.json.decode(body)
    for name in ("model", "tools", "chat_template_kwargs", "reasoning_effort", "temperature"):
        assert made.pop(name) == before[name]
    assert made == {
        "messages": [msgspec.json.decode(raw) for raw in raws],
        "stream": False,
        "max_completion_tokens": cap_tokens(POLICY),
        "thinking_budget": THINKING_TOKENS,
        "tool_choice": "auto",
    }


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ({"type": "none"}, {"type": "none"}),
        ({"type": "function", "function": {"name": "f"}}, "auto"),
        ("required", "auto"),
    ],
)
def test_no_tool_is_forced_and_none_is_shown_or_hidden(choice: Any, sent: Any) -> None:
    body = msgspec.json.encode({"model": "m", "tool_choice": choice, "messages": []})
    assert msgspec.json.decode(summary_body(body, [], POLICY, Capabilities()))["tool_choice"] == sent


def test_the_instruction_names_its_room() -> None:
    assert "in 150 words at most" in instruction(300)
    assert "Do not call tools" in instruction(300)


# --- the answer


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (completion(""), Rejection.EMPTY),
        (completion("  \n"), Rejection.EMPTY),
        (completion(None), Rejection.EMPTY),
        (completion("<think>hm " + TEXT), Rejection.THINKING_ONLY),
        (completion("<think>hm " + TEXT, "length"), Rejection.THINKING_ONLY),
        (completion(f"<think>{TEXT}</think>\n"), Rejection.THINKING_ONLY),
        (completion(None, reasoning_content=TEXT), Rejection.THINKING_ONLY),
        (completion("", "length", reasoning=TEXT), Rejection.THINKING_ONLY),
        (completion(TEXT, "length"), Rejection.CUT),
        (completion(None, "tool_calls", tool_calls=[call("a")]), Rejection.TOOL_CALL),
        (completion(TEXT, tool_calls=[call("a")]), Rejection.TOOL_CALL),
        (completion("<tool_call>\n<function=f>" + TEXT), Rejection.TOOL_CALL),
        (completion("Nothing to add."), Rejection.TOO_SHORT),
        (completion("No changes were necessary."), Rejection.TOO_SHORT),
        (completion(prose(seeded(1), 9000)), Rejection.TOO_LONG),
        (completion(TOLD), Rejection.ECHO),
        (completion(f"You ask: {TOLD}\n{TEXT}"), Rejection.ECHO),
        (completion(TEXT, "abort"), Rejection.ERROR),
        (completion(TEXT, "content_filter"), Rejection.ERROR),
        (b'{"error":{"message":"out of memory"}}', Rejection.ERROR),
        (b'{"choices":[]}', Rejection.UNREADABLE),
        (b"<html>", Rejection.UNREADABLE),
        (b"", Rejection.UNREADABLE),
        (b'{"choices":[{"message":{"content":"\\ud800"}}]}', Rejection.UNREADABLE),
    ],
    ids=lambda value: value.value if isinstance(value, Rejection) else "",
)
def test_what_is_no_summary_is_rejected_by_its_name(body: bytes, reason: Rejection) -> None:
    assert judged(body) is reason


@pytest.mark.parametrize(
    "body",
    [
        completion(),
        completion(finish=None),
        completion(f"<think>a thought</think>\n\n{TEXT}"),
        completion(f"a thought begun in the prompt</think>\n\n{TEXT}"),
        completion([{"type": "text", "text": TEXT}]),
        completion(TEXT, reasoning_content="a thought"),
        completion(TEXT, tool_calls=[], function_call=None),
    ],
)
def test_a_summary_is_accepted_without_its_reasoning(body: bytes) -> None:
    assert judged(body) == TEXT.strip()


def test_no_tag_is_left_that_a_template_would_cut_at() -> None:
    text = judged(completion(f"The tag </think> ends a thought. {TEXT}", reasoning_content="a thought"))
    assert isinstance(text, str)
    assert text.startswith("The tag < /think> ends")


def test_a_summary_of_a_summary_keeps_every_promise() -> None:
    messages = tool_chain(40)
    limits = limits_for(messages, target=0.2)
    made = shorten(messages, limits, summary=Summary(TEXT, len(messages)))
    assert isinstance(made, Plan)
    check(messages, made, limits)
    assert (
        plan(
            made.messages,
            [size_of(raw) for raw in made.messages],
            size_of=size_of,
            fixed_tokens=FIXED_TOKENS,
            policy=CompressionPolicy(),
            limits=limits,
            summary=Summary(TEXT, len(made.messages)),
        ).before_tokens
        < limits.trigger_tokens
    )
