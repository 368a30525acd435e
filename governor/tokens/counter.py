"""Counts the tokens of a chat prompt: exactly where the model's tokenizer and template are at hand, else as an
estimate that says how far off it may be. One counter serves one model.

A counter does no I/O and is safe to share between threads: 400 KB of text that it has not seen take some 50 ms, too
long for an event loop. What it computed for a message it remembers under the message's digest, so that a conversation
that grew by one message costs that message.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Protocol

import msgspec

from governor.tokens.digests import decode_fields, digest_message, text_of
from governor.tokens.estimate import NOTHING, Range, estimate_text
from governor.tokens.framing import Framing, Remembered, kind_of
from governor.tokens.model import KnownPrefix, PromptParts
from governor.tokens.template import TemplateFailed
from governor.types import TokenCount

__all__ = [
    "Counter", "EstimateCounter", "ImageCost", "KnownPrefix", "PromptParts", "TokenizerCounter", "upper_bound",
]  # fmt: skip

_REMEMBERED_MESSAGES = 65_536
_SAMPLES = 32
_REMEMBERED_COUNTS = 256
_ENOUGH_RATIOS = 4
_LIKE = 0.2
"""Prompts whose compositions differ by less are taken to be alike."""
_ENOUGH_ERRORS = 3


class Counter(Protocol):
    """Counts prompts of one model."""

    def count(self, prompt: PromptParts) -> TokenCount:
        """Tokens of the prompt as the engine will see it, framing, tools and the invitation to answer included.

        Remembers. Raises nothing: what cannot be read is estimated by its bytes.
        """
        ...

    def sizes(self, messages: Sequence[bytes]) -> list[int]:
        """Tokens of each message, its framing and its reasoning included, whether or not the template would show that.
        For weighing them against each other: a whole prompt is not their sum."""
        ...

    def learn(self, counted: TokenCount, reported_prompt_tokens: int) -> None:
        """Correct later counts by what the engine reported for a prompt that was counted. Changes state."""
        ...


class ImageCost(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one image. Engines cost an image by its size after scaling, which is not known here."""

    tokens: int = 1280
    """The middle figure."""
    margin: int = 1280
    """The true cost is taken to be within this of ``tokens``."""

    @property
    def range(self) -> Range:
        return Range(self.tokens - self.margin, self.tokens, self.tokens + self.margin)


_FRAME = Range(3, 5, 14)
"""Tokens of role marks and line ends around one message, over the templates of common models."""
_PROMPT_FRAME = Range(0, 4, 60)
"""Tokens once per prompt: BOS, a default system prompt, the invitation to answer."""
_FIELD = Range(1, 4, 16)
"""Tokens around one tool call."""


class EstimateCounter:
    """Counts by bytes, starting from the engine's last reported figure where there is one, corrected as it learns."""

    def __init__(self, *, image: ImageCost | None = None) -> None:
        self._image = (image or ImageCost()).range
        self._messages: Remembered[bytes, Range] = Remembered(_REMEMBERED_MESSAGES)
        self._counted: OrderedDict[TokenCount, Range] = OrderedDict()
        self._samples: deque[tuple[Range, float]] = deque(maxlen=_SAMPLES)
        self._lock = Lock()

    def count(self, prompt: PromptParts) -> TokenCount:
        known = prompt.known
        if known is not None:
            change = self._sum(prompt, known.messages)
            for raw in known.removed:
                change = change.less(self._messages.get(digest_message(raw), lambda raw=raw: self.message(raw)))  # type: ignore[misc]
            return self._judge(change, known.prompt_tokens, "usage")
        total = self._sum(prompt, 0).plus(_PROMPT_FRAME)
        if prompt.tools is not None:
            total = total.plus(_tools_range(prompt.tools))
        counted = self._judge(total, 0, "estimate")
        with self._lock:
            self._counted[counted] = total
            if len(self._counted) > _REMEMBERED_COUNTS:
                self._counted.popitem(last=False)
        return counted

    def sizes(self, messages: Sequence[bytes]) -> list[int]:
        return [
            round(
                self._messages.get(digest_message(raw), lambda raw=raw: self.message(raw)).usual  # type: ignore[misc]
                + _reasoning_tokens(raw)
            )
            for raw in messages
        ]

    def learn(self, counted: TokenCount, reported_prompt_tokens: int) -> None:
        with self._lock:
            total = self._counted.get(counted)
            if total is not None and total.usual > 0 and reported_prompt_tokens > 0:
                self._samples.append((total, reported_prompt_tokens / total.usual))

    def message(self, raw: bytes) -> Range:
        """The range of one message, its framing included. Pure."""
        fields = decode_fields(raw)
        if fields is None:
            return estimate_text(raw).plus(_FRAME)
        total = _FRAME.plus(_text_range(text_of(fields.get("content")))).plus(self._image.times(_images(fields)))
        for key in ("reasoning_content", "reasoning"):
            kept = _text_range(fields.get(key))
            total = total.plus(Range(0, 0, kept.greatest))
        calls = fields.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                texts = _text_range(function.get("name")).plus(_text_range(function.get("arguments")))
                total = total.plus(_FIELD).plus(texts)
        return total

    def _sum(self, prompt: PromptParts, start: int) -> Range:
        digests = prompt.digests or [digest_message(raw) for raw in prompt.messages]
        total = NOTHING
        for raw, digest in zip(prompt.messages[start:], digests[start:], strict=True):
            total = total.plus(self._messages.get(digest, lambda raw=raw: self.message(raw)))  # type: ignore[misc]
        return total

    def _judge(self, total: Range, known_tokens: int, source: str) -> TokenCount:
        """The classes' own bounds, narrowed where answers to prompts of like composition were seen: then to twice
        their spread, but never to less than half."""
        with self._lock:
            ratios = [ratio for seen, ratio in self._samples if seen.unlike(total) <= _LIKE]
        tokens, narrowed = total.usual, False
        if len(ratios) >= _ENOUGH_RATIOS:
            middle = statistics.median(ratios)
            tokens, narrowed = min(max(total.usual * middle, total.least), total.greatest), True
        above, below = total.greatest - tokens, tokens - total.least
        if narrowed:
            spread = abs(tokens) * 2 * max(abs(ratio / middle - 1) for ratio in ratios)
            above, below = (min(side, max(spread, side / 2)) for side in (above, below))
        return TokenCount(
            tokens=max(0, round(known_tokens + tokens)),
            margin=math.ceil(max(above, below)),
            margin_below=math.ceil(below),
            source=source,
        )


