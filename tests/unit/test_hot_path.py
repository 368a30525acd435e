"""What a turn and a chunk cost is counted, not timed: calls, digests, bytes allocated."""

from __future__ import annotations

import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest

from bench.conversation import Conversation
from bench.hot_chunks import GUARDED, PIECES, PLAIN, chunk_us, reads_of
from bench.hot_steps import MODEL, Stopwatch, Way, way
from governor.tokens.digests import digest_message
from governor.wire.jsonobject import JsonObject


@contextmanager
def counted() -> Iterator[Counter[CodeType | str]]:
    """Calls of functions of Python by their code, and ``"all"`` that were made from Python, on this thread."""
    calls: Counter[CodeType | str] = Counter()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1
        if event in {"call", "c_call"}:
            calls["all"] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def _known(found: Way, prompt_tokens: int) -> Conversation:
    """A conversation that has been at the gateway twice, and has grown since."""
    talk = Conversation(prompt_tokens, seed="counted", model=MODEL)
    for _ in range(2):
        await found.go(talk.body(), Stopwatch(), beside=False)
        talk.grow()
    return talk


async def test_a_turn_of_a_long_conversation_takes_no_more_calls_than_one_of_a_short_one(tmp_path: Path) -> None:
    made = {}
    for prompt_tokens in (10_000, 100_000):
        (folder := tmp_path / str(prompt_tokens)).mkdir()
        async with way(folder) as found:
            talk = await _known(found, prompt_tokens)
            body = talk.body()
            with counted() as calls:
                await found.go(body, Stopwatch(), beside=False)
        made[prompt_tokens] = calls
    few, many = made[10_000], made[100_000]
    assert many["all"] < few["all"] * 1.05
    assert many["all"] < 2500
    for calls in (few, many):
        assert calls[digest_message.__code__] == 2  # the call and its result
        assert calls[JsonObject.__init__.__code__] == 1


async def test_a_turn_copies_its_body_when_it_is_put_together_and_when_it_is_edited(tmp_path: Path) -> None:
    async with way(tmp_path) as found:
        talk = await _known(found, 100_000)
        body = talk.body()
        tracemalloc.start()
        try:
            await found.go(body, Stopwatch(), beside=False)
            _, most_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    as_sent, edited, all_else = 1.0, 1.0, 0.3
    assert most_bytes < len(body) * (as_sent + edited + all_else)


@pytest.mark.parametrize(("looked_for", "most_calls"), [(PLAIN, 36), (GUARDED, 50), (PIECES, 77)])
async def test_a_chunk_takes_so_many_calls_however_many_were_before_it(looked_for: str, most_calls: int) -> None:
    made = []
    for chunks in (100, 200, 400):
        reads = reads_of(chunks, 1)
        with counted() as calls:
            await chunk_us(looked_for, reads, chunks)
        made.append(calls["all"])
    first, second = (made[1] - made[0]) / 100, (made[2] - made[1]) / 200
    assert first == pytest.approx(second, rel=0.05)
    assert second <= most_calls
