"""One answer out of several generations: stopped where the scheduler asks for it, continued later from exactly there.

For the relay this is an engine's answer like any other. How a generation is stopped, and why nothing is lost or doubled
there, stands in ``docs/design/slices.md``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Protocol

import msgspec

from governor.budget.claim import Claim
from governor.clock import Clock
from governor.errors import BadRequest, UpstreamCut, UpstreamError, UpstreamUnavailable
from governor.gateway.bounds import Bounds
from governor.gateway.http import EVENT_STREAM, JSON
from governor.gateway.seams import find_seam
from governor.schedule.loop import Lease
from governor.wire import failures
from governor.wire.joined import Joined
from governor.wire.jsonobject import JsonObject
from governor.wire.seam import Kind
from governor.wire.sse import SseEvent, SseSplitter
from governor.wire.whole import Whole
from serve.engine import Continuation, Engine, EngineAnswer, EngineCall, TokenIds

_ABORT_AGAIN_S = 1.0
"""An abort that overtakes its request is lost on the engine, so it is repeated."""
_TOLD_EVERY_TOKENS = 256
_BYTES_PER_TOKEN = 3
"""A low guess: more is reserved than needed, rather than less."""
_REOPEN_AFTER_S = (0.5, 1.0, 2.0, 4.0)
"""An engine that is gone is noticed by the watch meanwhile, which holds the turn or refuses it."""
_MOST_DROPPED_TOKENS = 16
"""A piece that was cut by more has written something that is shown late, and is to be left alone until it is."""
_STREAMED = {"stream": b"true", "stream_options": b'{"include_usage":true}'}


class PauseListener(Protocol):
    """Who is told of a turn's pauses."""

    def on_paused(self, reason: str) -> None: ...

    def on_resumed(self) -> None: ...

    def on_went_on(self) -> None:
        """It was stopped and goes on at once."""
        ...

    def note(self, flag: str) -> None:
        """An oddity, for the turn's row."""
        ...


class Pausing(msgspec.Struct, frozen=True, kw_only=True):
    """What a pausable answer works with, beside its engine."""

    lease: Lease
    listener: PauseListener
    clock: Clock
    claim_now: Callable[[int | None, int], Claim]
    """The turn's need of L1, from the tokens of its prompt now (``None``: what it was) and those it has written."""
    bounds: Bounds | None = None
    lost_after_s: float = 5.0
    """A generation that writes on for so long after it was stopped is let go on."""
    on_ids: Callable[[TokenIds], None] | None = None
    """Told of each generation's tokens before its end is passed on."""


@asynccontextmanager
async def opened_in_pieces(
    engine: Engine, continuation: Continuation, call: EngineCall, pausing: Pausing, *, whole: bool
) -> AsyncIterator[EngineAnswer]:
    """Like :meth:`serve.engine.Engine.open`, for a chat. ``whole``: the client did not ask for a stream; the engine is
    asked for one all the same, and the answer is a plain one, complete when this is entered."""
    pieces = Pieces(engine, continuation, pausing)
    try:
        yield await pieces.open(call, whole=whole)
    finally:
        await pieces.aclose()


class _Plain:
    """A whole answer; see :class:`serve.engine.EngineAnswer`."""

    status = 200
    headers: Mapping[str, str] = {"content-type": JSON}

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body


