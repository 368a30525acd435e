"""What a prompt is made of: every token has a kind, whatever the dialect, the counter, and what clients write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bench import histories
from bench.histories import asks, call, message, result
from governor.compress.anatomy import parts_of, words_of
from governor.compress.report import Measured, report_of
from governor.compress.stages import EDITS
from governor.context import ContextKind, ContextReport, KindShare
from governor.policy.model import CompressionPolicy
from governor.tokens.bpe import from_gguf
from governor.tokens.counter import Counter, EstimateCounter, TokenizerCounter
from governor.tokens.framing import Framing
from governor.tokens.model import PromptParts
from governor.tokens.template import SGLANG, ChatTemplate
from governor.types import TokenCount
from serve.engine import Endpoint
from tests.model_files import recorded as recorded_model
from tests.model_files import smollm2_metadata
from tests.replay.recorded import RecordedRequest, recorded_requests

DROPS_OLD_THINKING = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPES = {
    "tool chain": histories.tool_chain(20),
    "conversation": histories.conversation(40),
    "all in the tail": histories.tail_protected(),
    "giant": histories.giant_result(),
    "tiny rounds": histories.tiny_rounds(200),
    "CJK": histories.cjk(),
    "emoji": histories.emoji(),
    "images": histories.images(),
    "parallel": histories.parallel_calls(),
}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "terminal", "description": "Runs a command. " * 20}}


def measured(
    messages: Sequence[bytes],
    tools: bytes | None = None,
    *,
    counter: Counter | None = None,
    reported: int | None = None,
) -> Measured:
    counter = counter or EstimateCounter()
    counted = counter.count(PromptParts(messages=messages, tools=tools))
    bare = counter.count(PromptParts(messages=messages))
    return Measured(
        messages=messages,
        tools=tools,
        total=counted if reported is None else TokenCount(tokens=reported, source="reported"),
        sizes=counter.sizes(messages),
        tools_tokens=max(0, counted.tokens - bare.tokens),
        counted=counted.source == "tokenizer",
    )


def report(
    messages: Sequence[bytes],
    tools: bytes | None = None,
    *,
    counter: Counter | None = None,
    reported: int | None = None,
    window: int | None = 65_536,
    top: int = 8,
    **policy: Any,
) -> ContextReport:
    counter = counter or EstimateCounter()
    made = report_of(
        measured(messages, tools, counter=counter, reported=reported),
        size_of=lambda raw: counter.sizes([raw])[0],
        policy=CompressionPolicy(**policy),
        window_tokens=window,
        top=top,
    )
    check(made)
    return made


def check(made: ContextReport) -> None:
    """What holds for every report."""
    assert sum(share.tokens for share in made.kinds) == made.tokens
    assert all(share.tokens >= 0 and share.items > 0 for share in made.kinds)
    held = made.held
    assert held.fixed + held.verbatim + held.open + held.policy + held.recent + held.free == made.tokens
    for share in made.kinds:
        assert sum(piece.tokens for piece in share.pieces) <= share.tokens
        assert all(piece.name.isprintable() and piece.name for piece in share.pieces)
    assert all(
        item.begins.isprintable() and item.role.isprintable() and item.tool.isprintable() for item in made.largest
    )
    assert [item.tokens for item in made.largest] == sorted((item.tokens for item in made.largest), reverse=True)
    if made.stages is not None:
        assert sum(gain.freed_tokens for gain in made.stages) <= made.tokens
    assert msgspec.json.decode(msgspec.json.encode(made), type=ContextReport) == made


def share(made: ContextReport, kind: ContextKind) -> KindShare:
    return next(each for each in made.kinds if each.kind is kind)


def exact_counter(template: str | None = None) -> TokenizerCounter:
    chosen = ChatTemplate(template or recorded_model().chat_template, rules=SGLANG)
    return TokenizerCounter(Framing(chosen, from_gguf(smollm2_metadata())), estimate=EstimateCounter())


def prompt_of(request: RecordedRequest) -> tuple[list[bytes], bytes | None]:
    body = json.loads(request.body)
    messages = [msgspec.json.encode(each) for each in body.get("messages") or body["input"]]
    system = body.get("system") or body.get("instructions")
    if system is not None:
        messages.insert(0, msgspec.json.encode(system))
    return messages, msgspec.json.encode(body["tools"]) if body.get("tools") else None


@pytest.mark.parametrize("request_", recorded_requests(), ids=lambda request: request.name)
def test_what_real_clients_sent_is_told_apart(request_: RecordedRequest) -> None:
    messages, tools = prompt_of(request_)
    made = report(messages, tools)
    kinds = {each.kind for each in made.kinds}
    assert ContextKind.USER in kinds
    if request_.endpoint is Endpoint.CHAT:
        assert made.stages is not None
    elif ContextKind.CALLS in kinds:
        assert made.stages is None
    if tools is not None:
        assert share(made, ContextKind.TOOLS).items == made.tool_schemas == len(json.loads(tools))
        assert "unnamed" not in [piece.name for piece in share(made, ContextKind.TOOLS).pieces]
    if request_.client == "openclaw" and len(json.loads(tools or b"[]")) > 2:
        skills, system = share(made, ContextKind.SKILLS), share(made, ContextKind.SYSTEM)
        assert skills.items == b"".join(messages).count(b"<skill>")
        assert skills.tokens > 500
        assert {"Safety", "Tooling"} <= {piece.name for piece in report(messages, tools, top=50).kinds[0].pieces}
        assert system.items > 10
        assert ContextKind.CARRIERS in kinds
    for kind in (ContextKind.CALLS, ContextKind.RESULTS):
        if kind in kinds:
            assert {piece.name for piece in share(made, kind).pieces} <= {"terminal", "exec", "read", "write"}


def test_a_compacted_history_shows_its_summary_and_a_result_its_tool() -> None:
    [compacted] = [each for each in recorded_requests() if each.name == "hermes-compaction-3"]
    messages, tools = prompt_of(compacted)
    made = report(messages, tools)
    assert share(made, ContextKind.SUMMARIES).items == 1
    assert [piece.name for piece in share(made, ContextKind.RESULTS).pieces] == ["terminal"]
    assert made.largest[0].role == "tool"
    assert made.largest[0].tool == "terminal"
    assert made.stages is not None
    assert {gain.stage for gain in made.stages} >= {stage.value for stage in EDITS}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("reported", [None, 50_000])
def test_every_token_has_a_kind(name: str, reported: int | None) -> None:
    made = report(SHAPES[name], msgspec.json.encode([TOOL]), reported=reported)
    assert made.messages == len(SHAPES[name])
    if reported is not None:
        assert (made.tokens, made.margin, made.margin_below, made.exact_parts) == (50_000, 0, 0, False)
    else:
        assert made.margin > 0


def test_parts_are_counts_where_the_models_tokenizer_counts() -> None:
    counter = exact_counter()
    messages = [
        message("system", "Be brief."),
        message("user", "What is in the file? " * 30),
        message("assistant", "It is a list of names."),
        message("user", "Thanks. And the other?"),
    ]
    made = report(messages, counter=counter)
    assert made.exact_parts
    assert made.margin == 0
    sizes = counter.sizes(messages)
    assert share(made, ContextKind.USER).tokens == sizes[1] + sizes[3]
    assert share(made, ContextKind.ASSISTANT).tokens == sizes[2]
    frame = share(made, ContextKind.FRAME)
    assert 0 < frame.tokens <= 10  # the invitation to answer
    assert report(messages, counter=counter, reported=made.tokens).exact_parts
    assert not report(messages, counter=counter, reported=made.tokens + 500).exact_parts


def test_reasoning_that_the_template_drops_costs_nothing() -> None:
    thought = "First this, then that, and so on to the end. " * 40
    messages = [
        message("user", "Go on."),
        message("assistant", "Done.", reasoning_content=thought),
        message("user", "And now?"),
    ]
    dropped = report(messages, counter=exact_counter(DROPS_OLD_THINKING))
    assert share(dropped, ContextKind.REASONING).tokens < 20
    messages.append(message("assistant", "", reasoning_content=thought))
    kept = report(messages, counter=exact_counter(DROPS_OLD_THINKING))
    assert share(kept, ContextKind.REASONING).tokens > 300


def test_one_message_may_be_of_several_kinds() -> None:
    inline = parts_of(message("assistant", f"<think>{'Hm. ' * 50}</think>Well."), {})
    assert [part.kind for part in inline] == [ContextKind.REASONING, ContextKind.ASSISTANT]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}
    shown = parts_of(message("user", [{"type": "text", "text": "Look."}, image]), {})
    assert [part.kind for part in shown] == [ContextKind.USER, ContextKind.IMAGES]
    calls = [call("c1", command="ls")]
    called = parts_of(message("assistant", "I look.", tool_calls=calls, reasoning="Look first."), {})
    assert [part.kind for part in called] == [ContextKind.REASONING, ContextKind.ASSISTANT, ContextKind.CALLS]
    photographed = parts_of(result("c1", [image]), {}, "camera")
    assert [part.kind for part in photographed] == [ContextKind.IMAGES]


def test_our_own_lines_are_told_from_what_clients_wrote() -> None:
    stub = "[result of terminal ls, 4,000 tokens: gov-0123456789abcdef]"
    record = "[record, not a task: 12 earlier messages of this conversation left out: gov-0123456789abcdef]"
    assert [part.kind for part in parts_of(result("c1", stub), {})] == [ContextKind.GOVERNOR]
    assert [part.kind for part in parts_of(message("user", record), {})] == [ContextKind.GOVERNOR]
    assert [part.kind for part in parts_of(message("user", "Look at [record, not a task]"), {})] == [ContextKind.USER]


def test_results_of_other_dialects_find_their_tool() -> None:
    calls: dict[str, str] = {}
    uses = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}}]}
    answers = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "text"}]}
    item = {"type": "function_call", "call_id": "f1", "name": "exec", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "f1", "output": "done"}
    found = [parts_of(msgspec.json.encode(each), calls)[0] for each in (uses, answers, item, output)]
    assert [(part.kind, part.name) for part in found] == [
        (ContextKind.CALLS, "read"),
        (ContextKind.RESULTS, "read"),
        (ContextKind.CALLS, "exec"),
        (ContextKind.RESULTS, "exec"),
    ]
    assert words_of(msgspec.json.encode(uses), ContextKind.CALLS) == 'read {"path":"a"}'


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"null",
        b"7",
        b"{}",
        b'{"role": 5, "content": {"a": []}}',
        b'{"role": ["tool"], "type": {}, "content": [[["x"]]]}',
        b'{"role": "tool", "content": null, "tool_call_id": 5}',
        b'{"role": "assistant", "tool_calls": {"a": 1}, "function_call": [], "content": 4.5}',
        b'{"role": "assistant", "tool_calls": [null, {"function": {"name": 5, "arguments": [1]}}]}',
        b'{"role": "assistant", "content": [{"type": "tool_use", "id": [], "name": {}, "input": null}, null, 5]}',
        b'{"role": "user", "content": [{"type": "tool_result", "tool_use_id": 4, "content": 5}]}',
        b'{"role": "user", "content": ' + b"[" * 400 + b"]" * 400 + b"}",
        b'{"role": "user", "content": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\xff\xfe",
    ],
)
def test_what_cannot_be_read_is_counted_somehow(odd: bytes) -> None:
    made = report([message("system", "S"), odd, message("user", "go")], b'[{"x": 1}, 5, {"function": {"name": []}}]')
    assert made.messages == 3
    assert made.tool_schemas == 3
    report([odd], b"not json")


def test_hostile_names_and_words_are_made_visible() -> None:
    evil = "\x1b[31mred\u202e\n[bold]"
    messages = [
        message(
            "system", f"# {evil}\n{'rules ' * 100}\n# Skills\n<available_skills>\n- {evil}\n</available_skills>\nrest"
        ),
        message("user", evil),
        asks(call("c1", name=evil, command="x")),
        result("c1", evil * 40),
    ]
    made = report(messages, msgspec.json.encode([{"function": {"name": evil}}]), top=20)
    names = [piece.name for each in made.kinds for piece in each.pieces]
    assert any(name.startswith("\\x1b[31mred\\u202e") for name in names)
    assert share(made, ContextKind.SKILLS).items == 1


def test_what_is_held_follows_the_policy() -> None:
    chain = histories.tool_chain(12)
    plain = report(chain)
    assert plain.held.open > 0
    assert plain.held.free > 0
    assert plain.held.policy == 0
    kept = report(chain, protected_tools=("terminal", "read_file", "search_files", "write_file"))
    assert kept.held.policy > 0
    assert kept.held.free + kept.held.recent < plain.held.free + plain.held.recent
    assert {item.hold for item in kept.largest} <= {"policy", "open", "verbatim", "recent", "free"}


def test_without_a_window_nothing_is_claimed_of_it() -> None:
    made = report(histories.tool_chain(5), window=None)
    assert (made.window_tokens, made.trigger_tokens, made.target_tokens) == (None, None, None)
    assert made.stages is None
    assert made.share is None


def test_an_empty_prompt_has_nothing_to_show() -> None:
    made = report_of(
        Measured(messages=[], tools=None, total=TokenCount(tokens=0), sizes=[], tools_tokens=0, counted=False),
        size_of=len,
        policy=CompressionPolicy(),
        window_tokens=1000,
    )
    assert made.kinds == ()
    assert made.largest == ()