def _reasoning_tokens(raw: bytes) -> float:
    """Of the fields that :meth:`EstimateCounter.message` takes for left out, as most templates leave them."""
    if b'"reasoning' not in raw:
        return 0.0
    fields = decode_fields(raw) or {}
    return max(_text_range(fields.get(key)).usual for key in ("reasoning_content", "reasoning"))


def _text_range(value: object) -> Range:
    return estimate_text(value.encode("utf-8", "replace")) if isinstance(value, str) and value else NOTHING


def _tools_range(tools: bytes) -> Range:
    """Templates write tools as JSON or in shorter or longer notations of their own."""
    as_sent = estimate_text(tools)
    return Range(as_sent.least * 0.5, as_sent.usual, as_sent.greatest * 1.5 + 300)


_IMAGE_TYPES = ("image_url", "input_image", "image")


def _images(fields: dict[str, Any]) -> int:
    content = fields.get("content")
    parts = content if isinstance(content, list) else []
    return sum(1 for part in parts if isinstance(part, dict) and part.get("type") in _IMAGE_TYPES)


class _Message(msgspec.Struct, frozen=True):
    tokens: int
    kind: str
    images: int


class TokenizerCounter:
    """Counts with the model's own tokenizer and chat template; falls back to ``estimate`` where the template fails."""

    def __init__(
        self, framing: Framing, *, estimate: EstimateCounter, proven: bool = True, image: ImageCost | None = None
    ) -> None:
        self._framing = framing
        self._estimate = estimate
        self._proven = proven
        self._image = image or ImageCost()
        self._messages: Remembered[tuple[bytes, str], _Message] = Remembered(_REMEMBERED_MESSAGES)
        self._openings: Remembered[tuple[bytes, bytes | None], _Message] = Remembered(256)
        self._invitations: Remembered[str, int] = Remembered(16)
        self._tools: Remembered[bytes, list[Any] | None] = Remembered(64)
        self._errors: deque[int] = deque(maxlen=_SAMPLES)
        self._offset = 0
        self._lock = Lock()

    def count(self, prompt: PromptParts) -> TokenCount:
        try:
            tokens, images = self._exactly(prompt)
        except (TemplateFailed, _Unreadable):
            return self._estimate.count(prompt)
        tokens = max(0, tokens + self._offset)
        slack = self._slack(tokens)
        if not images:
            return TokenCount(tokens=tokens, margin=slack, source="tokenizer")
        return TokenCount(
            tokens=tokens + images * self._image.tokens, margin=slack + images * self._image.margin, source="estimate"
        )

    def sizes(self, messages: Sequence[bytes]) -> list[int]:
        sizes, before = [], "user"
        for raw in messages:
            try:
                message = self._messages.get(
                    (digest_message(raw), before),
                    lambda raw=raw, before=before: self._message(raw, before),  # type: ignore[misc]
                )
            except (TemplateFailed, _Unreadable):
                sizes += self._estimate.sizes([raw])
                continue
            before = message.kind
            sizes.append(message.tokens + message.images * self._image.tokens)
        return sizes

    def learn(self, counted: TokenCount, reported_prompt_tokens: int) -> None:
        self._estimate.learn(counted, reported_prompt_tokens)
        if counted.source == "tokenizer" and reported_prompt_tokens > 0:
            with self._lock:
                self._errors.append(reported_prompt_tokens - (counted.tokens - self._offset))
                if len(self._errors) >= _ENOUGH_ERRORS:
                    self._offset = round(statistics.median(self._errors))

    def _slack(self, tokens: int) -> int:
        """None for a tokenizer proven equal, until an engine reports other figures."""
        unproven = 0 if self._proven else max(1, tokens // 1000)
        with self._lock:
            return max((abs(error - self._offset) for error in self._errors), default=unproven)

    def _exactly(self, prompt: PromptParts) -> tuple[int, int]:
        """Tokens and images of the prompt. A message that the template refuses out of its place may do in it."""
        if self._framing.additive:
            with suppress(TemplateFailed):
                return self._added_up(prompt)
        return self._whole(prompt)

    def _added_up(self, prompt: PromptParts) -> tuple[int, int]:
        messages, tools = prompt.messages, prompt.tools
        if not messages:
            raise _Unreadable
        digests = prompt.digests or [digest_message(raw) for raw in messages]
        opening_key = (digests[0], digest_message(tools) if tools is not None else None)
        last = self._openings.get(opening_key, lambda: self._opening(messages[0], tools))
        tokens, images = last.tokens, last.images
        for raw, digest in zip(messages[1:], digests[1:], strict=True):
            before = last.kind
            last = self._messages.get((digest, before), lambda raw=raw, before=before: self._message(raw, before))  # type: ignore[misc]
            tokens += last.tokens
            images += last.images
        return tokens + self._invitations.get(last.kind, lambda: self._framing.generation_prompt(last.kind)), images

    def _whole(self, prompt: PromptParts) -> tuple[int, int]:
        fields = [_readable(raw) for raw in prompt.messages]
        tools = self._tools_of(prompt.tools)
        return self._framing.whole([self._framing.prepare(each) for each in fields], tools), sum(map(_images, fields))

    def _opening(self, raw: bytes, tools: bytes | None) -> _Message:
        fields = _readable(raw)
        message = self._framing.prepare(fields)
        return _Message(self._framing.opening(message, self._tools_of(tools)), kind_of(message), _images(fields))

    def _message(self, raw: bytes, before: str) -> _Message:
        fields = _readable(raw)
        message = self._framing.prepare(fields)
        return _Message(self._framing.message(message, before), kind_of(message), _images(fields))

    def _tools_of(self, raw: bytes | None) -> list[Any] | None:
        return None if raw is None else self._tools.get(digest_message(raw), lambda: _readable_tools(raw))


class _Unreadable(Exception):
    """A message that is not a JSON object, or tools that are not a list."""


def _readable(raw: bytes) -> dict[str, Any]:
    fields = decode_fields(raw)
    if fields is None:
        raise _Unreadable
    return fields


def _readable_tools(raw: bytes) -> list[Any] | None:
    try:
        return msgspec.json.decode(raw, type=list[Any] | None)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _Unreadable from error


_FRAME_BOUND = 64
_PROMPT_BOUND = 512
_CALLS = (b'"tool_calls"', b'"function_call"')


def upper_bound(parts: PromptParts, *, image: ImageCost | None = None) -> int:
    """A figure that the true count does not exceed, for any byte-level BPE; costs a look at the new bytes.

    A token is at least one byte of rendered text, and JSON is no shorter than the text in it. Multiplied where a
    template may write more than was sent (tool calls, tools); text beyond ASCII may triple when brought to NFC
    (Unicode, FAQ on normalization). Starts from the reported figure of a known prefix. Images count at their upper
    cost.
    """
    known = parts.known
    start = known.messages if known is not None else 0
    total = known.prompt_tokens if known is not None else _PROMPT_BOUND
    if known is None and parts.tools is not None:
        total += 4 * _normalised(parts.tools) + _PROMPT_BOUND
    cost = image or ImageCost()
    for raw in parts.messages[start:]:
        factor = 2 if any(mark in raw for mark in _CALLS) else 1
        total += factor * _normalised(raw) + _FRAME_BOUND
        if b'"image' in raw or b'"input_image"' in raw:
            total += raw.count(b"image") * (cost.tokens + cost.margin)
    return total


def _normalised(raw: bytes) -> int:
    return len(raw) if raw.isascii() else 3 * len(raw)
