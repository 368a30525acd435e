"""From the engine's answer to the client's: every event as it came, read alongside.

Left out are only events that no client can use (no data, unreadable data) and the usage and tier figures that we asked
for and the client did not. The head waits for the first event that means something, so that an error that comes first
is still an HTTP error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec

from governor.clock import Clock
from governor.errors import ContextOverflow, GovernorError, UpstreamCut, UpstreamError, UpstreamRefused, UpstreamTimeout
from governor.gateway.bounds import LoopGuard
from governor.gateway.http import EVENT_STREAM, JSON
from governor.gateway.reply import Reply
from governor.wire import failures, sse
from governor.wire.answer import Reader, Seen
from governor.wire.ending import cut_off
from governor.wire.sse import SseEvent, SseSplitter
from governor.wire.tiers import without_tiers
from serve.engine import EngineAnswer

_DRAIN_S = 0.25
_PASSED_HEADERS = ("content-type", "content-encoding")
_ERROR_HEADERS = ("content-encoding", "retry-after")


class AnswerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much an engine may answer, and how long a part of it may take: one that dribbles would hold a turn for ever.
    A single event's size is bounded by the splitter."""

    max_plain_bytes: int = 64 * 1024 * 1024
    """Of an answer that is not streamed."""
    plain_deadline_s: float = 600.0
    """From the head to the end of such an answer. Some servers send the head at once and spaces while they generate."""
    event_deadline_s: float = 120.0
    """From the first byte of a streamed event to its last."""


class Overflow(Protocol):
    """Makes our overflow error, with the numbers of this turn, out of what the engine said."""

    def __call__(self, engine_message: str) -> ContextOverflow | None: ...


