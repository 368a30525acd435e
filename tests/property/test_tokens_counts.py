"""Counts over arbitrary conversations: incremental equals whole, and the cheap bound is never below the truth."""

from __future__ import annotations

import json
from functools import cache

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.tokens.bpe import from_gguf
from governor.tokens.counter import EstimateCounter, KnownPrefix, PromptParts, TokenizerCounter, upper_bound
from governor.tokens.framing import Framing
from governor.tokens.template import LLAMA_CPP, ChatTemplate
from tests.model_files import recorded, smollm2_metadata


@cache
def framing() -> Framing:
    return Framing(ChatTemplate(recorded().chat_template, rules=LLAMA_CPP), from_gguf(smollm2_metadata()))


texts = st.text(st.characters(codec="utf-8"), max_size=60) | st.sampled_from(
    ["<|im_end|>", "\n", " ", "a\n\n", "don't", "क़", "\ud834\udd60".encode("utf-16", "surrogatepass").decode("utf-16")]
)
messages = st.builds(
    lambda role, content, ascii_only: json.dumps({"role": role, "content": content}, ensure_ascii=ascii_only).encode(),
    st.sampled_from(["system", "user", "assistant", "tool"]),
    texts | st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts), max_size=3),
    st.booleans(),
)
conversations = st.lists(messages, min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(conversations)
def test_message_by_message_equals_the_whole(raw: list[bytes]) -> None:
    counter = TokenizerCounter(framing(), estimate=EstimateCounter())
    rendered = [framing().prepare(msgspec.json.decode(message)) for message in raw]

    counted = counter.count(PromptParts(messages=raw))

    assert counted.tokens == framing().whole(rendered, None)


@settings(max_examples=150, deadline=None)
@given(conversations, st.integers(0, 8))
def test_the_cheap_bound_is_never_below_the_truth(raw: list[bytes], known_messages: int) -> None:
    counter = TokenizerCounter(framing(), estimate=EstimateCounter())
    truth = counter.count(PromptParts(messages=raw)).tokens
    known_messages = min(known_messages, len(raw))

    assert upper_bound(PromptParts(messages=raw)) >= truth
    if known_messages:
        reported = counter.count(PromptParts(messages=raw[:known_messages])).tokens
        known = KnownPrefix(messages=known_messages, prompt_tokens=reported)
        assert upper_bound(PromptParts(messages=raw, known=known)) >= truth
