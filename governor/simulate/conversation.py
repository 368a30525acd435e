"""One conversation as its client holds it: what a prompt is made of, and what becomes of an answer in the next one.

Tokens are runs of sources (:class:`~serve.twin.tiers_key.Key`). A session says new things from one source and writes
answers from another, so that a context of a whole day is a few runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from governor.types import PromptShape
from serve.twin.tiers_key import Key
from serve.twin.trace import Echo, Piece, PieceKind, Shared, Turn


class Part(StrEnum):
    """What a message of a conversation is."""

    SYSTEM = "system"
    USER = "user"
    TOOL = "tool"
    ANSWER = "answer"


_PART = {PieceKind.SYSTEM: Part.SYSTEM, PieceKind.USER: Part.USER, PieceKind.TOOL: Part.TOOL}


class Message(NamedTuple):
    part: Part
    tokens: int


class Sources:
    """Numbers of token sources, each given once; shared beginnings by name."""

    def __init__(self) -> None:
        self._next = 1
        self._shared: dict[str, int] = {}

    def new(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def shared(self, shared: Shared | None) -> Key:
        """The beginning that a name stands for."""
        if shared is None:
            return Key()
        if shared.name not in self._shared:
            self._shared[shared.name] = self.new()
        return Key([(self._shared[shared.name], 0, shared.tokens)])


class Stream:
    """Tokens nobody has said before, one after the other."""

    def __init__(self, sources: Sources) -> None:
        self._source = sources.new()
        self._said = 0

    def take(self, tokens: int) -> Key:
        start, self._said = self._said, self._said + tokens
        return Key([(self._source, start, self._said)])


class Conversation:
    """What was sent, with the answers as the client would send them back."""

    def __init__(self, sources: Sources, shared: Shared | None) -> None:
        self._sources = sources
        self._said = Stream(sources)
        self._written = Stream(sources)
        self._head = sources.shared(shared)
        self._answer = Key()
        self._carrier_tokens = 0
        self.key = Key()
        self.messages: list[Message] = []
        self.compactions = 0
        self._digest_source = sources.new()

    def __len__(self) -> int:
        return len(self.key)

    @property
    def head_tokens(self) -> int:
        """System prompt and tools."""
        return len(self._head)

    def say(self, tokens: int) -> Key:
        """Something new."""
        return self._said.take(tokens)

    def write(self, tokens: int) -> Key:
        """What the model would write next."""
        return self._written.take(tokens)

    def answered(self, answer: Key) -> None:
        """The model has written this to the last prompt."""
        self._answer = answer

    def prompt_for(self, turn: Turn) -> Key:
        """The turn's prompt. It is the conversation from now on, but for a call aside."""
        before = self.key, list(self.messages), self._answer, self._carrier_tokens
        match turn.shape if self.key else PromptShape.FRESH:
            case PromptShape.FRESH:
                self.begin()
            case PromptShape.CONTINUATION:
                self.settle(turn.echo, turn.echo_tokens)
            case PromptShape.BRANCH:
                self._cut(turn.branch_at or 0)
            case PromptShape.REPEAT:
                self._answer = Key()
        if turn.shape is not PromptShape.REPEAT:
            self.add(turn.new, turn.carrier_tokens)
        if not self.key:
            self.add([Piece(tokens=1)])  # a prompt has a token
        prompt = self.key
        if turn.aside:
            self.key, self.messages, self._answer, self._carrier_tokens = before
        return prompt

    def begin(self) -> None:
        """Forget all but the shared beginning."""
        self.key, self.messages, self._answer, self._carrier_tokens = self._head, [], Key(), 0

    def settle(self, echo: Echo, echo_tokens: int | None = None) -> None:
        """Take the last answer into the history, as the client sends it back, in the carrier's place."""
        if self._carrier_tokens:
            self._cut_to(len(self.key) - self._carrier_tokens)
        answer, self._answer = self._answer, Key()
        if echo is Echo.REWRITTEN:
            answer = self.say(len(answer) if echo_tokens is None else echo_tokens)
        if echo is not Echo.DROPPED and len(answer):
            self.key = self.key + answer
            self.messages.append(Message(Part.ANSWER, len(answer)))

    def add(self, pieces: Iterable[Piece], carrier_tokens: int = 0) -> None:
        """New messages at the end."""
        for piece in pieces:
            self.key = self.key + self.say(piece.tokens)
            self.messages.append(Message(_PART[piece.kind], piece.tokens))
        self._carrier_tokens = carrier_tokens

    def say_last_again(self, more_tokens: int) -> Key:
        """The last message in other words: a retry that rewrites it."""
        last = self.messages.pop()
        carrier_tokens = self._carrier_tokens
        self.key = self.key.cut(0, len(self.key) - last.tokens) + self.say(last.tokens + more_tokens)
        self.messages.append(Message(last.part, last.tokens + more_tokens))
        self._carrier_tokens = carrier_tokens
        return self.key

    def middle(self, first: int, tail_tokens: int, tail_messages: int) -> list[Message]:
        """What a compaction would replace: behind the first messages, before a tail of so much at least."""
        return self.messages[first : self._tail_start(first, tail_tokens, tail_messages)]

    def compact(self, first: int, tail_tokens: int, tail_messages: int, summary: int) -> None:
        """Replace the middle by a summary of so many tokens."""
        stop = self._tail_start(first, tail_tokens, tail_messages)
        start_tokens = self.head_tokens + sum(message.tokens for message in self.messages[:first])
        stop_tokens = start_tokens + sum(message.tokens for message in self.messages[first:stop])
        self.key = self.key.cut(0, start_tokens) + self.say(summary) + self.key.cut(stop_tokens, len(self.key))
        self.messages[first:stop] = [Message(Part.USER, summary)]
        self.compactions += 1
        self._digest_source = self._sources.new()

    def digest(self, instructions: Key, tokens: int) -> Key:
        """The history as text for a summary. The same history gives the same text, a longer one a longer text."""
        return instructions + Key([(self._digest_source, 0, tokens)])

    def under(self, head: Key) -> Key:
        """The same messages behind another system prompt."""
        return head + self.key.cut(self.head_tokens, len(self.key))

    def _tail_start(self, first: int, tail_tokens: int, tail_messages: int) -> int:
        start, tokens = len(self.messages), 0
        while start > first and (tokens < tail_tokens or len(self.messages) - start < tail_messages):
            start -= 1
            tokens += self.messages[start].tokens
        return start

    def _cut(self, tokens: int) -> None:
        """Go back to the first ``tokens`` of what was sent and written."""
        self.settle(Echo.EXACT)
        self._cut_to(max(tokens, 0))

    def _cut_to(self, tokens: int) -> None:
        excess = len(self.key) - tokens
        while excess > 0 and self.messages:
            last = self.messages.pop()
            if last.tokens > excess:
                self.messages.append(Message(last.part, last.tokens - excess))
            excess -= last.tokens
        self.key = self.key.cut(0, tokens)
        self._carrier_tokens = 0