class Relay:
    """Relays one answer. ``strip_usage`` takes out usage-only events, ``strip_tiers`` the split of cached tokens;
    ``guard``, whose reader is ``reader``, ends a stream before its engine does; ``usage_told`` edits events' data and
    whole answers, where the client is not to be told their usage as it is."""

    def __init__(
        self,
        reply: Reply,
        reader: Reader,
        clock: Clock,
        limits: AnswerLimits,
        *,
        strip_usage: bool,
        strip_tiers: bool = False,
        overflow: Overflow,
        on_first_token: Callable[[], None],
        guard: LoopGuard | None = None,
        usage_told: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._reply = reply
        self._reader = reader
        self._clock = clock
        self._limits = limits
        self._strip_usage = strip_usage
        self._strip_tiers = strip_tiers
        self._overflow = overflow
        self.on_first_token = on_first_token
        self._guard = guard
        self._usage_told = usage_told
        self._cut_short = False

    async def run(self, answer: EngineAnswer) -> None:
        """Relay to the end. Raises :class:`UpstreamError` when the answer is an error or does not end well."""
        content_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        readable = "content-encoding" not in answer.headers
        if answer.status == 200 and content_type == EVENT_STREAM and readable:
            await self._stream(answer)
        else:
            await self._plain(answer)

    async def _plain(self, answer: EngineAnswer) -> None:
        body = await self._whole(answer)
        encoded = "content-encoding" in answer.headers
        if answer.status != 200:
            raise self._refusal(answer, body)
        if not body:
            raise UpstreamCut("The engine answered with nothing.")
        if not encoded and self._reader.on_data(body) is Seen.ERROR:
            raise self._error_in_200()
        if self._reader.answer.aborted:
            raise UpstreamCut("The engine gave up on the answer.")
        if self._reply.started:
            raise UpstreamError("The engine answered a streaming request with a plain body.")
        self.on_first_token()
        if encoded:  # in a coding we do not read: the bytes pass, the figures stay unknown
            self._reader.answer.finish_reason = self._reader.answer.finish_reason or "unread"
        if self._strip_tiers and not encoded:
            body = without_tiers(body)
        if not encoded and self._usage_told is not None:
            body = self._usage_told(body)
        headers = {name: answer.headers[name] for name in _PASSED_HEADERS if name in answer.headers}
        await self._reply.send_whole(200, body, {"content-type": JSON, **headers})

    async def _whole(self, answer: EngineAnswer) -> bytes:
        pieces, size, limits = [], 0, self._limits
        try:
            async with asyncio.timeout(limits.plain_deadline_s):
                async for chunk in answer.chunks():
                    size += len(chunk)
                    if size > limits.max_plain_bytes:
                        raise UpstreamError(f"The engine answered with more than {limits.max_plain_bytes} bytes.")
                    pieces.append(chunk)
        except TimeoutError as error:
            raise UpstreamTimeout("The engine began an answer and did not end it.") from error
        return b"".join(pieces)

    async def _stream(self, answer: EngineAnswer) -> None:
        splitter = SseSplitter()
        chunks = answer.chunks()
        event_began = self._clock.monotonic()
        ended = False
        async for chunk in chunks:
            events = splitter.feed(chunk)
            ended = await self._relay_events(events)
            if ended:
                break
            now = self._clock.monotonic()
            if events or not splitter.rest:
                event_began = now
            elif now - event_began > self._limits.event_deadline_s:
                raise UpstreamTimeout("The engine began an event and did not end it.")
        if not ended and splitter.rest:  # some servers forget the last blank line
            await self._relay_events(splitter.feed(b"\n\n"))
        if self._guard is not None and self._cut_short:
            await self._end_early(self._guard, chunks, splitter)
            return
        if self._reader.answer.error is None and not self._reader.answer.ended_well:
            raise UpstreamCut("The engine's stream ended before its answer did.")
        await self._reply.finish()
        if self._reader.answer.error is None:  # after an error many servers close without saying so
            await self._drain(chunks)

    async def _relay_events(self, events: list[SseEvent]) -> bool:
        """Relay these events in one write; True when the answer is at its end."""
        out, ended = [], False
        reader, guard = self._reader, self._guard
        for event in events:
            if event.data is None:
                if event.is_comment and self._reply.started:
                    out.append(event.raw)
                continue
            seen = reader.on_data(event.data)
            if seen is Seen.ERROR and not self._reply.started and not out:
                raise self._error_in_200()
            if seen is Seen.CONTENT:
                self.on_first_token()
            passed = self._passed(event.raw, event.data, seen)
            if passed:
                out.append(passed)
            if guard is not None and guard.has_cut and reader.answer.finish_reason is None:
                self._cut_short = True
                finish = cut_off(event.data)
                reader.on_data(finish)
                out.append(sse.encode(finish))
                ended = True
                break
            ended = seen is Seen.ERROR or (seen is Seen.DONE and reader.answer.ended_well)
            if ended:
                break
        if out:
            await self._reply.start_stream()
            await self._reply.write(b"".join(out))
        return ended

    def _passed(self, raw: bytes, data: bytes, seen: Seen) -> bytes:
        """What the client gets of an event."""
        match seen:
            case Seen.CONTENT | Seen.OTHER:
                return self._told(raw, data)
            case Seen.JUNK:
                return b""
            case Seen.USAGE_ONLY if self._strip_usage:
                return b""
            case Seen.TIERS if self._strip_tiers:
                rest = without_tiers(data)
                return self._told(sse.encode(rest), rest) if rest else b""
            case Seen.DONE if not self._reader.answer.ended_well:
                return b""
            case Seen.ERROR:
                return self._reply.redacted(raw)
            case _:
                return self._told(raw, data)

    def _told(self, raw: bytes, data: bytes) -> bytes:
        """An event with the usage that the client is told in it."""
        told = data if self._usage_told is None else self._usage_told(data)
        return raw if told is data else sse.encode(told)

    async def _end_early(self, guard: LoopGuard, chunks: AsyncIterator[bytes], splitter: SseSplitter) -> None:
        """After the event that says why."""
        usage = await guard.usage_after(chunks, splitter)
        done = b"[DONE]"
        self._reader.on_data(done)
        told = b"" if self._strip_usage or not usage else self._told(sse.encode(usage), usage)
        await self._reply.write(told + sse.encode(done))
        await self._reply.finish()

    async def _drain(self, chunks: AsyncIterator[bytes]) -> None:
        """Read the end of the body, so that the connection can serve again; the client does not wait for it."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                async for _ in chunks:
                    pass
        except (TimeoutError, GovernorError):
            pass

    def _error_in_200(self) -> GovernorError:
        error = self._reader.answer.error or {}
        status, message = failures.status_of(error), failures.message_of(error)
        if failures.is_overflow(400 if status == 502 else status, error):
            overflow = self._overflow(message)
            if overflow is not None:
                return overflow
        refused = UpstreamError(message)
        refused.status = status
        return refused

    def _refusal(self, answer: EngineAnswer, body: bytes) -> GovernorError:
        status = answer.status if answer.status >= 400 else 502
        content_type = answer.headers.get("content-type", "text/plain")
        headers = {name: answer.headers[name] for name in _ERROR_HEADERS if name in answer.headers}
        if "content-encoding" in headers:
            message = f"The engine answered {answer.status}, in a content coding that was not asked for."
            return UpstreamRefused(status, body, content_type, message, headers)
        error = failures.error_object(body)
        message = failures.message_of(error)
        if failures.is_overflow(answer.status, error):
            overflow = self._overflow(message)
            if overflow is not None:
                return overflow
        return UpstreamRefused(status, body, content_type, message, headers)
