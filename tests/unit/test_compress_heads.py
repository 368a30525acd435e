"""Which head a prompt goes on with, and what a new one stands for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.histories import asks, call, message, result
from governor.compress.heads import Covering, HeadBook, chain_of, find, frozen, leading
from governor.compress.limits import Limits
from governor.compress.messages import read_message
from governor.compress.plan import Plan
from governor.policy.model import CompressionStage
from tests.compressing import only, shorten, size_of

LONG = "what came out, line by line " * 60


def head(covered: int, *, exact: Sequence[bytes], loose: Sequence[bytes] = (), of: bytes = b"head") -> Covering:
    loosely = loose or exact
    return Covering(
        covered=covered, chain=chain_of(exact[:covered]), loose_chain=chain_of(loosely[:covered]), messages=(of,)
    )


def roles_of(messages: Sequence[bytes]) -> list[str]:
    return [read_message(raw).role or "" for raw in messages]


def limits(target_tokens: int) -> Limits:
    return Limits(
        trigger_tokens=1, target_tokens=target_tokens, gain_tokens=1, recent_tokens=0, oversized_tokens=1_000_000
    )


def stubbed(messages: Sequence[bytes], *, freeing: int) -> Plan:
    """Results replaced, the oldest first, until so many tokens are free."""
    tokens = 100 + sum(map(size_of, messages))
    made = shorten(messages, limits(tokens - freeing), stages=only(CompressionStage.STUB))
    assert isinstance(made, Plan), made
    return made


def loop(steps: int) -> list[bytes]:
    """One call and its result, so many times."""
    messages = [message("system", "rules"), message("user", "do it")]
    for n in range(steps):
        messages += [asks(call(f"call_{n}", "run", n=n)), result(f"call_{n}", f"{n}: {LONG}")]
    return messages


class TestFind:
    def test_the_one_that_covers_most(self) -> None:
        digests = [b"a", b"b", b"c", b"d"]
        short, long = head(2, exact=digests, of=b"short"), head(3, exact=digests, of=b"long")
        for heads in ([short, long], [long, short]):
            found = find(heads, digests, lambda: digests)
            assert found is not None
            assert (found.head, found.exactly) == (long, True)

    def test_what_is_found_exactly_needs_no_loose_digests(self) -> None:
        digests = [b"a", b"b", b"c"]

        def never() -> list[bytes]:
            raise AssertionError("asked for")

        found = find([head(1, exact=digests), head(3, exact=digests)], digests, never)
        assert found is not None
        assert found.exactly

    def test_a_rewritten_message_does_not_bring_back_an_older_head(self) -> None:
        """A client drops the reasoning of its last answers at the next question: the head that was made of them is
        still the one to go on with, though an older one is there byte for byte."""
        before, now, meaning = [b"a", b"b", b"c"], [b"a", b"b", b"c without reasoning", b"d"], [b"A", b"B", b"C", b"D"]
        older, newer = head(1, exact=before, loose=meaning), head(3, exact=before, loose=meaning)
        found = find([older, newer], now, lambda: meaning)
        assert found is not None
        assert (found.head, found.exactly) == (newer, False)

    def test_another_branch_goes_on_from_what_it_shares(self) -> None:
        shared, other = head(1, exact=[b"a"]), head(3, exact=[b"a", b"b", b"c"])
        found = find([shared, other], [b"a", b"x", b"y"], lambda: [b"a", b"x", b"y"])
        assert found is not None
        assert (found.head, found.exactly) == (shared, True)

    def test_none(self) -> None:
        assert find([], [b"a"], lambda: [b"a"]) is None
        assert find([head(2, exact=[b"a", b"b"])], [b"a"], lambda: [b"a"]) is None


class TestFrozen:
    def test_the_first_head_ends_where_the_plan_does(self) -> None:
        messages = loop(8)
        made = stubbed(messages, freeing=1000)
        start = leading(roles_of(messages))
        covered, kept = frozen(None, made, roles_of(messages))
        assert covered == made.covered - start
        assert [*messages[:start], *kept, *messages[start + covered :]] == list(made.messages)

    def test_a_plan_within_the_old_head_keeps_the_rest_of_it(self) -> None:
        """The old head has messages that are as the client sent them; a later plan that ends before them must not cost
        the prompt what nothing has replaced."""
        client = loop(12)
        start = leading(roles_of(client))
        old = Covering(covered=20 - start, chain=b"", loose_chain=b"", messages=tuple(client[start:20]))
        made = stubbed(client, freeing=600)
        assert made.covered < 20
        covered, kept = frozen(old, made, roles_of(client))
        assert covered == old.covered
        assert [*client[:start], *kept, *client[start + covered :]] == list(made.messages)

    def test_a_plan_that_goes_beyond_it_counts_from_the_clients_side(self) -> None:
        client = loop(12)
        now = [*client[:2], message("assistant", "a record"), *client[10:]]
        start = leading(roles_of(client))
        old = Covering(covered=10 - start, chain=b"", loose_chain=b"", messages=tuple(now[start:3]))
        made = stubbed(now, freeing=1000)
        covered, kept = frozen(old, made, roles_of(now))
        assert covered == made.covered - start + 7
        assert [*client[:start], *kept, *client[start + covered :]] == list(made.messages)

    @pytest.mark.parametrize("freeing", [100, 600])
    def test_no_call_is_parted_from_its_results(self, freeing: int) -> None:
        """A client that sends its ids on without punctuation would make orphans of those behind the border."""
        ids = ["call_1", "call_2", "call_3"]
        client = [message("user", "do it"), asks(*(call(each, "run", n=n) for n, each in enumerate(ids)))]
        client += [result(each, f"{each}: {LONG}") for each in ids]
        client += [message("assistant", "done"), message("user", "and now?")]
        made = stubbed(client, freeing=freeing)
        assert made.covered < 5
        covered, kept = frozen(None, made, roles_of(client))
        assert covered == len(kept) == 5


def test_the_book_is_bounded() -> None:
    book = HeadBook(most_bytes=100, per_conversation=2)
    for n in range(5):
        book.add("one", head(1, exact=[b"a"], of=bytes([n]) * 30))
    assert [each.messages[0][0] for each in book.of("one")] == [3, 4]
    book.add("two", head(1, exact=[b"a"], of=b"x" * 60))
    assert "one" not in book
    assert book.of("one") == ()
    book.check_integrity()
