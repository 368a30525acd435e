"""What is accepted is a prompt for the models' own templates, too: it renders, and what is protected stands in it as it
was said."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bench.histories import SHAPES, message
from governor.compress.draft import Raw
from governor.compress.messages import read_message
from governor.compress.plan import Plan
from governor.policy.model import CompressionStage
from governor.tokens.breaks import CARRIER_MARK
from governor.tokens.digests import decode_fields, text_of
from governor.tokens.template import LLAMA_CPP, SGLANG, ChatTemplate, TemplateFailed
from governor.wire.request import parse
from serve.install.cpu import STAND_INS
from serve.sglang_cpu import ENGINE_PATH
from tests.compressing import limits_for, shorten, shortened
from tests.model_files import recorded
from tests.property.test_compress import histories
from tests.replay.recorded import RecordedRequest
from tests.unit.test_compress_exact import QWEN_LIKE
from tests.unit.test_compress_plan import LONG_SESSIONS

SMOLLM2 = "SmolLM2, llama.cpp"
TEMPLATES = [SMOLLM2, "tiny Qwen3.5, SGLang", "as strict as Qwen3, SGLang"]


@cache
def template(name: str) -> ChatTemplate:
    """The embedded model's, that of the model that SGLang serves on the CPU, and one that refuses what Qwen3's does."""
    if name == SMOLLM2:
        return ChatTemplate(recorded().chat_template, bos="<|im_start|>", eos="<|im_end|>", rules=LLAMA_CPP)
    if name.startswith("tiny"):
        return ChatTemplate((ENGINE_PATH / STAND_INS / "chat_template.jinja").read_text(), rules=SGLANG)
    return ChatTemplate(QWEN_LIKE, rules=SGLANG)


def rendered(name: str, messages: Sequence[Raw]) -> str:
    """The prompt. Raises :class:`TemplateFailed`."""
    fields = [decode_fields(bytes(raw)) or {} for raw in messages]
    return template(name).render([template(name).prepare(each) for each in fields], None, generation_prompt=True)


def protected_texts(messages: Sequence[Raw]) -> list[str]:
    """Each text of the instructions, of the first and of the last word of the user."""
    roles = [read_message(raw).role for raw in messages]
    users = [at for at, role in enumerate(roles) if role == "user" and CARRIER_MARK not in bytes(messages[at])]
    instructions = [at for at, role in enumerate(roles) if role in {"system", "developer"}]
    contents = [
        (decode_fields(bytes(messages[at])) or {})["content"] for at in (*instructions, *users[:1], *users[-1:])
    ]
    return [text for content in contents for text in _texts(content) if text]


def _texts(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [text_of([part]) for part in content]


def check_rendered(name: str, before: Sequence[Raw], made: Plan) -> None:
    prompt = rendered(name, made.messages)
    texts = protected_texts(before)
    assert texts
    for text in texts:
        assert text in prompt
    handles = {left.handle for left in made.left if left.handle.encode() in b"".join(map(bytes, made.messages))}
    assert handles or {done.stage for done in made.done} == {CompressionStage.REASONING}
    for handle in handles:
        assert handle in prompt, "what the messages name, the model sees"


@pytest.mark.parametrize("target", [0.75, 0.5, 0.25])
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "all in the protected tail"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_shape_renders(name: str, shape: str, target: float) -> None:
    messages = SHAPES[shape]()
    check_rendered(name, messages, shortened(messages, limits_for(messages, target=target)))


@pytest.mark.parametrize("each", LONG_SESSIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("target", [0.9, 0.7, 0.5])
@pytest.mark.parametrize("name", TEMPLATES)
def test_recorded_sessions_render(name: str, each: RecordedRequest, target: float) -> None:
    messages = parse(each.endpoint, each.body).messages
    check_rendered(name, messages, shortened(messages, limits_for(messages, target=target)))


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(TEMPLATES))
def test_whatever_rendered_before_renders_after(data: st.DataObject, name: str) -> None:
    """Clients send what a template refuses, and worse; only what it took can it be expected to take again."""
    messages = [raw for raw in data.draw(histories()) if decode_fields(raw) is not None]
    try:
        rendered(name, messages)
    except TemplateFailed:
        event("refused as the client sent it")
        return
    target = data.draw(st.sampled_from([0.95, 0.8, 0.6]))
    made = shorten(messages, limits_for(messages, target=target, gain=0.01, recent=0.05), stub_over_tokens=50)
    if not isinstance(made, Plan):
        event("no plan")
        return
    event("accepted")
    prompt = rendered(name, made.messages)
    for text in protected_texts(messages):
        assert text in prompt


def test_a_template_that_refuses_is_heard() -> None:
    """The check can fail: a result without its call, and a prompt without the user's word."""
    orphan = msgspec.json.encode({"role": "tool", "tool_call_id": "a", "content": "x"})
    with pytest.raises(TemplateFailed, match="follows no call"):
        rendered(TEMPLATES[-1], [message("user", "u"), orphan])
    assert protected_texts([message("system", "s"), message("user", "a"), message("user", "b"), orphan]) == [
        "s",
        "a",
        "b",
    ]
