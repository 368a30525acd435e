"""Which prompt a prepared summary is for, and when one is worth preparing."""

from __future__ import annotations

from governor.compress.heads import chain_of
from governor.compress.limits import limits_of
from governor.compress.stages.drop import Summary
from governor.gateway.prepared import Key, Prepared, PreparedBook, margin_tokens, may_prepare
from governor.gateway.summary import Written
from governor.policy.model import CompressionMode, CompressionPolicy, CompressionStage
from governor.types import AgentName, SessionId

DIGESTS = tuple(bytes([number]) * 16 for number in range(9))


def key(agent: str = "alice", session: str = "s") -> Key:
    return AgentName(agent), SessionId(session)


def prepared(covered: int, digests: tuple[bytes, ...] = DIGESTS) -> Prepared:
    summary = Summary("text", covered)
    return Prepared(chain=chain_of(digests[:covered]), written=Written(summary=summary), summary=summary)


def test_it_is_found_by_the_messages_that_it_was_written_about() -> None:
    book = PreparedBook()
    book.keep(key(), prepared(5))
    assert book.find(key(), DIGESTS) == prepared(5)
    assert book.find(key(), DIGESTS[:5]) == prepared(5)
    assert book.find(key(), DIGESTS[:4]) is None, "a branch that began earlier"
    assert book.find(key(), (*DIGESTS[:4], b"edited")) is None
    assert book.find(key("bob"), DIGESTS) is None
    assert book.find(key(session="t"), DIGESTS) is None


def test_one_for_each_conversation_and_not_more_than_so_many() -> None:
    book = PreparedBook(most=2)
    book.keep(key(), prepared(3))
    book.keep(key(), prepared(6))
    assert book.find(key(), DIGESTS) == prepared(6)
    book.keep(key("bob"), prepared(3))
    assert book.find(key(), DIGESTS) is not None  # and so it is the one used last
    book.keep(key("carol"), prepared(3))
    assert len(book) == 2
    assert book.find(key("bob"), DIGESTS) is None
    book.forget(key())
    book.forget(key())
    assert book.find(key(), DIGESTS) is None


def test_only_where_the_policy_would_use_it() -> None:
    enforced = CompressionPolicy(mode=CompressionMode.ENFORCE)
    assert may_prepare(enforced)
    assert not may_prepare(CompressionPolicy(mode=CompressionMode.OBSERVE))
    assert not may_prepare(CompressionPolicy(mode=CompressionMode.ENFORCE, stages=(CompressionStage.DROP,)))


def test_it_is_worth_it_as_far_below_the_trigger_as_a_chain_of_calls_adds() -> None:
    policy = CompressionPolicy(cooldown_tokens=4096, gain=0.1)
    assert margin_tokens(policy, limits_of(policy, 200_000)) == 20_000
    assert margin_tokens(policy, limits_of(policy, 16_384)) == 4096
