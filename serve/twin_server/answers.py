"""What the twin's model writes: a function of the prompt's tokens, of a seed and of what the request wishes.

Only the tokens up to the last ``<|im_start|>assistant`` count as the question. What stands behind it is taken as the
answer's beginning, so a request that comes back with its own partial output goes on as the uninterrupted one had, and
one whose thinking somebody has closed goes on with the answer's content.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from random import Random

import msgspec

from serve.twin_server.arguments import make_arguments
from serve.twin_server.calls import write_call
from serve.twin_server.pieces import END_THINK, IM_END, Ids, decode, encode
from serve.twin_server.template import ASSISTANT, NOT_THINKING, THINKING, THINKING_ENDS
from serve.twin_server.wishes import (
    Answer,
    AnswerSettings,
    BadWish,
    Choice,
    Lengths,
    Limits,
    Offer,
    Wish,
    WishedCall,
    read_wish,
)
from serve.twin_server.words import Writer

__all__ = [
    "Answer",
    "AnswerSettings",
    "BadWish",
    "Choice",
    "Lengths",
    "Limits",
    "Offer",
    "Wish",
    "WishedCall",
    "plan",
    "read_wish",
    "reasoning_tokens",
]

_ASSISTANT, _THINKING, _NOT_THINKING = encode(ASSISTANT), encode(THINKING), encode(NOT_THINKING)
_BREAK = encode("\n\n")
_CLOSING_TOKENS = len(encode(THINKING_ENDS))
_LEAST_OVERLAP_CHARS = 8


class _Draft(msgspec.Struct, frozen=True):
    reasoning: str | None
    """``None``: the prompt asks for none."""
    rest: str
    """Content and calls."""

    @property
    def whole(self) -> str:
        return self.rest if self.reasoning is None else f"{self.reasoning}{THINKING_ENDS}{self.rest}"


class _More:
    """What a model goes on with that may not end."""

    def __init__(self, question: str) -> None:
        self._writer = Writer(f"{question}:more")

    def ids(self, start: int, stop: int) -> Ids:
        return (_BREAK + self._writer.ids(stop))[start:stop]


def plan(
    ids: Ids, *, settings: AnswerSettings, limits: Limits, wish: Wish | None = None, offer: Offer | None = None
) -> Answer:
    """What will be written after ``ids``. Raises :class:`BadWish`."""
    wish, offer = wish or Wish(), offer or Offer()
    start = _answer_start(ids)
    written, thinks = ids[start:], False
    if written[: len(_NOT_THINKING)] == _NOT_THINKING:
        written = written[len(_NOT_THINKING) :]
    elif written[: len(_THINKING)] == _THINKING:
        written, thinks = written[len(_THINKING) :], True
    seed = settings.seed if wish.seed is None else wish.seed
    digest = hashlib.blake2b(ids[:start].tobytes(), digest_size=16)
    digest.update(str(seed).encode())
    question = digest.hexdigest()
    draft = _Composer(question, settings, wish, offer).draft(thinks=thinks, thinking_tokens=limits.thinking_tokens)
    more = _More(question)
    rest, more_at = _rest(draft, written, more)
    return _limited(rest, more, more_at, limits, question, in_reasoning=thinks and END_THINK not in written)


def reasoning_tokens(ids: Ids) -> int:
    """Of an output that begins in the thinking phase. The closing marker counts (``Req.update_reasoning_tokens``)."""
    return ids.index(END_THINK) + 1 if END_THINK in ids else len(ids)


class _Composer:
    """Draws the parts of one answer, each from a seed of its own, so that a wish for one leaves the others."""

    def __init__(self, question: str, settings: AnswerSettings, wish: Wish, offer: Offer) -> None:
        self._question = question
        self._settings = settings
        self._wish = wish
        self._offer = offer
        self._lengths = self._random("lengths")
        self._drawn_reasoning = settings.reasoning.draw(self._lengths)
        self._drawn_content = settings.content.draw(self._lengths)

    def draft(self, *, thinks: bool, thinking_tokens: int | None) -> _Draft:
        reasoning = self._reasoning() if thinks else None
        if reasoning is not None and thinking_tokens is not None:
            reasoning = decode(encode(reasoning)[:thinking_tokens])
        draft = _Draft(reasoning, "")
        room = None if self._wish.tokens is None else self._wish.tokens - 1 - len(encode(draft.whole))
        calls = self._calls(room)
        content = self._content(room, calls)
        return _Draft(reasoning, "\n\n".join(part for part in (content, calls) if part))

    def _reasoning(self) -> str:
        wish = self._wish
        if wish.reasoning is not None:
            return wish.reasoning
        tokens = wish.reasoning_tokens
        if tokens is None:
            tokens = self._drawn_reasoning
            if wish.tokens is not None:
                tokens = max(0, min(tokens, wish.tokens // 2 - _CLOSING_TOKENS))
        return Writer(f"{self._question}:reasoning").text(tokens)

    def _calls(self, room: int | None) -> str:
        if self._wish.calls is not None:
            return "\n".join(self._call(call, index) for index, call in enumerate(self._wish.calls))
        if self._wish.text is not None or not self._draws_call():
            return ""
        name = self._random("tool").choice(self._offer.tools).name
        call = self._call(WishedCall(name=name), 0)
        has_room = room is None or len(_BREAK + encode(call)) < room or self._offer.choice is Choice.REQUIRED
        return call if has_room else ""

    def _draws_call(self) -> bool:
        if not self._offer.may_call or self._offer.choice is Choice.REQUIRED:
            return self._offer.may_call
        share = self._settings.call_share if self._wish.call_share is None else self._wish.call_share
        return self._random("call").random() < share

    def _call(self, call: WishedCall, index: int) -> str:
        arguments = call.arguments
        if arguments is None:
            tool = self._offer.find(call.name)
            arguments = make_arguments(tool.parameters, f"{self._question}:{index}") if tool else {}
        return write_call(call.name, arguments)

    def _content(self, room: int | None, calls: str) -> str:
        if self._wish.text is not None:
            return self._wish.text
        writer, wished = Writer(f"{self._question}:content"), self._wish.tokens
        if room is None or wished is None:
            is_silent = self._lengths.random() >= self._settings.content_before_call_share
            return "" if calls and (is_silent or self._wish.calls) else writer.text(self._drawn_content)
        left = room - len(encode(calls))
        if left < 0 or (calls and left == len(_BREAK)):
            others = wished - left
            raise BadWish(f"tokens: {wished} cannot be met: the other parts take {others}, and text beside a call 2")
        return writer.text(left - len(_BREAK) if calls and left else left)

    def _random(self, purpose: str) -> Random:
        return Random(f"{self._question}:{purpose}")  # noqa: S311 - reproducible, not a secret


def _answer_start(ids: Ids) -> int:
    """Where the answer's tokens begin; the end where no marker opens one."""
    data, marker = ids.tobytes(), _ASSISTANT.tobytes()
    at = data.rfind(marker)
    while at % ids.itemsize:  # a marker's bytes, but over the borders of tokens; -1 is such a place too
        if at < 0:
            return len(ids)
        at = data.rfind(marker, 0, at + len(marker) - 1)
    return at // ids.itemsize + len(_ASSISTANT)


