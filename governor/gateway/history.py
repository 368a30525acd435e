"""Going on from the very tokens of a conversation's last answer, where the policy wants it. What for, and when it is
refused, stands in ``docs/design/history.md``."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec

from governor.errors import UpstreamError
from governor.gateway.http import EVENT_STREAM
from governor.gateway.tails import Tails
from governor.output.history import Asked, HistoryBook, Kept, TextAlone, asked, kept_of, why_not
from governor.policy.model import HistoryMode, RequestPolicy
from governor.tokens.chain import Located
from governor.types import AgentName, TokenCount
from governor.wire.chunks import reasoning_in
from governor.wire.messages import decode
from governor.wire.request import GenerationRequest
from governor.wire.sse import SseSplitter
from governor.wire.whole import Whole
from serve.engine import Continuation, EngineAnswer, EngineCall, TokenIds

log = logging.getLogger(__name__)

_UNSURE = frozenset({"seam_unproven", "seam_redrawn"})
"""Flags of answers whose tokens may say something else than was shown."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as the conversation's own tokens."""

    ids: tuple[int, ...]
    output_tokens: int
    """Of the last answer, which the client's own message would not have brought back."""
    known_tokens: int
    """Of ``ids``, those that the engine has had before."""
    beyond_tokens: int
    """See :class:`~governor.output.history.Kept`."""

    @property
    def count(self) -> TokenCount:
        return TokenCount(tokens=len(self.ids), source="engine")

    @property
    def edit(self) -> str:
        """What was done, for the turn's row."""
        return f"history restored: +{self.output_tokens} tokens"

    def applied(self, continuation: Continuation, call: EngineCall) -> EngineCall:
        """The call that is given these tokens for its prompt."""
        return continuation.next(call, TokenIds(self.ids, ()), thinking=True)


class Ask(msgspec.Struct, kw_only=True):
    """A turn whose answer is to be gone on from."""

    asked: Asked
    restored: Restored | None = None


class History:
    """The book of answers, and what the engine is asked to go on from them. One per governor."""

    def __init__(self, book: HistoryBook | None = None) -> None:
        self.book = book or HistoryBook()
        self._tails = Tails()
        self._text_alone = TextAlone()

    def clear(self) -> None:
        """Another engine may have other tokens and another template."""
        self.book.clear()
        self._tails.clear()

    async def ask(
        self,
        agent: AgentName,
        request: GenerationRequest,
        located: Located,
        policy: RequestPolicy,
        continuation: Continuation,
        *,
        room_tokens: int | None,
        note: Callable[[str], None],
    ) -> Ask | None:
        """``room_tokens``: most tokens of a prompt that leaves its answer all it may write; ``None``: unknown. ``note``
        is told why a conversation is sent as the client has it. ``None`` where the answer is not to be kept. Asks the
        engine for tokens; raises nothing."""
        if policy.history is not HistoryMode.EXACT:
            return None
        this = asked(agent, request, located.digests, self._text_alone)
        if this is None or this.answered is None:
            return None if this is None else Ask(asked=this)
        kept = self.book.find(this.answered)
        if kept is None:
            note("history_as_sent: the answer before was not kept")
            return Ask(asked=this)
        why = why_not(kept, request.messages[this.answer_at], policy.history_thinking_tokens)
        if why is None:
            restored = await self._restored(kept, this, request, continuation)
            if restored is None:
                why = "the template renders it otherwise"
            elif room_tokens is not None and restored.count.tokens > room_tokens:
                why = f"{restored.count.tokens} tokens leave the answer too little room"
            else:
                return Ask(asked=this, restored=restored)
        note(f"history_as_sent: {why}")
        return Ask(asked=this)

    async def _restored(
        self, kept: Kept, this: Asked, request: GenerationRequest, continuation: Continuation
    ) -> Restored | None:
        end = kept.ids[-1] if kept.ended else None
        try:
            tail = await self._tails.tail(continuation, request, this, end)
        except UpstreamError as error:
            log.warning("the engine did not tell the tokens of new messages: %s", error)
            return None
        if tail is None:
            return None
        return Restored(
            ids=(*kept.ids, *tail),
            output_tokens=kept.output_tokens,
            known_tokens=len(kept.ids),
            beyond_tokens=kept.beyond_tokens,
        )

    def forget(self, ask: Ask) -> None:
        """The engine does not take what was made of it."""
        if ask.asked.answered is not None:
            self.book.forget(ask.asked.answered)

    def listener(self, ask: Ask, flags: Sequence[str]) -> Listener:
        """For the answer of a turn, each time it is asked for. ``flags``: the turn's, at its end."""

        def on_end(ids: TokenIds, finish_reason: object, message: Mapping[str, Any], reasoning_tokens: int) -> None:
            if not _UNSURE.isdisjoint(flags):
                return
            before = ask.restored.beyond_tokens if ask.restored else 0
            beyond = before + reasoning_tokens + ask.asked.carrier_tokens
            kept = kept_of(ids, finish_reason, message, beyond)
            if kept is not None:
                self.book.keep(ask.asked.key, kept)

        return Listener(on_end)


