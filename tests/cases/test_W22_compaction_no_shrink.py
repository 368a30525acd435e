"""W22 compaction-no-shrink, the deciding half: only a measured shrink counts, attempts are bounded, and what a summary
cannot do the deterministic stages do.

What a client sees of it is for the gateway's half.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from governor.compress.limits import Limits, limits_of
from governor.compress.plan import Plan
from governor.compress.verify import Attempt, Outcome, Permit, Record, can_try, digest_prompt, judge
from governor.policy.model import CompressionPolicy
from tests.compressing import FIXED_TOKENS, check, shorten, size_of
from tests.scenario import CaseVariant, load_case

CASE = load_case("W22")
POLICY = CompressionPolicy(gain=0.1, attempts=3)


def messages_of(variant: CaseVariant) -> list[bytes]:
    assert variant.request is not None
    return [msgspec.json.encode(each) for each in variant.request.body["messages"]]


def tokens_of(messages: list[bytes]) -> int:
    return FIXED_TOKENS + sum(map(size_of, messages))


def after_summary(variant: CaseVariant, messages: list[bytes]) -> list[bytes] | None:
    """The prompt with the middle replaced by what the summary call brought; ``None`` where it brought nothing."""
    if variant.summary_stub == "echo_input":
        summary: Any = b"".join(messages[2:-1]).decode()
    elif variant.v == "boilerplate":
        summary = "No changes were necessary."
        return [*messages[:-1], msgspec.json.encode({"role": "assistant", "content": summary}), messages[-1]]
    else:
        return None
    return [*messages[:2], msgspec.json.encode({"role": "assistant", "content": summary}), messages[-1]]


@pytest.mark.parametrize("variant", CASE.variants, ids=lambda variant: variant.v)
def test_W22_what_does_not_shrink_is_not_accepted_and_ends(variant: CaseVariant) -> None:
    window = variant.policy["window"]
    attempts = variant.policy["max_attempts"]
    limits = limits_of(msgspec.structs.replace(POLICY, gain=variant.policy["min_gain"]), window)
    messages, record, made = messages_of(variant), Record(), 0
    while True:
        digest, tokens = digest_prompt(messages), tokens_of(messages)
        permit = can_try(record, digest, tokens, limits=limits, attempts=attempts, cooldown_tokens=0)
        if permit is Permit.FAILED_BEFORE:  # the client says something more and tries again
            messages = [*messages, msgspec.json.encode({"role": "user", "content": f"again {made}"})]
            continue
        if permit is not Permit.TRY:
            break
        made += 1
        outcome, record = judge(record, _attempt(messages, after_summary(variant, messages)), limits)
        assert outcome is not Outcome.ACCEPTED
    assert permit is Permit.STOPPED
    assert made == attempts


@pytest.mark.parametrize("variant", CASE.variants, ids=lambda variant: variant.v)
def test_W22_the_deterministic_stages_are_accepted(variant: CaseVariant) -> None:
    limits = limits_of(POLICY, variant.policy["window"])
    messages = messages_of(variant)
    made = shorten(messages, limits)
    assert isinstance(made, Plan)
    check(messages, made, limits)
    outcome, record = judge(Record(), _attempt(messages, [bytes(raw) for raw in made.messages]), limits)
    assert outcome is Outcome.ACCEPTED
    assert record.misses == 0


def test_W22_equal_and_larger_results_are_no_success() -> None:
    limits = Limits(trigger_tokens=100, target_tokens=200, gain_tokens=10, recent_tokens=0, oversized_tokens=50)
    for after in (169, 160, 170, 200):
        attempt = Attempt(before_digest=b"a", before_tokens=169, after_digest=b"b", after_tokens=after)
        assert judge(Record(), attempt, limits)[0] is Outcome.GAIN_TOO_SMALL


def _attempt(before: list[bytes], after: list[bytes] | None) -> Attempt:
    return Attempt(
        before_digest=digest_prompt(before),
        before_tokens=tokens_of(before),
        after_digest=None if after is None else digest_prompt(after),
        after_tokens=0 if after is None else tokens_of(after),
    )
