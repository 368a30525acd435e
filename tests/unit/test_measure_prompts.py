"""Prompts: exact lengths, repeatable, and no two begin alike."""

from __future__ import annotations

from itertools import combinations

import pytest

from governor.measure.prompts import PromptMaker, corpus_text

CORPUS = tuple(range(1000, 4000))


def maker(seed: str = "seed") -> PromptMaker:
    return PromptMaker(seed, corpus=CORPUS)


@pytest.mark.parametrize("tokens", [1, 16, 17, 64, 4096, 65_537])
async def test_token_prompts_have_exactly_their_length(tokens: int) -> None:
    prompt = await maker().fresh("a", tokens)
    assert prompt.ids is not None
    assert len(prompt.ids) == prompt.tokens == tokens


async def test_no_two_prompts_of_a_run_share_a_page() -> None:
    prompts = maker()
    made = [(await prompts.fresh(f"case {number}", 256)).ids or () for number in range(200)]
    assert all(one[:16] != other[:16] for one, other in combinations(made, 2))
    pages = [page for ids in made for page in {ids[at : at + 64] for at in range(0, 256, 64)}]
    assert len(set(pages)) == len(pages)


async def test_the_same_name_cannot_be_asked_twice_in_a_run() -> None:
    prompts = maker()
    await prompts.fresh("a", 64)
    with pytest.raises(ValueError, match="made twice"):
        await prompts.fresh("a", 64)


async def test_a_seed_repeats_and_another_does_not() -> None:
    one, same, other = [await maker(seed).fresh("a", 512) for seed in ("x", "x", "y")]
    assert one == same
    assert one.ids is not None
    assert other.ids is not None
    assert one.ids[:16] != other.ids[:16]


async def test_an_extension_begins_with_what_it_extends_and_a_divergence_parts_where_it_should() -> None:
    prompts = maker()
    base = await prompts.fresh("a", 300)
    longer = await prompts.extended(base, "tail", 50)
    other = await prompts.diverged(base, "other", 180)
    assert base.ids is not None
    assert longer.ids is not None
    assert other.ids is not None
    assert longer.ids[:300] == base.ids
    assert len(longer.ids) == longer.tokens == 350
    assert other.ids[:180] == base.ids[:180]
    assert other.ids[180:244] != base.ids[180:244]
    assert len(other.ids) == 300


@pytest.mark.parametrize("tokens", [64, 500, 3000])
async def test_text_prompts_are_counted_until_they_fit(tokens: int) -> None:
    """An engine that makes two tokens of long words, and puts seven around each text."""

    def count(text: str) -> int:
        return 7 + sum(1 + (len(word) > 7) for word in text.split(" "))

    async def counted(text: str) -> int:
        return count(text)

    prompts = PromptMaker("seed", count=counted, template_tokens=7, tokens_per_word=1.15)
    base = await prompts.fresh("a", tokens)
    longer = await prompts.extended(base, "tail", 40)
    other = await prompts.diverged(base, "other", tokens // 2)
    assert [count(each.text) for each in (base, longer, other)] == [tokens, tokens + 40, tokens]
    assert longer.text.startswith(base.text)
    shared = len([1 for one, two in zip(base.text.split(" "), other.text.split(" "), strict=False) if one == two])
    assert shared < len(base.text.split(" ")) * 0.7


def test_the_corpus_is_long_enough_to_be_drawn_from() -> None:
    assert len(corpus_text().split()) > 4000
    assert corpus_text() == corpus_text()
