"""What the twin writes: reproducible, resumable, of the wished length, cut where a request cuts."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

from serve.twin_server.answers import (
    Answer,
    AnswerSettings,
    BadWish,
    Choice,
    Lengths,
    Limits,
    Offer,
    Wish,
    WishedCall,
    plan,
    read_wish,
    reasoning_tokens,
)
from serve.twin_server.arguments import make_arguments
from serve.twin_server.calls import ToolSpec
from serve.twin_server.parse import Parsed, parse
from serve.twin_server.pieces import END_THINK, IM_END, Ids, decode, encode
from serve.twin_server.template import chat_ids

_SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 5, "maximum": 7}, "minItems": 2},
        "mode": {"enum": ["read", "write"]},
    },
    "required": ["path", "lines", "mode"],
}
_OFFER = Offer((ToolSpec("read", _SCHEMA),))
_LIMITS = Limits(max_tokens=10_000)
_CLOSE = encode("\n</think>\n\n")


def question(text: str = "hi", **options: bool) -> Ids:
    return chat_ids([{"role": "user", "content": text}], **options)


def answer(prompt: Ids, limits: Limits = _LIMITS, offer: Offer | None = None, **wish: Any) -> Answer:
    return plan(prompt, settings=AnswerSettings(), limits=limits, wish=Wish(**wish), offer=offer)


def said(prompt: Ids, offer: Offer | None = None, **wish: Any) -> Parsed:
    return parse(answer(prompt, offer=offer, **wish), offer)


def test_the_question_and_the_seed_decide() -> None:
    prompt = question()
    assert answer(prompt).ids == answer(prompt).ids
    assert answer(prompt).ids != answer(question("ho")).ids
    assert answer(prompt).ids != answer(prompt, seed=1).ids
    other = plan(prompt, settings=AnswerSettings(seed=1), limits=_LIMITS)
    assert other.ids == answer(prompt, seed=1).ids


def test_thinking_comes_where_the_prompt_asks_for_it() -> None:
    thinking = answer(question())
    assert thinking.in_reasoning
    assert 0 < reasoning_tokens(thinking.ids) < len(thinking.ids)
    silent = answer(question(enable_thinking=False))
    assert not silent.in_reasoning
    assert END_THINK not in silent.ids
    assert thinking.ids[-1] == silent.ids[-1] == thinking.matched_stop == IM_END


@pytest.mark.parametrize("wish", [{}, {"call_share": 1.0}, {"text": "ä – ok.\n"}, {"reasoning": "", "text": ""}])
@pytest.mark.parametrize("thinks", [True, False])
def test_a_partial_answer_goes_on_as_the_whole_one(wish: dict[str, Any], thinks: bool) -> None:
    prompt = question(enable_thinking=thinks)
    whole = answer(prompt, offer=_OFFER, **wish)
    for cut in range(0, len(whole.ids) + 1, 7):
        rest = answer(prompt + whole.ids[:cut], offer=_OFFER, **wish)
        assert whole.ids[:cut] + rest.ids == whole.ids + encode("<|im_end|>") * (cut == len(whole.ids))
        assert rest.question == whole.question


def test_an_answer_lengthened_goes_on_as_well() -> None:
    prompt = question()
    whole = answer(prompt, Limits(max_tokens=900, ignore_eos=True))
    for cut in (3, 500, 899):
        rest = answer(prompt + whole.ids[:cut], Limits(max_tokens=900 - cut, ignore_eos=True))
        assert whole.ids[:cut] + rest.ids == whole.ids


def test_partial_text_in_other_tokens_goes_on_too() -> None:
    prompt = question(enable_thinking=False)
    whole = answer(prompt)
    text = decode(whole.ids[:-1])
    cut = next(at for at in range(30, 60) if encode(text[:at]) + encode(text[at:]) != encode(text))
    rest = answer(prompt + encode(text[:cut]))
    assert text[:cut] + decode(rest.ids[:-1]) == text


def test_closed_thinking_goes_on_with_the_content() -> None:
    prompt = question()
    whole = answer(prompt)
    content = parse(whole).content
    for thought in (0, 1, 25):
        partial = prompt + whole.ids[:thought] + _CLOSE
        rest = answer(partial)
        assert not rest.in_reasoning
        assert "\n\n" + parse(rest).content == content
        later = answer(partial + rest.ids[:10])
        assert rest.ids[:10] + later.ids == rest.ids


def test_what_is_lengthened_behind_closed_thinking_goes_on() -> None:
    closed = question() + answer(question()).ids[:9] + _CLOSE
    whole = answer(closed, Limits(max_tokens=900, ignore_eos=True))
    for cut in (3, 250, 899):
        rest = answer(closed + whole.ids[:cut], Limits(max_tokens=900 - cut, ignore_eos=True))
        assert whole.ids[:cut] + rest.ids == whole.ids


def test_a_close_that_was_cut_is_completed() -> None:
    prompt = question()
    thought = prompt + answer(prompt).ids[:12]
    whole = answer(thought + _CLOSE)
    for missing in (1, 2):
        rest = answer(thought + encode("\n</think>\n\n"[:-missing]))
        assert decode(rest.ids) == "\n" * missing + decode(whole.ids)


def test_a_foreign_beginning_is_gone_on_with() -> None:
    prompt = question(enable_thinking=False)
    planned = decode(answer(prompt).ids)
    begun = prompt + encode("Sure, I can: ")
    rest = answer(begun)
    assert decode(rest.ids) == planned
    later = answer(begun + rest.ids[:20])
    assert rest.ids[:20] + later.ids == rest.ids


def test_a_prompt_without_markers_is_a_question() -> None:
    first = answer(encode("Once upon a time"))
    assert first.ids
    assert not first.in_reasoning


@pytest.mark.parametrize("tokens", [4, 5, 17, 300, 5000])
@pytest.mark.parametrize("thinks", [True, False])
def test_tokens_are_met_exactly(tokens: int, thinks: bool) -> None:
    whole = answer(question(enable_thinking=thinks), tokens=tokens)
    assert (len(whole.ids), whole.natural_tokens, whole.finish) == (tokens, tokens, "stop")
    assert encode(decode(whole.ids)) == whole.ids


def test_tokens_with_parts_are_met_exactly() -> None:
    whole = answer(question(), offer=_OFFER, tokens=200, reasoning_tokens=40, calls=(WishedCall(name="read"),))
    assert len(whole.ids) == 200
    assert reasoning_tokens(whole.ids) == 40 + 2  # the line break and the marker
    parsed = parse(whole, _OFFER)
    assert parsed.content
    assert len(parsed.calls) == 1
    call_alone = answer(question(), offer=_OFFER, reasoning="", calls=(WishedCall(name="read"),))
    exact = answer(question(), offer=_OFFER, reasoning="", tokens=len(call_alone.ids), calls=(WishedCall(name="read"),))
    assert exact.ids == call_alone.ids


def test_a_drawn_call_needs_room() -> None:
    for tokens in range(6, 120):
        assert len(answer(question(), offer=_OFFER, tokens=tokens, call_share=1.0).ids) == tokens


@pytest.mark.parametrize(
    "wish",
    [{"tokens": 10, "reasoning_tokens": 20}, {"tokens": 3}, {"tokens": 30, "calls": (WishedCall(name="read"),)}],
)
def test_too_few_tokens_are_refused(wish: dict[str, Any]) -> None:
    with pytest.raises(BadWish, match="tokens: "):
        answer(question(), offer=_OFFER, **wish)


def test_wished_parts() -> None:
    call = WishedCall(name="read", arguments={"path": "a", "lines": [5, 5], "mode": "read"})
    parsed = said(question(), _OFFER, reasoning="because", text="So.", calls=(call, call))
    assert (parsed.reasoning, parsed.content) == ("because\n", "\n\nSo.\n\n")
    assert [msgspec.json.decode(each.arguments) for each in parsed.calls] == [call.arguments] * 2
    assert len({each.id for each in parsed.calls}) == 2
    assert said(question(), _OFFER, calls=()).calls == ()
    assert said(question(), _OFFER, calls=(call,)).content == "\n\n"


@pytest.mark.parametrize(
    ("choice", "share", "calls"),
    [(Choice.AUTO, 1.0, 20), (Choice.AUTO, 0.0, 0), (Choice.NONE, 1.0, 0), (Choice.REQUIRED, 0.0, 20)],
)
def test_whether_tools_are_called(choice: Choice, share: float, calls: int) -> None:
    offer = Offer(_OFFER.tools, choice)
    answers = [said(question(str(number)), offer, call_share=share) for number in range(20)]
    assert sum(len(each.calls) for each in answers) == calls


def test_some_answers_call() -> None:
    called = sum(bool(said(question(str(number)), _OFFER).calls) for number in range(40))
    assert 8 < called < 32


def test_made_arguments_are_read_back_by_their_schema() -> None:
    for number in range(20):
        (call,) = said(question(str(number)), _OFFER, call_share=1.0).calls
        arguments = msgspec.json.decode(call.arguments)
        assert arguments == make_arguments(_SCHEMA, f"{answer(question(str(number))).question}:0")
        assert isinstance(arguments["path"], str)
        assert len(arguments["lines"]) >= 2
        assert set(arguments["lines"]) <= {5, 6, 7}
        assert arguments["mode"] in ("read", "write")


def test_the_history_has_the_tokens_that_were_written() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    tools = [{"type": "function", "function": {"name": "read", "parameters": _SCHEMA}}]
    prompt = chat_ids(messages, tools)
    whole = answer(prompt, offer=_OFFER, call_share=1.0)
    parsed = parse(whole, _OFFER)
    calls = [{"function": {"name": each.name, "arguments": each.arguments}} for each in parsed.calls]
    messages += [
        {
            "role": "assistant",
            "content": parsed.content,
            "reasoning_content": parsed.reasoning,
            "tool_calls": calls,
        },
        {"role": "tool", "content": "42"},
    ]
    written = prompt + whole.ids
    assert chat_ids(messages, tools)[: len(written)] == written


def test_the_limits_cut() -> None:
    whole = answer(question())
    cut = answer(question(), Limits(max_tokens=20))
    assert cut.ids == whole.ids[:20]
    assert (cut.natural_tokens, cut.finish, cut.matched_stop) == (len(whole.ids), "length", None)
    just = answer(question(), Limits(max_tokens=len(whole.ids)))
    assert (just.finish, just.ids) == ("stop", whole.ids)


def test_the_limits_lengthen() -> None:
    whole = answer(question())
    longer = answer(question(), Limits(max_tokens=10_000, min_tokens=len(whole.ids) + 50))
    assert longer.ids[: len(whole.ids) - 1] == whole.ids[:-1]
    assert (len(longer.ids), longer.ids.count(IM_END), longer.finish) == (len(whole.ids) + 51, 1, "stop")
    endless = answer(question(), Limits(max_tokens=3000, ignore_eos=True))
    assert (len(endless.ids), endless.finish, IM_END in endless.ids) == (3000, "length", False)


def test_thinking_is_limited() -> None:
    limited = answer(question(), Limits(max_tokens=10_000, thinking_tokens=10), reasoning_tokens=100)
    free = answer(question(), reasoning_tokens=100)
    assert limited.ids[:10] == free.ids[:10]
    assert reasoning_tokens(limited.ids) == 12
    assert parse(limited).content == parse(free).content


def test_a_stop_text_is_not_shown() -> None:
    limits = Limits(max_tokens=100, stop=("nowhere", "two", "e, tw"))
    whole = answer(question(enable_thinking=False), limits, text="one, two, three")
    assert (parse(whole).content, whole.finish, whole.matched_stop) == ("on", "stop", "e, tw")
    assert decode(whole.ids) == "one, two", "the token that completes it is written"
    assert len(whole.ids) == whole.natural_tokens
    missed = answer(question(enable_thinking=False), Limits(max_tokens=2, stop=("three",)), text="one, two, three")
    assert missed.finish == "length"


def test_lengths_are_log_normal_within_bounds() -> None:
    settings = AnswerSettings(content=Lengths(median=100, sigma=0.8, least=40, most=300))
    lengths = [
        plan(question(str(number), enable_thinking=False), settings=settings, limits=_LIMITS).natural_tokens - 1
        for number in range(300)
    ]
    assert (min(lengths), max(lengths)) == (40, 300)
    assert 85 < median(lengths) < 115


def test_a_wish_of_a_request() -> None:
    assert read_wish(None) == read_wish({"other": 1}) == Wish()
    wish = read_wish({"twin": {"tokens": 5, "calls": [{"name": "f"}]}})
    assert wish == Wish(tokens=5, calls=(WishedCall(name="f"),))


@pytest.mark.parametrize(
    ("twin", "says"),
    [
        ({"tokens": "5"}, r"custom_params.twin: .*tokens"),
        ({"length": 5}, "unknown field `length`"),
        ({"tokens": 5, "text": "x"}, "either tokens or text"),
        ({"tokens": 0}, ">= 1 - at `\\$.tokens`"),
        ({"reasoning_tokens": -1}, ">= 0"),
        ({"call_share": 2}, "<= 1"),
    ],
)
def test_a_bad_wish_is_named(twin: dict[str, Any], says: str) -> None:
    with pytest.raises(BadWish, match=says):
        read_wish({"twin": twin})


def test_every_wish_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "design" / "twin-content.md").read_text()
    rows = "".join(line for line in page.splitlines() if line.startswith("| `"))
    assert all(f"`{field}`" in rows for field in Wish.__struct_fields__)


def test_a_wish_may_say_how_hard_its_text_is_to_guess() -> None:
    assert read_wish({"twin": {"accept_length": 1.15}}).accept_length == 1.15
    assert read_wish({"twin": {}}).accept_length is None
    with pytest.raises(BadWish, match="accept_length"):
        read_wish({"twin": {"accept_length": 0.5}})