def _rest(draft: _Draft, written: Ids, more: _More) -> tuple[Ids, int]:
    """What of the draft is still to be written, and how much of ``more`` is written."""
    while written and written[-1] == IM_END:
        written = written[:-1]
    whole = encode(draft.whole)
    if whole[: len(written)] == written:
        return whole[len(written) :], 0
    for said, planned, then in _readings(draft, decode(written)):
        if planned.startswith(said):
            return encode(planned[len(said) :] + then), 0
        if said.startswith(planned) and not then:
            further = encode(said[len(planned) :])
            if more.ids(0, len(further)) == further:
                return array("I"), len(further)
    return encode(_after_overlap(said, planned) + then), 0


def _readings(draft: _Draft, written: str) -> Iterator[tuple[str, str, str]]:
    """What is said, of what was planned to be said there, and what follows that."""
    yield written, draft.whole, ""
    thought, closing, said = written.partition("</think>")
    if draft.reasoning is None:
        yield written, draft.rest, ""
    elif closing:
        yield said, f"\n\n{draft.rest}", ""
    else:
        yield thought, draft.reasoning, THINKING_ENDS + draft.rest


def _after_overlap(said: str, planned: str) -> str:
    """What is left of ``planned`` where ``said`` ends with its beginning."""
    for length in range(min(len(planned), len(said)), _LEAST_OVERLAP_CHARS - 1, -1):
        if said.endswith(planned[:length]):
            return planned[length:]
    return planned


def _limited(rest: Ids, more: _More, more_at: int, limits: Limits, question: str, *, in_reasoning: bool) -> Answer:
    ids = rest[:]
    least = limits.max_tokens if limits.ignore_eos else limits.min_tokens
    if len(ids) < least:
        ids.extend(more.ids(more_at, more_at + least - len(ids)))
    if not limits.ignore_eos:
        ids.append(IM_END)
    natural = len(ids)
    del ids[limits.max_tokens :]
    is_whole = not limits.ignore_eos and len(ids) == natural
    text = decode(ids, skip_special_tokens=True)
    matched: str | int | None = IM_END if is_whole else None
    if stop := _first_stop(text, limits.stop):
        matched, end = stop
        natural = _tokens_of(ids, end)
        del ids[natural:]
        text = text[: end - len(matched)]
    return Answer(
        ids=ids,
        natural_tokens=natural,
        finish="length" if matched is None else "stop",
        matched_stop=matched,
        visible_chars=len(text),
        in_reasoning=in_reasoning,
        question=question,
    )


def _first_stop(text: str, stops: tuple[str, ...]) -> tuple[str, int] | None:
    """The stop text that is whole first, and where it ends."""
    found = [(text.find(stop) + len(stop), stop) for stop in stops if stop and stop in text]
    if not found:
        return None
    end, stop = min(found)
    return stop, end


def _tokens_of(ids: Ids, chars: int) -> int:
    """How many tokens it takes to have so many characters."""
    for count, token in enumerate(ids, 1):
        chars -= len(decode((token,), skip_special_tokens=True))
        if chars <= 0:
            return count
    return len(ids)
