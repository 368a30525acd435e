"""Compression under any history: what is accepted keeps every promise, whatever clients send."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bench.histories import TEXTS, asks, call, message, result, seeded
from governor.compress.cuts import Note
from governor.compress.draft import Draft
from governor.compress.limits import Limits
from governor.compress.messages import read_message
from governor.compress.plan import NoPlan, NoPlanReason, Plan
from governor.compress.rounds import Hold, rounds_of
from governor.compress.stages import EDITS
from governor.compress.stages.drop import Summary
from governor.compress.trimming import trim_text
from governor.policy.model import CompressionStage
from tests.compressing import FIXED_TOKENS, check, content, draft_of, shorten, size_of

NOTE = Note("gov-0123456789abcdef")
IDS = st.sampled_from(["a", "call_0", "call0", "call-1", "b", ""])
UNICODE = st.text(st.characters(codec="utf-8"), max_size=60).map(lambda text: text * 40)
CARRIER = message("user", "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> none <<<END_OPENCLAW_INTERNAL_CONTEXT>>>")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=8), inner, max_size=12),
    max_leaves=60,
)


@st.composite
def outputs(draw: st.DrawFn) -> str:
    """A tool's output: of any kind, of any length; now and then one that was there before."""
    make = draw(st.sampled_from(TEXTS))
    return draw(
        st.one_of(UNICODE, JSON.map(json.dumps), st.just(make(seeded(draw(st.integers(0, 3))), 40)), st.just("ok"))
    )


@st.composite
def steps(draw: st.DrawFn) -> list[bytes]:
    """An assistant message with calls, and what comes back: all of it, a part, in any order, under other ids."""
    ids = draw(st.lists(IDS, min_size=1, max_size=3))
    fields: dict[str, Any] = draw(st.sampled_from([{}, {}, {"reasoning_content": "thought " * 200}]))
    raws = [
        asks(*(call(each, draw(st.sampled_from(["read", "run"])), n=draw(st.integers(0, 2))) for each in ids), **fields)
    ]
    answered = draw(st.permutations(ids)) if draw(st.booleans()) else ids[: draw(st.integers(0, len(ids)))]
    for each in answered:
        if draw(st.integers(0, 9)) == 0:
            raws.append(message("user", "wait " * draw(st.integers(1, 300))))
        raws.append(result(each, draw(outputs())))
    return raws


@st.composite
def parts(draw: st.DrawFn) -> list[bytes]:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * draw(st.integers(1, 900))}}
    text = draw(st.sampled_from(["a", "b"])) * draw(st.integers(1, 3000))
    return draw(
        st.sampled_from(
            [
                [message("user", text)],
                [message("user", [image, {"type": "text", "text": text}])],
                [message("assistant", f"<think>{text}</think>{text}")],
                [message("assistant", text, reasoning=text)],
                [message("assistant", text), message("user", text)],
                [message("system", text)],
                [message("developer", "d")],
                [result("lost", text)],
                [CARRIER],
                [b'{"role":"tool","content":"x","content":"' + text.encode() + b'"}'],
                [b'{"role":"assistant","content":"\\ud800"}'],
                [b"[]"],
            ]
        )
    )


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    body = draw(st.lists(st.one_of(steps(), steps(), steps(), parts()), min_size=1, max_size=14))
    head = [message("system", "rules " * 50)] if draw(st.booleans()) else []
    end = draw(st.sampled_from([[], [message("user", "last")], [CARRIER], [message("user", "last"), CARRIER]]))
    return [*head, message("user", "first"), *(raw for each in body for raw in each), *end]


