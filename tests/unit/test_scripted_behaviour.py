"""Words for behaviours, and the order in which a script gives them out."""

from __future__ import annotations

import pytest

from serve.scripted import BadScript, Behaviour, Ending, Overflow, ScriptedCall
from serve.scripted.behaviour import Script, parse_word


@pytest.mark.parametrize(
    ("word", "behaviour"),
    [
        ("say", Behaviour()),
        ("say:two words", Behaviour(say="two words")),
        ("429/3", Behaviour(status=429, retry_after_s=3)),
        ("503", Behaviour(status=503)),
        ("429*2", Behaviour(status=429, times=2)),
        ('call:ls:{"a": 1}', Behaviour(calls=(ScriptedCall("ls", {"a": 1}),))),
        ("call:ls", Behaviour(calls=(ScriptedCall("ls"),))),
        ("overflow:vllm", Behaviour(overflow=Overflow.VLLM)),
        ("cut@4", Behaviour(break_after=4, ending=Ending.CUT)),
        ("rst", Behaviour(ends_before_head=True, ending=Ending.RST)),
        ("eof@2", Behaviour(break_after=2, ending=Ending.FIN)),
        ("error@1", Behaviour(break_after=1, error_frame=True)),
        ("length", Behaviour(finish="length")),
        ("empty", Behaviour(say="", reasoning=16)),
    ],
)
def test_words(word: str, behaviour: Behaviour) -> None:
    assert parse_word(word) == behaviour


@pytest.mark.parametrize("word", ["", "dance", "call", "call:ls:{", "42"])
def test_wrong_words(word: str) -> None:
    with pytest.raises(BadScript):
        parse_word(word)


def test_a_script_is_consumed_and_then_answers_ordinarily() -> None:
    script = Script((parse_word("429*2"), parse_word("say:x")))
    assert [script.take().status for _ in range(2)] == [429, 429]
    assert script.remaining == 1
    assert script.take() == Behaviour(say="x")
    assert script.take() == Behaviour()
