"""Several generations of a chat as one stream. Pure: it is fed with events and tells what the client gets.

The client gets the first generation's events as they come, and those of the others under the first one's name. An end
(finish, split of cached tokens, usage, ``[DONE]``) is kept back until it is known to be the answer's. What comes after
an abort is kept back, too: it ends with what the engine's parsers and detokenizer give up when they are stopped.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Protocol

import msgspec

from governor.wire import chunks, sse
from governor.wire.chunks import Chunk, Head, Written
from governor.wire.seam import Kind, Said, add, settled
from governor.wire.sse import SseEvent

ABORTED = "abort"
"""The finish of a generation that was stopped."""


class Watch(Protocol):
    """Told what the client is shown, in order."""

    def on_text(self, kind: Kind, text: str) -> None: ...

    def on_call(self, call: Any) -> None:
        """A piece of a tool call, as the engine wrote it."""
        ...


class _End(Enum):
    """An event after the text."""

    FINISH = auto()
    EXTENSION = auto()
    USAGE = auto()
    DONE = auto()


class _Content(msgspec.Struct, frozen=True):
    """An event that shows something."""

    texts: list[tuple[Kind, str]]
    calls: list[Any]
    raw: bytes


class Piece(msgspec.Struct):
    """One generation of an answer, so far."""

    is_first: bool
    thinking: bool
    """It begins as reasoning, as far as the engine has been told."""
    started: bool = False
    """Its first event has come."""
    stop_asked: bool = False
    holding: bool = False
    """Nothing more is shown until it is known how it ends."""
    has_calls: bool = False
    """A part of a tool call was shown."""
    said: list[Said] = []
    """All that was shown."""
    generated_bytes: int = 0
    finish: str | None = None
    usage: dict[str, Any] = {}
    is_done: bool = False
    """The stream has said that it is at its end."""
    held: list[_Content] = []
    tail: list[tuple[_End, bytes]] = []

    @property
    def was_stopped(self) -> bool:
        """It has ended because it was asked to."""
        return self.stop_asked and self.finish == ABORTED


class Joined:
    """One answer."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch
        self.piece = Piece(is_first=True, thinking=True)
        self.begun = False
        """The client has been given something."""
        self.redrawn = False
        """A piece began with something else than the part of a token that it was to begin with."""
        self._head: Head | None = None
        self._extension = b""
        self._earlier: Written | None = None
        self._thinking = True
        self._repeats = ""

    @property
    def thinking(self) -> bool:
        """What comes next is still reasoning, if there is any."""
        return self._thinking

    def on_event(self, event: SseEvent) -> bytes:
        """What the client gets now."""
        piece, data = self.piece, event.data
        if data is None:
            return event.raw
        if data == b"[DONE]":
            piece.is_done = True
            piece.tail.append((_End.DONE, event.raw))
            return b""
        chunk = chunks.read(data)
        if chunk is None:
            return event.raw
        if chunk.error:
            return self.release() + event.raw
        piece.started = True
        self._head = self._head or chunks.head_of(chunk)
        raw = event.raw if piece.is_first or self._head is None else sse.encode(self._head.on(data))
        if chunk.finish_reason is None and chunk.choices:
            return self._on_content(chunk, raw)
        self._on_end(chunk, raw)
        return b""

    def release(self) -> bytes:
        """What was held back, after all."""
        piece = self.piece
        held, piece.held, piece.holding = piece.held, [], False
        return b"".join([self._shown(content) for content in held])

    def settle(self) -> bytes:
        """Of what was held back, the part that no further token can change: the text before any call."""
        late: list[Said] = []
        for content in self.piece.held:
            if content.calls:
                break
            for kind, text in content.texts:
                add(late, kind, text)
        while late and not settled(late[-1].text):
            late.pop()
        self.piece.held = []
        if late:
            late[-1].text = settled(late[-1].text)
        return b"".join(self.show(each.kind, each.text) for each in late)

    def show(self, kind: Kind, text: str) -> bytes:
        """Text that came in no event of its own."""
        self._note(kind, text)
        text = self._without_repeat(text)
        return b"" if self._head is None or not text else self._head.text(kind, text)

    def next_piece(self, *, kept_tokens: int, repeats: str) -> Piece:
        """The piece was stopped; so many of its tokens are kept. The next one shows ``repeats`` once more."""
        piece = self.piece
        if piece.said:
            still_thinking = piece.said[-1].kind is Kind.REASONING
            thought = 0
            if piece.thinking:
                thought = kept_tokens if still_thinking else chunks.reasoning_in(piece.usage)
            if (
                self._earlier is None
            ):  # what was cached is told of the first, as its prompt is; nothing cached, no event
                self._extension = next((raw for end, raw in piece.tail if end is _End.EXTENSION), b"")
            earlier = self._earlier or Written(piece.usage, 0, 0)
            self._earlier = Written(earlier.usage, earlier.tokens + kept_tokens, earlier.reasoning_tokens + thought)
            self._thinking = still_thinking
        self._repeats = repeats
        self.piece = Piece(is_first=False, thinking=self._thinking)
        return self.piece

    def close_thinking(self, tokens: int) -> int:
        """What follows is no reasoning: that was closed with so many tokens, which count as its own, behind what was
        kept. To be asked for after :meth:`next_piece`; returns the tokens of reasoning that were kept."""
        earlier = self._earlier or Written({}, 0, 0)
        thought = earlier.reasoning_tokens
        self._earlier = Written(earlier.usage, earlier.tokens + tokens, thought + tokens)
        self._thinking = self.piece.thinking = False
        self._repeats = ""
        return thought

    def ending(self) -> bytes:
        """The end of the answer, which is that of its last piece."""
        return self._end_of(self.piece.tail)

    def ending_at_cap(self) -> bytes:
        """The end of an answer whose last piece was stopped on its last token. To be asked for after
        :meth:`next_piece`."""
        if self._head is None or self._earlier is None:
            return b""
        usage = self._head.usage(chunks.total(self._earlier.usage, self._earlier, completion=0, thought=False))
        return self._head.finish("length") + self._extension + usage + sse.encode(b"[DONE]")

    def ending_cut_off(self) -> bytes:
        """The end of an answer whose last piece was stopped for good: as one that has reached its cap."""
        if self._head is None:
            return self.ending()
        finish = self._head.finish("length")
        return self._end_of([(end, finish if end is _End.FINISH else raw) for end, raw in self.piece.tail])

    def _on_end(self, chunk: Chunk, raw: bytes) -> None:
        piece = self.piece
        if chunk.finish_reason is not None:
            piece.finish = chunk.finish_reason
            piece.tail.append((_End.FINISH, raw))
        elif isinstance(chunk.usage, dict):
            piece.usage = chunk.usage
            piece.tail.append((_End.USAGE, raw))
        else:
            piece.tail.append((_End.EXTENSION, raw))

    def _end_of(self, tail: list[tuple[_End, bytes]]) -> bytes:
        """The last piece's end, with what is said of the whole answer in it."""
        earlier = self._earlier
        if earlier is None or self._head is None:
            return b"".join(raw for _, raw in tail)
        usage = self._head.usage(chunks.total(self.piece.usage, earlier, thought=self.piece.thinking))
        finishes = [raw for end, raw in tail if end is _End.FINISH]
        rest = [usage if end is _End.USAGE else raw for end, raw in tail if end in {_End.USAGE, _End.DONE}]
        return b"".join([*finishes, self._extension, *rest])

    def _on_content(self, chunk: Chunk, raw: bytes) -> bytes:
        content = _Content(chunk.texts, chunk.calls, raw)
        if not content.texts and not content.calls:
            if self.begun and not self.piece.is_first:
                return b""  # a role, which the client has been told
            self.begun = True
            return raw
        if self.piece.holding:
            self.piece.held.append(content)
            return b""
        return self._shown(content)

    def _shown(self, content: _Content) -> bytes:
        if self._repeats and not content.calls:
            return b"".join([self.show(kind, text) for kind, text in content.texts])
        self._repeats = ""
        for kind, text in content.texts:
            self._note(kind, text)
        for call in content.calls:
            self.piece.has_calls = True
            self.piece.generated_bytes += len(msgspec.json.encode(call))
            if self._watch is not None:
                self._watch.on_call(call)
        self.begun = True
        return content.raw

    def _note(self, kind: Kind, text: str) -> None:
        self.begun = True
        self.piece.generated_bytes += len(text) if text.isascii() else len(text.encode(errors="replace"))
        add(self.piece.said, kind, text)
        if self._watch is not None:
            self._watch.on_text(kind, text)

    def _without_repeat(self, text: str) -> str:
        """``text`` without what was shown of its first token before."""
        repeats = self._repeats
        if repeats and text.startswith(repeats):
            self._repeats = ""
            return text[len(repeats) :]
        if repeats and repeats.startswith(text):
            self._repeats = repeats[len(text) :]
            return ""
        self.redrawn, self._repeats = self.redrawn or bool(repeats), ""
        return text
