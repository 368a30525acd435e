"""An answer in which the model's recalls are answered here: held back from the client, and the answer goes on behind
them, in the same turn and under the same lease. For the relay it is an engine's answer like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from governor.clock import Clock
from governor.compress.recall import NAME
from governor.errors import UpstreamCut, UpstreamError, UpstreamUnavailable
from governor.gateway.http import EVENT_STREAM
from governor.gateway.recall import GoOn, Recalling, Recalls
from governor.schedule.loop import Admission
from governor.store.archive_model import Archive
from governor.tokens.counter import Counter
from governor.wire import failures
from governor.wire.spliced import Generation, SplicedStream, SplicedWhole, ended_with
from governor.wire.sse import SseSplitter
from serve.engine import Engine, EngineAnswer

_DRAIN_S = 0.25
_MOST_WHOLE_BYTES = 64 * 1024 * 1024
_NO_ROOM = "it has recalled what it needs more room for"
_AT_ITS_END = "length"
"""The finish of an answer that was to go on with a recall and cannot: as one that has reached its cap."""


class Recaller:
    """One per governor."""

    def __init__(self, archive: Archive, engine: Engine, counter: Counter, admission: Admission, clock: Clock) -> None:
        self._archive = archive
        self._engine = engine
        self._counter = counter
        self._admission = admission
        self._clock = clock

    @asynccontextmanager
    async def answered(
        self, opened: AbstractAsyncContextManager[EngineAnswer], asking: Recalling
    ) -> AsyncIterator[EngineAnswer]:
        """The answer, without recalls."""
        recalls = Recalls(self._archive, self._engine, self._counter, asking)
        answer = _Answer(asking, recalls, self._admission, self._clock)
        try:
            yield await answer.open(opened)
        finally:
            await answer.aclose()


class _Answer:
    """See :class:`serve.engine.EngineAnswer`."""

    def __init__(self, asking: Recalling, recalls: Recalls, admission: Admission, clock: Clock) -> None:
        self._asking = asking
        self._recalls = recalls
        self._admission = admission
        self._clock = clock
        self._running = AsyncExitStack()
        self._answer: EngineAnswer
        self._is_first = True
        self._told = False
        """What the generation has hidden, and what it was given."""

    async def open(self, opened: AbstractAsyncContextManager[EngineAnswer]) -> EngineAnswer:
        self._answer = await self._running.enter_async_context(opened)
        self.status, self.headers = self._answer.status, self._answer.headers
        return self

    async def aclose(self) -> None:
        await self._running.aclose()

    def chunks(self) -> AsyncIterator[bytes]:
        if self.status != 200 or "content-encoding" in self.headers:
            return self._answer.chunks()
        return self._stream() if _is_stream(self._answer) else self._whole()

    async def _stream(self) -> AsyncIterator[bytes]:
        spliced = SplicedStream(NAME)
        while True:
            splitter, chunks = SseSplitter(), self._answer.chunks()
            async for chunk in chunks:
                out = b"".join(map(spliced.on_event, splitter.feed(chunk)))
                self._note(spliced.generation)
                if out:
                    yield out
                if spliced.generation.is_done and spliced.generation.asks:
                    await _drain(chunks)
                    break
            if splitter.rest:
                out = b"".join(map(spliced.on_event, splitter.feed(b"\n\n")))
                self._note(spliced.generation)
                yield out
            if not spliced.generation.asks:
                return
            if not await self._goes_on(spliced.generation):
                yield spliced.ending(_AT_ITS_END)
                return
            if not _is_stream(self._answer):
                raise await self._refusal()
            spliced.next()

    async def _whole(self) -> AsyncIterator[bytes]:
        spliced = SplicedWhole(NAME)
        while True:
            body = spliced.on_body(await self._body())
            if body is None:
                raise UpstreamError("The engine went on with the answer in a way that cannot be read.")
            self._note(spliced.generation)
            if not spliced.generation.asks:
                yield body
                return
            if not await self._goes_on(spliced.generation):
                yield ended_with(body, _AT_ITS_END)
                return
            if self._answer.status != 200 or _is_stream(self._answer):
                raise await self._refusal()
            spliced.next()

    async def _body(self) -> bytes:
        parts, size = [], 0
        async for chunk in self._answer.chunks():
            size += len(chunk)
            if size > _MOST_WHOLE_BYTES:
                raise UpstreamError(f"The engine answered with more than {_MOST_WHOLE_BYTES} bytes.")
            parts.append(chunk)
        return b"".join(parts)

    def _note(self, generation: Generation) -> None:
        """For the row, before the client has the end, on which it may close."""
        if generation.finish is None:
            return
        turn = self._asking.turn
        if generation.own:
            self._asking.on_hidden()
            if not generation.asks:
                why = "beside the client's own tools" if generation.has_others else "cut at the cap"
                turn.note(f"recall_dropped: {why}")
        if not self._is_first and generation.usage and not self._told:
            self._told = True
            details = generation.usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            known = "" if cached is None else f", {cached} from cache"
            turn.note(f"recall_prompt: {generation.usage.get('prompt_tokens')} tokens{known}")

    async def _goes_on(self, generation: Generation) -> bool:
        """Another generation runs behind what was recalled."""
        on = await self._recalls.next(generation)
        if on is None:
            return False
        await self._running.aclose()
        self._running = AsyncExitStack()
        self._is_first = self._told = False
        try:
            await self._make_room(on)
            self._answer = await self._running.enter_async_context(self._asking.open(on))
        except UpstreamUnavailable as error:  # the turn cannot be asked for anew: some of it has been answered
            raise UpstreamCut(f"The engine was gone when the answer was to go on: {error.message}") from error
        return True

    async def _make_room(self, on: GoOn) -> None:
        """Book what the longer prompt needs: at once, where there is room and nobody is to be let through; else the
        place is given back and waited for, as that of a paused answer is."""
        turn, lease = self._asking.turn, self._asking.lease
        wanted = lease.asked_to_pause.is_set()
        if not wanted and await self._admission.grow(on.claim):
            turn.on_went_on()
            return
        turn.on_paused(lease.pause_reason if wanted else _NO_ROOM)
        await lease.paused(on.claim, confirmed=True, clock=self._clock)
        turn.on_resumed()

    async def _refusal(self) -> UpstreamError:
        said = failures.message_of(failures.error_object(await self._body()))
        return UpstreamError(f"The engine did not go on with the answer: {said}")


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """The end of a body, so that its connection can serve again."""
    with contextlib.suppress(TimeoutError, UpstreamError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in chunks:
                pass


def _is_stream(answer: EngineAnswer) -> bool:
    content_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    return answer.status == 200 and content_type == EVENT_STREAM and "content-encoding" not in answer.headers