class Pieces:
    """The stream; see :class:`serve.engine.EngineAnswer`."""

    status = 200

    def __init__(self, engine: Engine, continuation: Continuation, pausing: Pausing) -> None:
        self._engine = engine
        self._continuation = continuation
        self._pausing = pausing
        self._joined = Joined(pausing.bounds)
        self._running = AsyncExitStack()
        """The generation that runs, and the task that waits for the word to stop it."""
        self._call: EngineCall
        self._answer: EngineAnswer
        self._ids: TokenIds | None = None
        self._held_since: float | None = None
        self._shows = asyncio.Event()
        """The running piece has shown something."""
        self._shows_late = False
        self._told_tokens = 0
        self._written = 0
        """Tokens kept of the pieces that are over."""
        self._need: Claim | None = None
        """Of L1, to go on."""
        self._written_before = 0
        """Of them, those from before the last grant."""
        self.headers: Mapping[str, str] = {}

    async def open(self, call: EngineCall, *, whole: bool) -> EngineAnswer:
        """Start the first generation. Raises what :meth:`serve.engine.Engine.open` raises."""
        if whole:
            call = msgspec.structs.replace(call, body=JsonObject(call.body).edited(_STREAMED))
        await self._start(self._continuation.first(call))
        if not _is_stream(self._answer):
            return self._answer
        self.headers = self._answer.headers
        return _Plain(await self._whole()) if whole else self

    async def aclose(self) -> None:
        """Stop what runs. May be repeated."""
        await self._running.aclose()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises :class:`UpstreamCut` when a piece breaks off or cannot be gone on from, and
        :class:`UpstreamUnavailable` when the engine is gone before the answer has begun."""
        joined = self._joined
        while True:
            splitter, ended = SseSplitter(), False
            try:
                async for chunk in self._answer.chunks():
                    out = self._on_events(splitter.feed(chunk))
                    if joined.piece.is_done and not joined.piece.was_stopped and not ended:
                        ended, out = True, out + joined.release() + joined.ending()
                    if out:
                        yield out
                if splitter.rest:
                    yield self._on_events(splitter.feed(b"\n\n"))
            except UpstreamError:
                if not ended:
                    yield joined.release() + joined.ending()
                raise
            if not joined.piece.was_stopped:
                if not ended:
                    yield joined.release() + joined.ending()
                return
            out, call = await self._cut()
            if out:
                yield out
            if call is None:
                return
            with _cut_if(joined.begun):
                await self._wait_if_asked()
                await self._go_on(call)

    async def _whole(self) -> bytes:
        whole, splitter = Whole(), SseSplitter()
        async for out in self.chunks():
            for event in splitter.feed(out):
                if event.data is not None:
                    whole.on_data(event.data)
        if not whole.is_complete:
            raise UpstreamCut("The engine's stream ended before its answer did.")
        return whole.body()

    # One piece

    async def _start(self, call: EngineCall) -> None:
        """Open a generation. It is stopped when that is asked for, be it before its head has come."""
        self._call, self._ids, self._held_since = call, None, None
        self._shows = asyncio.Event()
        self._running = running = AsyncExitStack()
        stoppers = [asyncio.create_task(self._stop_when_asked(call))]
        if self._pausing.bounds is not None:
            stoppers.append(asyncio.create_task(self._stop_at_bounds(call, self._pausing.bounds)))
        for stopper in stoppers:
            running.callback(stopper.cancel)
        try:
            self._answer = await running.enter_async_context(self._engine.open(call))
        except BaseException:
            for stopper in stoppers:
                stopper.cancel()
            raise

    async def _stop_when_asked(self, call: EngineCall) -> None:
        await self._pausing.lease.asked_to_pause.wait()
        if self._shows_late:
            await self._shows.wait()
        piece = self._joined.piece
        if piece.has_calls or piece.is_done:
            return  # a call is not taken apart, and its end is near
        await self._stop(call)

    async def _stop_at_bounds(self, call: EngineCall, bounds: Bounds) -> None:
        await bounds.reached(self._continuation)
        if not self._joined.piece.is_done:
            await self._stop(call)

    async def _stop(self, call: EngineCall) -> None:
        """Until it has ended or is given up."""
        piece = self._joined.piece
        piece.stop_asked = piece.holding = True
        while piece.holding:
            await self._continuation.abort(call)
            await asyncio.sleep(_ABORT_AGAIN_S)

    def _on_events(self, events: list[SseEvent]) -> bytes:
        return b"".join([self._on_event(event) for event in events])

    def _on_event(self, event: SseEvent) -> bytes:
        piece = self._joined.piece
        ids = None if event.data is None else self._continuation.ids_in(event.raw, event.data)
        if ids is not None:
            self._ids = ids
            if self._pausing.on_ids is not None:
                self._pausing.on_ids(ids)
            return b""
        out = self._joined.on_event(event)
        if piece.started and (piece.generated_bytes or not piece.stop_asked):
            self._pausing.lease.on_started()  # not by the end of one that was stopped in its prefill
        if piece.said or piece.has_calls:
            self._shows.set()
        if piece.held and self._is_lost():
            self._pausing.listener.note("pause_lost")
            out += self._joined.release()
        if self._joined.redrawn:
            self._pausing.listener.note("seam_redrawn")
        tokens = self._written - self._written_before - (-piece.generated_bytes // _BYTES_PER_TOKEN)
        if tokens - self._told_tokens >= _TOLD_EVERY_TOKENS:
            self._told_tokens = tokens
            self._pausing.lease.on_wrote(tokens)
        return out

    def _is_lost(self) -> bool:
        """The generation goes on although it was stopped. Counts from the first text after that: an engine in a long
        prefill hears of an abort late."""
        now = self._pausing.clock.monotonic()
        self._held_since = now if self._held_since is None else self._held_since
        return now - self._held_since > self._pausing.lost_after_s

    # Between two pieces

    async def _cut(self) -> tuple[bytes, EngineCall | None]:
        """What the client still gets of the piece that was stopped, and the call that goes on; ``None`` at the end."""
        joined, ids, bounds, listener = self._joined, self._ids, self._pausing.bounds, self._pausing.listener
        out = joined.settle()
        said = joined.piece.said
        reasoning = bool(said) and said[-1].kind is Kind.REASONING and not joined.piece.has_calls
        if bounds is not None and bounds.loop is not None:
            listener.note(bounds.loop.flag)
            if await bounds.ends_answer(self._continuation, reasoning=reasoning):
                return out + joined.ending_cut_off(), None
        if said and ids is None:
            raise UpstreamCut("The engine has stopped the answer and not told its tokens.")
        output = ids.output if ids else ()
        seam = await find_seam(self._continuation, output, said)
        if not seam.proven:
            listener.note("seam_unproven")
        if seam.cut.more:
            out += joined.show(said[-1].kind, seam.cut.more)
        await self._running.aclose()
        kept = output[: seam.cut.kept]
        self._shows_late = len(output) - len(kept) > _MOST_DROPPED_TOKENS
        self._written += len(kept)
        joined.next_piece(kept_tokens=len(kept), repeats=seam.cut.again)
        self._ids = None if ids is None else TokenIds(ids.prompt, kept)
        if self._ids is None or not said:
            return out, self._continuation.again(self._call)
        try:
            call = self._continuation.next(self._call, self._ids, thinking=joined.thinking)
            if bounds is not None and reasoning:
                call = await self._thinking_closed(call, self._ids, bounds)
            return out, call
        except BadRequest:
            return out + joined.ending_at_cap(), None

    async def _thinking_closed(self, call: EngineCall, ids: TokenIds, bounds: Bounds) -> EngineCall:
        """``call``, which goes on with the reasoning, or the one that goes on after it where that has come to its
        bounds. Raises :class:`BadRequest` when the cap leaves no room behind."""
        closing = await bounds.closing(self._continuation, len(ids.output))
        if not closing:
            return call
        self._ids = TokenIds(ids.prompt, (*ids.output, *closing))
        call = self._continuation.next(self._call, self._ids, thinking=False)
        bounds.on_closed()
        self._written += len(closing)
        thought = self._joined.close_thinking(len(closing))
        self._pausing.listener.note(f"thinking_closed: at {thought} tokens")
        return call

    async def _wait_if_asked(self) -> None:
        """Give the place back and wait for another, if somebody waits for it."""
        pausing, ids = self._pausing, self._ids
        prompt_tokens = len(ids.prompt) + len(ids.output) if ids else None
        self._need = pausing.claim_now(prompt_tokens, self._written)
        if pausing.lease.asked_to_pause.is_set():
            await self._wait(pausing.lease.pause_reason)
        else:
            pausing.listener.on_went_on()

    async def _wait(self, reason: str) -> None:
        pausing = self._pausing
        pausing.listener.on_paused(reason)
        self._written_before, self._told_tokens = self._written, 0
        await pausing.lease.paused(self._need, confirmed=True, clock=pausing.clock)
        pausing.listener.on_resumed()

    async def _go_on(self, call: EngineCall) -> None:
        """Start the next generation. One that the engine has not begun can be asked for again; a new engine goes on
        from the tokens as well. Between attempts the turn waits as any other does, which says whether there is one."""
        for patience_s in (*_REOPEN_AFTER_S, None):
            try:
                await self._start(call)
                break
            except (UpstreamUnavailable, UpstreamCut) as error:
                if patience_s is None:
                    raise
                await asyncio.sleep(patience_s)
                await self._wait(error.message)
                call = self._continuation.again(call)
        if not _is_stream(self._answer):
            body = b"".join([chunk async for chunk in self._answer.chunks()])
            message = failures.message_of(failures.error_object(body))
            raise UpstreamError(f"The engine did not go on with the answer: {message}")


def _is_stream(answer: EngineAnswer) -> bool:
    content_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    return answer.status == 200 and content_type == EVENT_STREAM and "content-encoding" not in answer.headers


@contextmanager
def _cut_if(begun: bool) -> Iterator[None]:
    """An answer that has begun cannot be asked for anew, as one can that the engine has not accepted."""
    try:
        yield
    except UpstreamUnavailable as error:
        if not begun:
            raise
        raise UpstreamCut(f"The engine was gone when the paused answer was to go on: {error.message}") from error
