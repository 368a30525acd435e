"""Logprobs without a model: what the canary compares must follow from the context, and from all of it."""

from __future__ import annotations

from array import array

from serve.twin_server.logprobs import meta_logprobs

PROMPT = array("I", range(1000, 1100))


def test_the_prompts_part_begins_without_a_number() -> None:
    told = meta_logprobs(PROMPT, [], 90, 0)["input_token_logprobs"]
    assert [token for _, token, _ in told] == list(range(1090, 1100))
    assert told[0][0] is None
    assert all(-5 <= number <= -1 for number, _, _ in told[1:])


def test_nothing_of_the_prompt_is_told_unless_asked() -> None:
    for start in (-1, 100):
        assert "input_token_logprobs" not in meta_logprobs(PROMPT, [], start, 0)


def test_they_are_the_contexts_wherever_it_is_cut() -> None:
    early, late = (meta_logprobs(PROMPT, [7, 8], start, 0) for start in (10, 50))
    assert early["input_token_logprobs"][-49:] == late["input_token_logprobs"][-49:]
    assert early["output_token_logprobs"] == late["output_token_logprobs"]
    assert meta_logprobs(PROMPT, [7, 8, 9], 50, 0)["output_token_logprobs"][:2] == late["output_token_logprobs"]


def test_a_token_that_differs_early_changes_what_comes_after() -> None:
    other = array("I", PROMPT)
    other[3] += 1
    told, changed = (meta_logprobs(ids, [7], 50, 0)["input_token_logprobs"][1:] for ids in (PROMPT, other))
    assert sum(one != two for one, two in zip(told, changed, strict=True)) > len(told) * 0.9


def test_what_was_written_is_the_most_probable() -> None:
    told = meta_logprobs(PROMPT, [7, 8], -1, 4)
    assert told["output_token_logprobs_length"] == 2
    for chosen, best in zip(told["output_token_logprobs"], told["output_top_logprobs"], strict=True):
        assert best[0] == chosen
        assert len({token for _, token, _ in best}) == 4
        assert [number for number, _, _ in best] == sorted((number for number, _, _ in best), reverse=True)
