"""Each stage alone: what it takes, what it leaves, that a second time it finds nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bench.histories import asks, call, code, conversation, log, message, prose, result, seeded, tiny_rounds, tool_chain
from governor.compress.draft import Draft, Raw
from governor.compress.rounds import Hold
from governor.compress.stages import EDITS
from governor.compress.stages.drop import oldest_removed
from governor.policy.model import CompressionStage
from tests.compressing import content, draft_of, limits_for, size_of

Stage = CompressionStage
LONG = prose(seeded(1), 1000)
USER, LAST = message("user", "first"), message("user", "last")
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 500}}


def run(stage: Stage, messages: Sequence[Raw], reach: Hold = Hold.FREE, **policy: Any) -> Draft:
    """Everything that the stage finds, applied; and that it finds nothing more."""
    draft = draft_of(messages, **policy)
    draft.reach_to(reach)
    for edit in EDITS[stage](draft):
        draft.apply(edit)
    first = list(draft.done)
    for edit in EDITS[stage](draft):
        assert not draft.apply(edit)
    assert draft.done == first
    return draft


def changed(draft: Draft) -> list[int]:
    return [done.index for done in draft.done]


def now(draft: Draft, index: int) -> Any:
    return msgspec.json.decode(draft.current(index))


def test_old_reasoning_goes_under_every_name() -> None:
    thoughts = {"reasoning_content": LONG, "reasoning": LONG, "reasoning_details": [{"text": LONG}]}
    messages = [USER, message("assistant", "a", **thoughts, extra=1.50), message("assistant", "b"), LAST]
    draft = run(Stage.REASONING, messages)
    assert draft.current(1) == b'{"role":"assistant","content":"a","extra":1.5}'
    assert changed(draft) == [1]
    (left,) = draft.left.values()
    assert [msgspec.json.decode(value) for value in left.values] == list(thoughts.values())


def test_a_thinking_block_goes_where_it_opens_the_text() -> None:
    thinking = f"<think>\n{LONG}\n</think>\n\nThe answer."
    messages = [
        USER,
        message("assistant", thinking),
        message("assistant", [{"type": "text", "text": thinking}]),
        message("assistant", f"In HTML: {thinking}"),
        message("assistant", f"<think>{LONG}"),
        LAST,
    ]
    draft = run(Stage.REASONING, messages)
    assert changed(draft) == [1, 2]
    assert now(draft, 1)["content"] == "The answer."
    assert now(draft, 2)["content"] == [{"type": "text", "text": "The answer."}]


def test_reasoning_alone_leaves_an_empty_answer_and_calls_stay() -> None:
    alone = message("assistant", None, reasoning_content=LONG)
    calling = asks(call("a"), reasoning_content=LONG)
    draft = run(Stage.REASONING, [USER, alone, calling, result("a", "1"), message("assistant", "b"), LAST])
    assert now(draft, 1) == {"role": "assistant", "content": ""}
    assert now(draft, 2) == msgspec.json.decode(asks(call("a")))


def test_reasoning_of_the_calls_at_work_stays() -> None:
    assert changed(run(Stage.REASONING, [USER, asks(call("a"), reasoning_content=LONG), result("a", "1")])) == []


def test_a_text_said_again_stays_where_it_is_newest() -> None:
    messages = [
        USER,
        message("assistant", LONG),
        message("user", LONG),
        message("assistant", "a"),
        message("user", LONG),
    ]
    draft = run(Stage.REPEATED, messages)
    assert changed(draft) == [1, 2]
    assert now(draft, 2)["content"].startswith("[user message, the same text as in a later user message: gov-")
    assert draft.raws[4] is messages[4]


def test_the_same_result_twice_is_named_by_its_call() -> None:
    read = [asks(call("a", "read_file", path="x")), result("a", LONG)]
    draft = run(
        Stage.REPEATED,
        [USER, *read, asks(call("b", "cat", path="x")), result("b", LONG), message("assistant", "a"), LAST],
    )
    assert changed(draft) == [2]
    assert now(draft, 2)["content"].startswith('[result of read_file {"path":"x"}, the same text as in a later tool')


def test_small_texts_are_not_worth_a_line() -> None:
    assert (
        changed(run(Stage.REPEATED, [USER, message("assistant", "x" * 400), message("assistant", "x" * 400), LAST]))
        == []
    )


@pytest.mark.parametrize(
    ("first", "second", "is_superseded"),
    [
        ({"path": "x", "limit": 5}, {"limit": 5, "path": "x"}, True),
        ({"path": "x", "timeout": 30}, {"path": "x", "timeout": 60}, True),
        ({"path": "x"}, {"path": "x", "offset": 100}, False),
        ({"path": "x"}, {"path": "y"}, False),
    ],
)
def test_the_same_call_made_again_supersedes(
    first: dict[str, Any], second: dict[str, Any], is_superseded: bool
) -> None:
    older, newer = code(seeded(1), 20), code(seeded(2), 20)
    messages = [
        USER,
        asks(call("a", "read", **first)),
        result("a", older),
        asks(call("b", "read", **second)),
        result("b", newer),
    ]
    draft = run(Stage.SUPERSEDED, messages)
    assert changed(draft) == ([2] if is_superseded else [])


@pytest.mark.parametrize("newer", ["File unchanged since last read", "error: no such file " * 100])
def test_a_newer_result_that_is_much_shorter_supersedes_nothing(newer: str) -> None:
    same = {"path": "x"}
    messages = [
        USER,
        asks(call("a", "read", **same)),
        result("a", LONG * 4),
        asks(call("b", "read", **same)),
        result("b", newer),
    ]
    assert changed(run(Stage.SUPERSEDED, messages)) == []


def test_arguments_that_are_no_json_are_compared_as_text() -> None:
    broken = {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path": "x'}}
    messages = [USER, asks(broken), result("a", LONG), asks(broken | {"id": "b"}), result("b", LONG + "!")]
    assert changed(run(Stage.SUPERSEDED, messages)) == [2]


def test_old_images_become_lines_and_texts_beside_them_stay() -> None:
    caption = b'{"type":"text","text":"chart \\u0031","n":1.0}'
    parts = b'{"role":"user","content":[' + msgspec.json.encode(PNG) + b"," + caption + b"]}"
    audio = {"type": "input_audio", "input_audio": {"data": "A" * 9000, "format": "wav"}}
    messages = [USER, parts, message("assistant", "a"), message("user", [audio]), message("user", [PNG])]
    draft = run(Stage.IMAGES, messages)
    assert changed(draft) == [1, 3][: len(changed(draft))]
    assert caption in bytes(draft.current(1))
    line = now(draft, 1)["content"][0]
    assert line["type"] == "text"
    assert line["text"].startswith("[image/png of 5,")
    assert draft.raws[4] is messages[4]


def test_base64_in_old_results_becomes_a_line() -> None:
    run_of = "QUJD" * 1000
    texts = [
        f"before {run_of}== after",
        json.dumps({"png": f"data:font/woff;base64,{run_of}", "n": 10**600}),
        json.dumps({"text": f"line\n{run_of}\u00e9{run_of}"}),
        "x" * 40 + " " + LONG,
    ]
    messages = [USER]
    for number, text in enumerate(texts):
        messages += [asks(call(f"c{number}")), result(f"c{number}", text)]
    draft = run(Stage.IMAGES, [*messages, message("assistant", "a"), LAST])
    assert changed(draft) == [2, 4, 6]
    assert now(draft, 2)["content"].startswith("before [base64 of 4,002 characters left out: gov-")
    assert json.loads(now(draft, 4)["content"])["n"] == 10**600
    assert "QUJD" not in json.loads(now(draft, 6)["content"])["text"]


def test_a_fresh_result_is_cut_only_above_its_room() -> None:
    giant = [*tool_chain(10), asks(call("g")), result("g", log(seeded(3), 5000))]
    draft = run(Stage.OVERSIZED, giant)
    assert changed(draft) == [len(giant) - 1]
    assert draft.sizes[-1] <= draft.limits.oversized_tokens
    assert "left out: gov-" in now(draft, len(giant) - 1)["content"]
    assert changed(run(Stage.OVERSIZED, [*tool_chain(10), asks(call("g")), result("g", log(seeded(3), 50))])) == []


def test_fresh_results_share_what_is_left_when_all_else_is_done() -> None:
    ids = [f"p{n}" for n in range(4)]
    messages = [USER, asks(*map(call, ids)), *(result(each, log(seeded(4), 300)) for each in ids)]
    assert changed(run(Stage.OVERSIZED, messages, Hold.RECENT)) == []
    draft = run(Stage.OVERSIZED, messages, Hold.OPEN)
    assert sorted(changed(draft)) == [2, 3, 4, 5]
    assert draft.tokens <= draft.limits.target_tokens
    assert max(draft.sizes[2:]) < 1.3 * min(draft.sizes[2:])


def test_fresh_results_that_are_small_keep_what_they_have() -> None:
    texts = {"large": log(seeded(4), 900), "small": log(seeded(5), 60), "other": log(seeded(6), 900)}
    messages = [USER, asks(*map(call, texts)), *(result(each, text) for each, text in texts.items())]
    draft = run(Stage.OVERSIZED, messages, Hold.OPEN)
    assert sorted(changed(draft)) == [2, 4]
    assert 0.75 * draft.limits.target_tokens <= draft.tokens <= draft.limits.target_tokens


def test_old_results_are_trimmed_oldest_first_to_what_the_policy_says() -> None:
    messages = tool_chain(20, size=200)
    draft = run(Stage.TRIM, messages, trim_over_tokens=1500, trim_target_tokens=500)
    results = [index for index in range(3, 40, 2) if size_of(messages[index]) > 1500]
    assert len(results) >= 15
    assert changed(draft) == results
    assert all(draft.sizes[index] <= 1500 for index in results)
    assert sum(draft.sizes[index] for index in results) / len(results) == pytest.approx(500, rel=0.5)


def test_each_part_of_a_result_is_trimmed() -> None:
    parts = [{"type": "text", "text": log(seeded(n), 300)} for n in range(2)]
    draft = run(Stage.TRIM, [USER, asks(call("a")), result("a", parts), message("assistant", "a"), LAST])
    assert [len(part["text"]) < 4000 for part in now(draft, 2)["content"]] == [True, True]


def test_stubs_name_the_call_the_size_and_the_handle() -> None:
    draft = run(
        Stage.STUB,
        [USER, asks(call("a", "read_file", path="src/x.py")), result("a", LONG), message("assistant", "a"), LAST],
    )
    size = len(msgspec.json.encode(LONG))
    stub = now(draft, 2)["content"]
    assert stub.startswith(f'[result of read_file {{"path":"src/x.py"}}, {size:,} bytes, left out: gov-')
    (left,) = draft.left.values()
    assert stub.endswith(f": {left.handle}]")
    assert msgspec.json.decode(left.values[0]) == LONG


def test_what_was_trimmed_and_then_stubbed_is_archived_whole() -> None:
    messages = tool_chain(6, size=300)
    draft = draft_of(messages)
    for stage in (Stage.TRIM, Stage.STUB):
        for edit in EDITS[stage](draft):
            draft.apply(edit)
    assert {done.stage for done in draft.done} == {Stage.TRIM, Stage.STUB}
    assert len(draft.left) == 5
    assert {bytes(left.values[0]) for left in draft.left.values()} == {
        msgspec.json.encode(content(messages[index])) for index in range(3, 13, 2)
    }


def test_results_of_protected_tools_stay_but_go_with_their_round() -> None:
    messages = [USER, asks(call("a", "memory")), result("a", log(seeded(1), 900)), message("assistant", "a"), LAST]
    for stage in EDITS:
        assert changed(run(stage, messages, protected_tools=("memory",))) == []
    fresh = messages[:3]
    assert changed(run(Stage.OVERSIZED, fresh)) == [2]
    assert changed(run(Stage.OVERSIZED, fresh, protected_tools=("memory",))) == []
    removal = oldest_removed(draft_of(messages, protected_tools=("memory",)))
    assert removal is not None
    assert removal.indices == (1, 2)


def test_a_message_that_repeats_a_key_is_left_alone() -> None:
    twice = b'{"role":"tool","tool_call_id":"a","content":"x","content":' + msgspec.json.encode(LONG) + b"}"
    messages = [USER, asks(call("a")), twice, message("assistant", "a"), LAST]
    assert changed(run(Stage.STUB, messages)) == []


def test_the_oldest_rounds_go_as_few_as_will_do() -> None:
    messages = conversation(40)
    draft = draft_of(messages, limits_for(messages, target=0.8, recent=0))
    removal = oldest_removed(draft)
    assert removal is not None
    draft.remove(removal)
    assert 0 <= -draft.excess_tokens < 1000
    # The first round holds the task: its calls and answer go, its question stays.
    assert removal.indices == tuple(range(2, removal.indices[-1] + 1))
    assert removal.indices[-1] % 4 == 0
    raws, origins = draft.result()
    assert origins[:4] == (0, 1, None, removal.indices[-1] + 1)
    marker = msgspec.json.decode(raws[2])
    assert marker["role"] == "assistant"
    assert marker["content"].startswith(f"[record, not a task: {len(removal.indices)} earlier messages")


def test_of_one_long_chain_the_oldest_calls_go() -> None:
    messages = tool_chain(40)
    removal = oldest_removed(draft_of(messages, limits_for(messages, target=0.6, recent=0)))
    assert removal is not None
    assert removal.indices == tuple(range(2, removal.indices[-1] + 1))
    assert len(removal.indices) % 2 == 0


def test_a_second_removal_has_one_marker_for_both() -> None:
    messages = tiny_rounds(50)
    draft = draft_of(messages, limits_for(messages, target=0.3, recent=0.5))
    for reach in (Hold.FREE, Hold.RECENT):
        draft.reach_to(reach)
        removal = oldest_removed(draft)
        assert removal is not None
        assert draft.remove(removal)
    raws, origins = draft.result()
    assert origins.count(None) == 1
    assert f"{len(messages) - (len(origins) - 1)} earlier messages" in content(raws[origins.index(None)])
    assert draft.tokens == draft.before_tokens - sum(done.freed_tokens for done in draft.done)


def test_the_marker_is_never_the_user_s_last_word() -> None:
    system, first = message("system", "s"), message("assistant", LONG)
    carrier = message("user", "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>")
    for messages, role in (
        ([system, first, first, asks(call("a")), result("a", "1"), carrier], "assistant"),
        ([system, first, first, message("user", "task")], "user"),
        ([system, first, first, asks(call("a")), result("a", "1")], "assistant"),
    ):
        removal = oldest_removed(draft_of(messages))
        assert removal is not None
        assert msgspec.json.decode(removal.marker)["role"] == role


def test_nothing_to_remove() -> None:
    assert oldest_removed(draft_of([USER, LAST])) is None
