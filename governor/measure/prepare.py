"""Before the first case: prompts in the engine's own words, and an engine that is warm."""

from __future__ import annotations

import msgspec

from governor.errors import UpstreamError
from governor.measure.checks import require_usage
from governor.measure.errors import MeasureFailed
from governor.measure.prompts import Prompt, PromptMaker, corpus_text
from governor.measure.target import Target

_SHORT, _LONG = 200, 600
"""Repeats of one word, to tell what a template adds from what a word is."""
_WARM_TOKENS = (256, 2048, 2048)
_WARM_OUTPUT = 16
_LEAST_CORPUS_TOKENS = 1000


async def make_prompts(target: Target, seed: str) -> PromptMaker:
    """Learns how this engine counts, and puts it into the target's facts. Raises :class:`MeasureFailed`."""
    replace = msgspec.structs.replace
    try:
        if target.tokens_of is not None:
            corpus = await target.tokens_of(corpus_text())
            if len(corpus) < _LEAST_CORPUS_TOKENS:
                raise MeasureFailed(f"The engine makes {len(corpus)} tokens of a long text; it cannot be measured.")
            target.facts = replace(target.facts, prompts="tokens", template_tokens=0)
            return PromptMaker(seed, corpus=corpus)
        text = corpus_text().replace("\n", " ").split(" ")
        short, long = (" ".join(text[:words]) for words in (_SHORT, _LONG))
        counts = await target.count(short), await target.count(long)
        counts_prompts = None not in counts
        if not counts_prompts:
            counts = await _asked_count(target, short), await _asked_count(target, long)
    except UpstreamError as error:
        raise MeasureFailed(error.message) from error
    per_word = ((counts[1] or 0) - (counts[0] or 0)) / (_LONG - _SHORT)
    if per_word <= 0:
        raise MeasureFailed(
            f"The engine counts {counts[0]} and {counts[1]} tokens for {_SHORT} and {_LONG} words; it cannot be "
            "measured."
        )
    template = max(0, round((counts[0] or 0) - _SHORT * per_word))
    target.facts = replace(target.facts, prompts="text", template_tokens=template)
    return PromptMaker(
        seed,
        count=target.count if counts_prompts else None,
        template_tokens=template,
        tokens_per_word=per_word,
    )


async def warm_up(target: Target, prompts: PromptMaker) -> None:
    """Kernels are compiled, graphs are captured and pools are touched by the first prompts; none of them is measured.

    Raises :class:`MeasureFailed`, and :class:`~governor.measure.errors.NoUsage`.
    """
    room = target.facts.window_tokens - _WARM_OUTPUT - 1
    for number, tokens in enumerate(_WARM_TOKENS):
        prompt = await prompts.fresh(f"warm-up {number}", max(32, min(tokens, room // 2)))
        try:
            answer = await target.ask(prompt, _WARM_OUTPUT)
        except UpstreamError as error:
            raise MeasureFailed(f"The engine fails before anything is measured: {error.message}") from error
        require_usage(answer)


async def _asked_count(target: Target, text: str) -> int:
    answer = await target.ask(Prompt(tokens=0, text=text), 1)
    require_usage(answer)
    return answer.prompt_tokens