class Listener:
    """Reads an answer alongside, as the client gets it."""

    def __init__(self, on_end: Callable[[TokenIds, object, Mapping[str, Any], int], None]) -> None:
        self._on_end = on_end
        self._ids: TokenIds | None = None
        self._is_forgone = False

    def on_ids(self, ids: TokenIds) -> None:
        """Of one more generation; its prompt is that of the first, and what was kept of those before it."""
        if self._ids is not None:
            at = len(self._ids.prompt)
            ids = TokenIds(ids.prompt[:at], (*ids.prompt[at:], *ids.output))
        self._ids = ids

    def forgo(self) -> None:
        """The client is not shown all that was written, so the answer is not one to go on from."""
        self._is_forgone = True

    @asynccontextmanager
    async def heard(self, opened: AbstractAsyncContextManager[EngineAnswer]) -> AsyncIterator[EngineAnswer]:
        """The same answer."""
        async with opened as answer:
            yield _Heard(answer, self._on_whole)

    def _on_whole(self, body: bytes) -> None:
        answer: Any = decode(body)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if self._is_forgone or self._ids is None or not isinstance(choices, list) or len(choices) != 1:
            return
        message, usage = choices[0].get("message"), answer.get("usage")
        if isinstance(message, dict):
            thought = reasoning_in(usage) if isinstance(usage, dict) else 0
            self._on_end(self._ids, choices[0].get("finish_reason"), message, thought)


class _Heard:
    """See :class:`serve.engine.EngineAnswer`."""

    def __init__(self, answer: EngineAnswer, on_whole: Callable[[bytes], None]) -> None:
        self._answer = answer
        self._on_whole = on_whole
        self.status = answer.status
        self.headers = answer.headers

    def chunks(self) -> AsyncIterator[bytes]:
        if self.status != 200:
            return self._answer.chunks()
        is_stream = self.headers.get("content-type", "").startswith(EVENT_STREAM)
        return self._stream() if is_stream else self._plain()

    async def _plain(self) -> AsyncIterator[bytes]:
        """Its end is passed on last: a client that has it may close, which ends this, too."""
        parts = [chunk async for chunk in self._answer.chunks()]
        self._on_whole(b"".join(parts))
        for part in parts:
            yield part

    async def _stream(self) -> AsyncIterator[bytes]:
        whole, splitter = Whole(), SseSplitter()
        async for chunk in self._answer.chunks():
            for event in splitter.feed(chunk):
                if event.data == b"[DONE]" and whole.is_complete and whole.error is None:
                    self._on_whole(whole.body())
                elif event.data is not None:
                    whole.on_data(event.data)
            yield chunk
