"""What the model says: reproducible, cut at the cap, with honest counts."""

from __future__ import annotations

import msgspec

from serve.scripted import Behaviour, Knobs, ScriptedCall, count_tokens
from serve.scripted.answer import Answer, Part, compose
from serve.scripted.ask import Ask, Dialect

_KNOBS = Knobs(answer_tokens=10)
_CALL = Behaviour(calls=(ScriptedCall("write", {"path": "a.txt", "content": "one two three"}),))


def _compose(behaviour: Behaviour | None = None, knobs: Knobs = _KNOBS, **ask: int) -> Answer:
    request = Ask(dialect=Dialect.CHAT, model="m", messages=(), **ask)  # type: ignore[arg-type]
    return compose(
        request,
        behaviour or Behaviour(),
        knobs,
        prompt="p",
        prompt_tokens=100,
        cached_tokens=60,
        number=1,
        created=0,
    )


def test_the_same_seed_says_the_same() -> None:
    assert _compose().text == _compose().text
    assert _compose().text != _compose(knobs=msgspec.structs.replace(_KNOBS, seed=1)).text


def test_counts_are_those_of_the_counter() -> None:
    answer = _compose(Behaviour(reasoning=4))
    assert count_tokens(answer.text) == 10
    assert answer.usage.completion_tokens == 14
    assert answer.usage.reasoning_tokens == 4
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (100, 60)
    assert answer.finish == "stop"


def test_reasoning_can_eat_the_cap() -> None:
    answer = _compose(Behaviour(reasoning=20), max_tokens=12)
    assert answer.text == ""
    assert answer.finish == "length"
    assert answer.usage.completion_tokens == answer.usage.reasoning_tokens == 12


def test_a_call_alone_says_nothing_else() -> None:
    answer = _compose(_CALL)
    assert answer.text == ""
    assert answer.finish == "tool_calls"
    assert msgspec.json.decode(answer.calls[0].arguments) == {"path": "a.txt", "content": "one two three"}
    assert next(piece.tokens for piece in answer.pieces if piece.part is Part.CALL) == 0


def test_arguments_are_cut_at_the_cap() -> None:
    whole = _compose(_CALL).calls[0].arguments
    answer = _compose(_CALL, max_tokens=3)
    assert answer.finish == "length"
    assert whole.startswith(answer.calls[0].arguments)
    assert count_tokens(answer.calls[0].arguments) == 3


def test_an_answer_without_a_cap_ends_with_the_window() -> None:
    knobs = Knobs(answer_tokens=50, window_tokens=120)
    assert _compose(knobs=knobs).usage.completion_tokens == 20


def test_several_tokens_a_chunk() -> None:
    pieces = _compose(knobs=Knobs(answer_tokens=10, tokens_per_chunk=4)).pieces
    assert [piece.tokens for piece in pieces] == [4, 4, 2]


def test_reported_usage_can_differ_from_the_truth() -> None:
    usage = _compose(Behaviour(usage=(60_000, 3), cached_tokens=0)).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (60_000, 3, 0)


def test_choices_are_counted_each() -> None:
    assert _compose(choices=3).usage.completion_tokens == 30
