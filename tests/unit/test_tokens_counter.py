"""Counts of whole prompts: equal to what the engine reported, incremental, and honest where they are estimates."""

from __future__ import annotations

import base64
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import msgspec
import pytest

from governor.tokens.bpe import BpeTokenizer, from_gguf
from governor.tokens.counter import (
    EstimateCounter,
    ImageCost,
    KnownPrefix,
    PromptParts,
    TokenizerCounter,
    upper_bound,
)
from governor.tokens.digests import digest_message
from governor.tokens.framing import Framing
from governor.tokens.template import SGLANG, ChatTemplate, RenderRules, TemplateFailed
from tests.model_files import Talk, recorded, smollm2_metadata

# The two habits that real templates have and ChatML has not: Qwen2.5 groups tool results, Qwen3 drops old thinking.
GROUPING = (
    "{% if tools %}<|im_start|>system\n{{ messages[0].content if messages[0].role == 'system' }}# Tools\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}\n<r>\n{{ m.content }}\n</r>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif not (loop.first and m.role == 'system') %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<call>{{ c.function.arguments | tojson }}</call>{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


STRICT = (
    "{% for m in messages %}{% if m.role == 'tool' and (loop.first or loop.previtem.tool_calls | length != 2) %}"
    "{{ raise_exception('a result answers two calls') }}{% endif %}"
    "{% if m.role == 'user' and not loop.first and loop.previtem.role == 'user' %}"
    "{{ raise_exception('twice') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


@cache
def tokenizer() -> BpeTokenizer:
    return from_gguf(smollm2_metadata())


def framing(template: str | None = None, rules: RenderRules = SGLANG) -> Framing:
    return Framing(ChatTemplate(template or recorded().chat_template, rules=rules), tokenizer())


def exact_counter(template: str | None = None) -> TokenizerCounter:
    rules = RenderRules(part_separator="\n")
    return TokenizerCounter(framing(template, rules), estimate=EstimateCounter())


def raw(role: str, content: object, **more: object) -> bytes:
    return msgspec.json.encode({"role": role, "content": content, **more})


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"b": 1, "a": "x"}'}}
LOOP = [
    raw("system", "Be brief."),
    raw("user", "go"),
    raw("assistant", "", tool_calls=[CALL, CALL], reasoning_content="Let me look at both of them."),
    raw("tool", "seen", tool_call_id="c1"),
    raw("tool", '{"output": "日本 12"}', tool_call_id="c1"),
    raw("assistant", "ok\n", reasoning_content="That is all."),
    raw("user", "and now? "),
    raw("user", "please"),
    raw("assistant", "done"),
    raw("user", "thanks"),
]
TOOLS = msgspec.json.encode([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])


@pytest.mark.parametrize("talk", recorded().talks)
def test_a_count_is_what_the_engine_reported(talk: Talk) -> None:
    counted = exact_counter().count(PromptParts(messages=talk.raw, tools=talk.raw_tools))

    assert (counted.tokens, counted.margin, counted.source) == (talk.prompt_tokens, 0, "tokenizer")


@pytest.mark.parametrize(
    ("template", "additive"),
    [(None, True), (GROUPING, True), (THINKING, False), ("{{ raise_exception('no') }}", False)],
)
def test_whether_a_template_is_additive_is_found_out(template: str | None, additive: bool) -> None:
    assert framing(template).additive is additive


@pytest.mark.parametrize("template", [None, GROUPING, THINKING])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_growing_conversation_counts_as_its_whole_rendering(template: str | None, tools: bytes | None) -> None:
    grown = exact_counter(template)
    whole = framing(template, RenderRules(part_separator="\n"))
    offered: list[Any] | None = None if tools is None else msgspec.json.decode(tools)

    for length in range(1, len(LOOP) + 1):
        parts = PromptParts(messages=LOOP[:length], tools=tools)
        rendered = [whole.prepare(msgspec.json.decode(message)) for message in parts.messages]
        assert grown.count(parts).tokens == whole.whole(rendered, offered)


def test_a_message_that_is_refused_out_of_its_place_is_counted_in_it() -> None:
    counter, whole = exact_counter(STRICT), framing(STRICT)
    talk = LOOP[:4]

    counted = counter.count(PromptParts(messages=talk))

    assert whole.additive
    assert counted.source == "tokenizer"
    assert counted.tokens == whole.whole([whole.prepare(msgspec.json.decode(message)) for message in talk], None)


def test_digests_given_by_the_caller_change_nothing() -> None:
    digests = [digest_message(message) for message in LOOP]

    with_digests = exact_counter().count(PromptParts(messages=LOOP, digests=digests))

    assert with_digests == exact_counter().count(PromptParts(messages=LOOP))


def test_an_image_costs_what_was_stated_and_not_its_base64() -> None:
    picture = base64.b64encode(bytes(60_000)).decode()
    parts = [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
    ]
    image = ImageCost(tokens=1000, margin=400)
    exact = TokenizerCounter(framing(), estimate=EstimateCounter(image=image), image=image)
    plain = exact.count(PromptParts(messages=[raw("user", parts[:1])]))

    counted = exact.count(PromptParts(messages=[raw("user", parts)]))
    estimated = EstimateCounter(image=image).count(PromptParts(messages=[raw("user", parts)]))

    assert (counted.tokens, counted.margin, counted.source) == (plain.tokens + 1000, 400, "estimate")
    assert 1000 <= estimated.tokens <= 1040
    assert 400 <= estimated.margin <= 600


@pytest.mark.parametrize(
    "messages",
    [
        [b"[]"],
        [b"{"],
        [b'{"role": 3}'],
        [raw("user", 7)],
        [raw("user", "x"), b"null"],
        [],
        [b'{"role":"user","content":"\\ud800x"}'],
        [b'{"role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
    ],
)
@pytest.mark.parametrize("tools", [None, b"{", b"null", b"[1]"])
def test_odd_input_is_counted_somehow(messages: list[bytes], tools: bytes | None) -> None:
    parts = PromptParts(messages=messages, tools=tools)
    for counter in (exact_counter(), exact_counter(THINKING), EstimateCounter()):
        assert counter.count(parts).tokens >= 0
    assert upper_bound(parts) > 0


def test_a_failing_template_leads_to_an_estimate() -> None:
    counter = exact_counter("{{ raise_exception('roles must alternate') }}")

    assert counter.count(PromptParts(messages=LOOP)).source == "estimate"


def test_a_template_cannot_reach_the_machine() -> None:
    with pytest.raises(TemplateFailed):
        ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}").render([], None, generation_prompt=False)


def test_an_engine_that_counts_otherwise_is_followed_and_the_margin_says_so() -> None:
    counter = exact_counter()
    parts = PromptParts(messages=LOOP)
    for _ in range(3):
        counted = counter.count(parts)
        counter.learn(counted, 100 + 1)
    steady = counter.count(parts)
    counter.learn(steady, 100 + 6)
    shaken = counter.count(parts)

    assert (steady.tokens, steady.margin) == (101, 0)
    assert shaken.tokens - shaken.margin <= 101
    assert shaken.tokens + shaken.margin >= 106


SAMPLES = {
    "prose": "The governor is the missing layer: one local gateway that every agent points at. " * 30,
    "code": "def f(self, value: int) -> str:\n    if value > 10:\n        return {'a': [1, 2]}\n" * 30,
    "json": '{"id": 17, "name": "terminal", "arguments": {"path": "/tmp/a b.txt", "flags": [true, null]}}, ' * 20,
    "log": "2026-11-29T12:00:01.123Z INFO [worker-3] GET /api/v1/items/42 200 17ms\n" * 30,
    "base64": base64.b64encode(random.Random(1).randbytes(4000)).decode(),  # noqa: S311
    "hex": random.Random(1).randbytes(2000).hex(),  # noqa: S311
    "digits": "3.14159 2.71828 10 200 3000 " * 60,
    "chinese": "本产品是一个本地网关，负责管理多个智能体对同一大语言模型引擎的访问。" * 20,
    "japanese": "これはローカルゲートウェイです。すべてのターンを記録します。" * 20,
    "korean": "이것은 로컬 게이트웨이입니다. 모든 턴을 기록합니다. " * 20,
    "russian": "Это локальный шлюз, который управляет агентами. " * 20,
    "arabic": "هذه بوابة محلية تدير الوكلاء وتسجل كل دور. " * 20,
    "thai": "นี่คือเกตเวย์ท้องถิ่นที่จัดการตัวแทน" * 20,
    "hindi": "यह एक स्थानीय गेटवे है जो एजेंटों का प्रबंधन करता है। " * 20,
    "emoji": "😀🚀👩‍👩‍👧🇩🇪✨🎉" * 40,
    "white space": "    \n\n\t\t  " * 300,
    "rules": "=" * 500 + "\n" + "-" * 500,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_an_estimate_keeps_within_its_margin(name: str) -> None:
    parts = PromptParts(messages=[raw("system", "Be brief."), raw("user", SAMPLES[name])])
    truth = exact_counter().count(parts).tokens

    estimated = EstimateCounter().count(parts)

    assert estimated.lower <= truth <= estimated.upper
    assert truth <= upper_bound(parts)


def test_an_estimate_narrows_as_it_learns_and_stays_honest() -> None:
    counter, exact = EstimateCounter(), exact_counter()
    prompts = [
        PromptParts(messages=[raw("user", SAMPLES[name][: 400 + 37 * at])]) for at, name in enumerate(["prose"] * 8)
    ]
    first = counter.count(prompts[-1])
    for prompt in prompts[:-1]:
        counter.learn(counter.count(prompt), exact.count(prompt).tokens)
    last = counter.count(prompts[-1])

    truth = exact.count(prompts[-1]).tokens
    assert last.margin < first.margin
    assert last.lower <= truth <= last.upper


def test_a_reported_prefix_leaves_only_the_new_messages_to_estimate() -> None:
    exact = exact_counter()
    reported = exact.count(PromptParts(messages=LOOP[:8])).tokens
    truth = exact.count(PromptParts(messages=LOOP)).tokens

    counted = EstimateCounter().count(PromptParts(messages=LOOP, known=KnownPrefix(messages=8, prompt_tokens=reported)))

    assert counted.source == "usage"
    assert abs(truth - counted.tokens) <= counted.margin < 40


def test_a_moved_carrier_is_taken_off_a_reported_prefix() -> None:
    exact = exact_counter()
    carrier = raw("user", "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> none <<<END>>>")
    reported = exact.count(PromptParts(messages=[*LOOP[:8], carrier])).tokens
    now = [*LOOP, carrier]
    known = KnownPrefix(messages=8, prompt_tokens=reported, removed=(carrier,))

    counted = EstimateCounter().count(PromptParts(messages=now, known=known))

    truth = exact.count(PromptParts(messages=now)).tokens
    assert abs(truth - counted.tokens) <= counted.margin < 120


def test_the_very_same_prompt_is_exact_by_usage() -> None:
    known = KnownPrefix(messages=len(LOOP), prompt_tokens=777)

    counted = EstimateCounter().count(PromptParts(messages=LOOP, known=known))

    assert (counted.tokens, counted.margin) == (777, 0)


def test_a_counter_may_be_shared_between_threads() -> None:
    counter, truth = exact_counter(), exact_counter().count(PromptParts(messages=LOOP)).tokens

    def use(worker: int) -> int:
        counted = counter.count(PromptParts(messages=[*LOOP, raw("user", f"{worker} asks")]))
        counter.learn(counted, counted.tokens)
        return counter.count(PromptParts(messages=LOOP)).tokens

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(use, range(64))) == {truth}


def test_what_was_learned_of_one_kind_of_text_narrows_nothing_for_another() -> None:
    counter, exact = EstimateCounter(), exact_counter()
    for length in range(300, 600, 50):
        prompt = PromptParts(messages=[raw("user", SAMPLES["korean"][:length])])
        counter.learn(counter.count(prompt), exact.count(prompt).tokens)

    for name in ("prose", "code", "json", "log", "digits", "emoji"):
        prompt = PromptParts(messages=[raw("user", SAMPLES[name])])
        counted = counter.count(prompt)
        assert counted == EstimateCounter().count(prompt)
        assert counted.lower <= exact.count(prompt).tokens <= counted.upper