@st.composite
def limits(draw: st.DrawFn, messages: list[bytes]) -> Limits:
    tokens = FIXED_TOKENS + sum(map(size_of, messages))
    return Limits(
        trigger_tokens=draw(st.sampled_from([1, tokens, tokens + 1])),
        target_tokens=draw(st.integers(max(1, tokens // 3), tokens)),
        gain_tokens=draw(st.integers(1, max(1, tokens // 4))),
        recent_tokens=draw(st.integers(0, tokens)),
        oversized_tokens=draw(st.integers(1, tokens)),
    )


@st.composite
def summaries(draw: st.DrawFn, messages: list[bytes]) -> Summary:
    return Summary(draw(st.one_of(st.just(""), st.just("s"), UNICODE)), draw(st.integers(0, len(messages))))


def _check_summarised(made: Plan, summary: Summary) -> None:
    """It is there, once, and stands for nothing that it was not written about."""
    (at,) = (index for index, origin in enumerate(made.origins) if origin is None)
    assert summary.text in content(made.messages[at])
    gone = set(range(max(each for each in made.origins if each is not None))) - set(made.origins)
    if CompressionStage.DROP not in made.freed_by_stage:
        assert max(gone) < summary.covered


@settings(max_examples=160, deadline=None)
@given(st.data())
def test_what_is_accepted_keeps_every_promise(data: st.DataObject) -> None:
    messages = data.draw(histories())
    sizes = data.draw(limits(messages))
    policy: dict[str, Any] = {
        "stages": tuple(data.draw(st.permutations(list(CompressionStage))))[
            : data.draw(st.sampled_from([9, 9, 9, 4, 1]))
        ],
        "stub_over_tokens": data.draw(st.sampled_from([1, 50, 300])),
        "trim_over_tokens": data.draw(st.sampled_from([300, 2000])),
        "trim_target_tokens": data.draw(st.sampled_from([50, 200])),
        "protected_tools": data.draw(st.sampled_from([(), ("read",)])),
    }
    policy["summary"] = summary = data.draw(st.none() | summaries(messages))
    made = shorten(messages, sizes, **policy)
    assert shorten(messages, sizes, **policy) == made
    if isinstance(made, Plan):
        event("accepted")
        check(messages, made, sizes)
        if summary is not None and CompressionStage.SUMMARY in made.freed_by_stage:
            event("summarised")
            _check_summarised(made, summary)
        again = shorten(made.messages, sizes, **policy)
        assert isinstance(again, NoPlan)
        assert again.reason is NoPlanReason.BELOW_TRIGGER
    else:
        event(made.reason)
        assert made.reason is not NoPlanReason.INVALID
        assert made.best_tokens <= made.before_tokens
        goal = min(sizes.target_tokens, made.before_tokens - sizes.gain_tokens)
        assert made.reason is NoPlanReason.BELOW_TRIGGER or made.best_tokens > goal


@settings(max_examples=80, deadline=None)
@given(histories(), st.sampled_from(sorted(EDITS)), st.sampled_from([Hold.FREE, Hold.RECENT]))
def test_each_stage_finds_nothing_a_second_time(messages: list[bytes], stage: CompressionStage, reach: Hold) -> None:
    draft = draft_of(messages)
    draft.reach_to(reach)
    _apply_all(draft, stage)
    before = list(draft.raws)
    _apply_all(draft, stage)
    assert draft.raws == before
    assert draft.tokens == FIXED_TOKENS + sum(size_of(draft.current(index)) for index in range(len(messages)))


@settings(max_examples=80, deadline=None)
@given(histories())
def test_every_message_is_in_one_unit_and_results_with_their_calls(messages: list[bytes]) -> None:
    read = [read_message(raw) for raw in messages]
    rounds = rounds_of(read)
    units = [unit for each in rounds.rounds for unit in each.units]
    assert [index for unit in units for index in range(unit.start, unit.end)] == list(range(len(messages)))
    for index, answered in rounds.calls.items():
        unit = next(unit for unit in units if unit.start <= index < unit.end)
        asking = [read[each] for each in range(unit.start, index) if read[each].has_calls]
        assert any(f'"id":"{answered.id}"'.encode() in bytes(each.tool_calls) for each in asking)


@settings(max_examples=120, deadline=None)
@given(JSON.filter(lambda value: isinstance(value, list | dict)), st.integers(1, 3000), st.booleans())
def test_trimmed_json_is_json_of_the_same_type(value: Any, keep: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert type(json.loads(trim_text(text, keep, NOTE))) is type(value)


@settings(max_examples=120, deadline=None)
@given(st.one_of(UNICODE, outputs()), st.integers(1, 4000))
def test_trimmed_texts_are_text_and_near_their_size(text: str, keep: int) -> None:
    trimmed = trim_text(text, keep, NOTE)
    assert trimmed == text if len(text) <= keep else len(trimmed) <= max(keep, 120) + 150
    trimmed.encode()


@given(st.binary(max_size=300), st.integers(0, 10**6))
def test_no_bytes_raise(noise: bytes, seed: int) -> None:
    random_ = random.Random(seed)  # noqa: S311
    good = asks(call("a"))
    cut = good[: random_.randrange(len(good))]
    for raw in (noise, cut, b'{"role":"assistant","tool_calls":' + msgspec.json.encode(noise.hex()) + b"}"):
        shorten([message("user", "u"), raw, result("a", "x" * 3000), message("user", "last")])


def _apply_all(draft: Draft, stage: CompressionStage) -> None:
    for edit in EDITS[stage](draft):
        draft.apply(edit)
