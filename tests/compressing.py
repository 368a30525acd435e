"""What the tests of compression share: sizes without a tokenizer, limits given in shares, what must hold."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from governor.compress.cuts import is_own
from governor.compress.draft import Draft, Raw
from governor.compress.limits import Limits
from governor.compress.messages import read_message
from governor.compress.plan import NoPlan, Plan, plan
from governor.compress.stages.drop import Summary
from governor.compress.validate import violations
from governor.policy.model import CompressionPolicy, CompressionStage

IMAGE_TOKENS = 1000
FRAME_TOKENS = 4
FIXED_TOKENS = 100
_DATA_URL = re.compile(rb"data:image/[a-z]+;base64,[A-Za-z0-9+/=]*")
_CARRIER = b"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
_HANDLE = re.compile(rb"gov-[0-9a-f]{16}")


def size_of(raw: Raw) -> int:
    """A quarter of the bytes and a frame; an image costs the same whatever its base64."""
    text, images = _DATA_URL.subn(b"", bytes(raw))
    return FRAME_TOKENS + len(text) // 4 + images * IMAGE_TOKENS


def limits_for(
    messages: Sequence[Raw], *, target: float = 0.5, gain: float = 0.05, recent: float = 0.15, oversized: float = 0.25
) -> Limits:
    """Limits under which these messages are just over the trigger; shares are of their tokens."""
    tokens = FIXED_TOKENS + sum(map(size_of, messages))
    return Limits(
        trigger_tokens=tokens,
        target_tokens=int(tokens * target),
        gain_tokens=max(1, int(tokens * gain)),
        recent_tokens=int(tokens * recent),
        oversized_tokens=max(1, int(tokens * oversized)),
    )


def shorten(
    messages: Sequence[Raw], limits: Limits | None = None, *, summary: Summary | None = None, **policy: Any
) -> Plan | NoPlan:
    return plan(
        messages,
        [size_of(raw) for raw in messages],
        size_of=size_of,
        fixed_tokens=FIXED_TOKENS,
        policy=CompressionPolicy(**policy),
        limits=limits or limits_for(messages),
        summary=summary,
    )


def shortened(
    messages: Sequence[Raw], limits: Limits | None = None, *, summary: Summary | None = None, **policy: Any
) -> Plan:
    made = shorten(messages, limits, summary=summary, **policy)
    assert isinstance(made, Plan), str(made)
    check(messages, made, limits or limits_for(messages))
    return made


def only(*stages: CompressionStage) -> tuple[CompressionStage, ...]:
    return stages


def draft_of(messages: Sequence[Raw], limits: Limits | None = None, **policy: Any) -> Draft:
    """A draft as a plan makes it, for a stage alone."""
    return Draft(
        messages,
        [size_of(raw) for raw in messages],
        size_of=size_of,
        fixed_tokens=FIXED_TOKENS,
        policy=CompressionPolicy(**policy),
        limits=limits or limits_for(messages, recent=0),
    )


def content(raw: Raw) -> Any:
    return msgspec.json.decode(raw)["content"]


def check(before: Sequence[Raw], made: Plan, limits: Limits) -> None:
    """All that must hold of every plan."""
    after = made.messages
    assert made.before_tokens == FIXED_TOKENS + sum(map(size_of, before))
    assert made.after_tokens == FIXED_TOKENS + sum(map(size_of, after))
    assert made.after_tokens <= limits.target_tokens
    assert made.before_tokens - made.after_tokens >= limits.gain_tokens
    assert sum(made.freed_by_stage.values()) == made.before_tokens - made.after_tokens
    kept = [origin for origin in made.origins if origin is not None]
    assert kept == sorted(set(kept))
    assert len(made.origins) - len(kept) <= 1
    _check_bytes(before, made)
    _check_protected(before, kept, made)
    _check_pairs(before, kept)
    _check_contents(before, made)
    faults = [each.rule for each in violations(map(read_message, before))]
    for each in violations(map(read_message, after)):
        assert each.rule in faults, str(each)
    _check_reachable(before, made)


def _check_bytes(before: Sequence[Raw], made: Plan) -> None:
    """What was not edited is the very same value; all behind what is covered, too."""
    edited = {done.index for done in made.done}
    for raw, origin in zip(made.messages, made.origins, strict=True):
        if origin is not None and origin not in edited:
            assert raw is before[origin]
    assert list(made.messages[len(made.messages) - (len(before) - made.covered) :]) == list(before[made.covered :])


def _check_protected(before: Sequence[Raw], kept: Sequence[int], made: Plan) -> None:
    present = {origin: raw for raw, origin in zip(made.messages, made.origins, strict=True) if origin is not None}
    roles = [read_message(raw).role for raw in before]
    users = [i for i, role in enumerate(roles) if role == "user" and _is_own_word(before[i])]
    instructions = [i for i, role in enumerate(roles) if role in {"system", "developer"}]
    for index in (*users[:1], *users[-1:], *instructions):
        assert present[index] is before[index]
    assert kept[-1] == len(before) - 1
    if users:
        last_user = [raw for raw in made.messages if read_message(raw).role == "user" and _CARRIER not in bytes(raw)][
            -1
        ]
        assert last_user is before[users[-1]]


def _is_own_word(raw: Raw) -> bool:
    """The user's, and neither a client's carrier nor a record of ours."""
    return _CARRIER not in bytes(raw) and b'"content":"[record, not a task: ' not in bytes(raw)


def _check_pairs(before: Sequence[Raw], kept: Sequence[int]) -> None:
    """Where every result directly follows its calls, both stay or both go."""
    present = set(kept)
    asking = None
    for index, raw in enumerate(before):
        message = read_message(raw)
        if message.role == "assistant" and message.has_calls:
            asking = index
        elif message.role != "tool":
            asking = None
        elif asking is not None:
            assert (asking in present) == (index in present)


def _check_contents(before: Sequence[Raw], made: Plan) -> None:
    """Calls are as they were; only reasoning and thinking left an assistant message; trimmed JSON is JSON."""
    cut = {done.index for done in made.done if done.stage in {CompressionStage.TRIM, CompressionStage.OVERSIZED}}
    for raw, origin in zip(made.messages, made.origins, strict=True):
        if origin is None:
            assert read_message(raw).role in {"user", "assistant"}
            continue
        now, then = read_message(raw), read_message(before[origin])
        assert (now.role, now.tool_call_id) == (then.role, then.tool_call_id)
        assert bytes(now.tool_calls) == bytes(then.tool_calls)
        if origin in cut and isinstance(content(before[origin]), str) and _is_json(content(before[origin])):
            text = content(raw)
            assert _is_json(text) or is_own(text)


def _check_reachable(before: Sequence[Raw], made: Plan) -> None:
    """Each handle leads somewhere, and each content that is no longer as it was is behind a handle in the prompt. Only
    reasoning leaves without a word."""
    prompt = b"".join(map(bytes, made.messages))
    handles = {left.handle for left in made.left}
    assert len(handles) == len(made.left)
    named = {handle.decode() for handle in _HANDLE.findall(prompt)}
    assert named - {handle.decode() for handle in _HANDLE.findall(b"".join(map(bytes, before)))} <= handles
    reachable = {bytes(value) for left in made.left if left.handle in named for value in left.values}
    present = {origin: read_message(raw) for raw, origin in zip(made.messages, made.origins, strict=True)}
    stages = {done.index: done.stage for done in made.done}
    for index, raw in enumerate(before):
        if index not in present:
            assert bytes(raw) in reachable
        elif bytes(present[index].content) != bytes(read_message(raw).content):
            assert stages[index] is CompressionStage.REASONING or bytes(read_message(raw).content) in reachable


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list | dict)
    except (ValueError, RecursionError):
        return False
