"""One streamed answer as it is measured: when each event came, and how many tokens there were by then, by ``usage``.

An event of a stream is not a token: under speculative decoding one carries several, and an engine that is read late
joins more of them. So every count here is the engine's, and a rate without one is not made.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from governor.errors import UpstreamError
from governor.measure.result import Served, Split
from governor.types import Usage
from governor.wire.tiers import tiers_of
from governor.wire.usage import WireUsage, merged, to_usage


class Mark(NamedTuple):
    """An event that carried output."""

    at_s: float
    """Since the request began."""
    tokens: int | None
    """Output so far; ``None``: the event did not say."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that ended in order, or that we ended (``stopped``)."""

    asked_at_s: float
    """By the engine's clock."""
    marks: tuple[Mark, ...]
    end_s: float
    usage: Usage
    asked_tokens: int
    """Of output."""
    finish: str | None = None
    text: str = ""
    stopped: bool = False

    @property
    def ttft_s(self) -> float:
        """Raises :class:`IndexError` where nothing came."""
        return self.marks[0].at_s

    @property
    def first_at_s(self) -> float:
        return self.asked_at_s + self.marks[0].at_s

    @property
    def last_at_s(self) -> float:
        return self.asked_at_s + self.marks[-1].at_s

    @property
    def prompt_tokens(self) -> int:
        return self.usage.prompt_tokens or 0

    @property
    def written_tokens(self) -> int:
        return self.usage.completion_tokens or 0

    @property
    def first_tokens(self) -> int:
        """What the first event brought; one, where events do not say."""
        return self.marks[0].tokens or 1

    @property
    def cached_tokens(self) -> int | None:
        return self.usage.cached_tokens

    @property
    def split(self) -> Split | None:
        usage = self.usage
        if usage.cached_device_tokens is None and usage.cached_host_tokens is None:
            return None
        return Split(usage.cached_device_tokens, usage.cached_host_tokens, usage.cached_storage_tokens)

    @property
    def served(self) -> Served:
        return Served(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.written_tokens,
            cached_tokens=self.cached_tokens,
            split=self.split,
        )

    @property
    def counts_events(self) -> bool:
        """Every event says how many tokens there are."""
        return all(mark.tokens is not None for mark in self.marks)

    @property
    def tokens_per_event(self) -> float:
        return self.written_tokens / len(self.marks)

    @property
    def decode_rate(self) -> float | None:
        """Tokens after the first event over the time they took; ``None`` for a single event."""
        seconds = self.marks[-1].at_s - self.marks[0].at_s
        return (self.written_tokens - self.first_tokens) / seconds if seconds > 0 else None

    def tokens_at(self, at_s: float) -> float:
        """Output at this time of the engine's clock: by the events' own counts, else in proportion to events."""
        passed = [mark for mark in self.marks if self.asked_at_s + mark.at_s <= at_s]
        if not passed:
            return 0.0
        if self.counts_events:
            return float(passed[-1].tokens or 0)
        return len(passed) * self.tokens_per_event

    def gaps_s(self) -> list[float]:
        """Between two events."""
        return [later.at_s - earlier.at_s for earlier, later in pairwise(self.marks)]

    def token_times_s(self) -> list[float] | None:
        """Between two tokens, one for each; ``None`` where events do not count."""
        if not self.counts_events:
            return None
        times: list[float] = []
        for earlier, later in pairwise(self.marks):
            brought = (later.tokens or 0) - (earlier.tokens or 0)
            if brought > 0:
                times += [(later.at_s - earlier.at_s) / brought] * brought
        return times


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Choice(msgspec.Struct):
    text: Any = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: WireUsage | None = None
    sglext: Any = None
    error: Any = None


class AnswerReader:
    """Fed with the data of a stream's events and the time they came. One answer each."""

    def __init__(self, asked_at_s: float, asked_tokens: int) -> None:
        self._asked_at_s = asked_at_s
        self._asked_tokens = asked_tokens
        self._marks: list[Mark] = []
        self._usage = Usage()
        self._finish: str | None = None
        self._texts: list[str] = []
        self._tokens = 0

    def feed(self, data: bytes, at_s: float) -> None:
        """``at_s``: since the request began. Raises :class:`~governor.errors.UpstreamError` for an error in the stream
        or an event that is none."""
        if data == b"[DONE]":
            return
        try:
            event = msgspec.json.decode(data, type=_Event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamError(f"The engine sent an event that cannot be read: {error}") from error
        if event.error is not None:
            raise UpstreamError(f"The engine failed within its answer: {event.error}")
        usage = Usage() if event.usage is None else to_usage(event.usage)
        if event.sglext is not None and (tiers := tiers_of(event.sglext)) is not None:
            usage = merged(usage, to_usage(WireUsage(), tiers))
        self._usage = merged(self._usage, usage)
        if event.choices:
            self._on_choice(event.choices[0], usage.completion_tokens, at_s)

    def _on_choice(self, choice: _Choice, tokens: int | None, at_s: float) -> None:
        self._finish = choice.finish_reason or self._finish
        delta = choice.delta or _Delta()
        text = _text(choice.text) + _text(delta.reasoning_content) + _text(delta.reasoning) + _text(delta.content)
        self._texts.append(text)
        # Half of a character is a token without a text; the count of such an event tells.
        if tokens is not None and tokens > self._tokens:
            self._tokens = tokens
            self._marks.append(Mark(at_s, tokens))
        elif text:
            self._marks.append(Mark(at_s, tokens))

    def has_output(self) -> bool:
        return bool(self._marks)

    def answer(self, end_s: float, *, stopped: bool = False) -> Answer:
        return Answer(
            asked_at_s=self._asked_at_s,
            marks=tuple(self._marks),
            end_s=end_s,
            usage=self._usage,
            asked_tokens=self._asked_tokens,
            finish=self._finish,
            text="".join(self._texts),
            stopped=stopped,
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
