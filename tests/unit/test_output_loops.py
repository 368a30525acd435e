"""Degenerate loops are found, and nothing else is."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from governor.output.loops import Loop, LoopDetector

CHARS = 2_000


def fed(text: str, step: int = 37, chars: int = CHARS) -> tuple[Loop | None, int]:
    """The first loop, and how many characters had been fed by then."""
    detector = LoopDetector(chars)
    for at in range(0, len(text), step):
        loop = detector.feed(text[at : at + step])
        if loop is not None:
            return loop, at + step
    return None, len(text)


@given(piece=st.text(min_size=1, max_size=200), step=st.integers(1, 500), before=st.text(max_size=3_000))
def test_a_piece_again_and_again_is_found_soon(piece: str, step: int, before: str) -> None:
    loop, at = fed(before + piece * (2 * CHARS // len(piece) + 2), step)
    assert loop is not None
    assert at <= len(before) + CHARS + CHARS // 8 + 2 * step + len(piece)
    doubled = loop.piece * 2
    assert piece in doubled or loop.piece in piece * 2


def test_what_only_looks_alike_is_let_be() -> None:
    rng = random.Random(5)  # noqa: S311 - text
    counting = "".join(f"Item {number}: done.\n" for number in range(2_000))
    table = "".join(f"| {rng.randrange(10**6):>8} | {rng.choice('abcdef')} |\n" for _ in range(2_000))
    prose = " ".join(rng.choice(("the", "engine", "waits", "for", "a", "page", "of", "memory")) for _ in range(9_000))
    base64 = "".join(
        rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") for _ in range(9_000)
    )
    for text in (counting, table, prose, base64):
        assert fed(text) == (None, len(text))


def test_a_rule_or_a_short_repetition_is_let_be() -> None:
    assert fed("-" * (CHARS - 1) + "\nafter the rule\n" * 3)[0] is None
    assert fed("ha" * 300 + "".join(chr(97 + n % 26) * (n % 7 + 1) for n in range(4_000)))[0] is None


def test_a_long_period_is_no_loop() -> None:
    paragraph = "".join(chr(97 + (n * n) % 26) for n in range(CHARS // 4))
    assert fed(paragraph * 20)[0] is None


def test_nought_switches_it_off() -> None:
    assert fed("a" * 100_000, chars=0)[0] is None
