"""Which answers are remembered, and as what: read alongside, as the client gets them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from governor.gateway.history import Ask, History
from governor.output.history import Asked, Kept
from governor.wire import sse
from serve.engine import EngineAnswer, TokenIds

IDS = TokenIds((1, 2, 3), (4, 5))
KEY = b"k"


class Answer:
    """An engine's answer, as it is told here."""

    def __init__(self, chunks: Sequence[bytes], content_type: str, status: int = 200) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": content_type}
        self._chunks = chunks

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


def event(**fields: Any) -> bytes:
    return sse.encode(msgspec.json.encode({"id": "c", "created": 1, "model": "m"} | fields))


def shown(finish: str | None = None, **delta: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


USAGE = event(choices=[], usage={"completion_tokens": 2, "reasoning_tokens": 1})
DONE = sse.encode(b"[DONE]")
WHOLE = [shown(role="assistant"), shown(reasoning_content="Hm."), shown(content="Hi"), shown("stop"), USAGE, DONE]


async def remembered(
    answer: EngineAnswer, told: Sequence[TokenIds] = (IDS,), flags: Sequence[str] = (), **asked: Any
) -> Kept | None:
    history, ask = History(), Ask(asked=Asked(rendering=b"", key=KEY, **asked))
    listener = history.listener(ask, flags)
    for ids in told:
        listener.on_ids(ids)

    @asynccontextmanager
    async def opened() -> AsyncIterator[EngineAnswer]:
        yield answer

    async with listener.heard(opened()) as heard:
        assert (heard.status, heard.headers) == (answer.status, answer.headers)
        got = [chunk async for chunk in heard.chunks()]
    assert got == [chunk async for chunk in answer.chunks()]
    return history.book.find(KEY)


def stream(*chunks: bytes) -> Answer:
    return Answer(chunks, "text/event-stream; charset=utf-8")


async def test_a_stream_is_remembered_as_its_message_however_it_is_cut() -> None:
    raw = b"".join(WHOLE)
    for size in (1, 7, len(raw)):
        kept = await remembered(stream(*(raw[at : at + size] for at in range(0, len(raw), size))), carrier_tokens=10)
        assert kept is not None
        assert (list(kept.ids), kept.output_tokens, kept.beyond_tokens) == ([1, 2, 3, 4, 5], 2, 11)
        message = msgspec.json.decode(kept.shown)
        assert (message["content"], message["reasoning_content"]) == ("Hi", "Hm.")


async def test_a_whole_answer_is_remembered_too() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    kept = await remembered(Answer([msgspec.json.encode({"choices": [choice]})], "application/json"))
    assert kept is not None
    assert list(kept.ids) == [1, 2, 3, 4, 5]


async def test_several_generations_are_one_answer() -> None:
    went_on = TokenIds((1, 2, 3, 4), (6, 7))  # the second token of the first was not kept
    kept = await remembered(stream(*WHOLE), [IDS, went_on, TokenIds((1, 2, 3, 4, 6, 7), (8,))])
    assert kept is not None
    assert (list(kept.ids), kept.output_tokens) == ([1, 2, 3, 4, 6, 7, 8], 4)


@pytest.mark.parametrize(
    "answer",
    [
        stream(*WHOLE[:-1]),
        stream(*WHOLE[:3], DONE),
        stream(*WHOLE[:3], event(error={"message": "no"}), DONE),
        stream(*WHOLE[:3], shown("abort"), DONE),
        Answer([b'{"error": {"message": "no"}}'], "application/json"),
        Answer([b"no"], "application/json"),
        Answer([*WHOLE], "text/event-stream", status=500),
    ],
    ids=["no end", "no finish", "error", "aborted", "whole error", "no JSON", "status"],
)
async def test_what_did_not_end_well_is_not(answer: Answer) -> None:
    assert await remembered(answer) is None


async def test_nor_is_one_whose_tokens_are_not_sure() -> None:
    assert await remembered(stream(*WHOLE), told=()) is None
    assert await remembered(stream(*WHOLE), flags=["pause_lost"]) is not None
    for flag in ("seam_unproven", "seam_redrawn"):
        assert await remembered(stream(*WHOLE), flags=[flag]) is None
