"""The twin's output as it streams: reasoning, content and tool calls as a chat API tells them apart.

A token is whole characters and a marker is one token, so nothing is ever half there. As with SGLang, whether an output
begins as reasoning is for the request to say, not for its tokens; line breaks around markers belong to the parts beside
them (``parser/reasoning_parser.py``); an argument of a call is told when it is whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from itertools import groupby

import msgspec

from serve.twin_server.calls import parameter_schema, read_value, write_json
from serve.twin_server.pieces import END_THINK, END_TOOL_CALL, THINK, TOOL_CALL, decode
from serve.twin_server.wishes import Answer, Offer


class Reasoning(msgspec.Struct, frozen=True):
    text: str


class Text(msgspec.Struct, frozen=True):
    text: str


class CallStarted(msgspec.Struct, frozen=True):
    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """A further piece of the arguments' JSON."""

    index: int
    json: str


Delta = Reasoning | Text | CallStarted | CallArguments


class ParsedCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str
    """JSON, unless the call was cut off."""


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """An output in one piece."""

    reasoning: str
    content: str
    calls: tuple[ParsedCall, ...]


_TAG = re.compile(
    r"\s*(?:<function=(?P<function>[^>]+)>|<parameter=(?P<parameter>[^>]+)>\n?(?P<value>.*?)\n?</parameter>"
    r"|(?P<end></function>))",
    re.DOTALL,
)
_ENDS = ("</parameter>", "</function>")
_LONGEST_END = max(map(len, _ENDS)) + 4
"""With as much of the next tag as can stand in the token that ends it."""


class _Part(Enum):
    REASONING = auto()
    TEXT = auto()
    CALL = auto()


class AnswerParser:
    """Fed with an answer's tokens in order, in any portions."""

    def __init__(
        self,
        answer: Answer,
        offer: Offer | None = None,
        *,
        in_reasoning: bool | None = None,
        separate_reasoning: bool = True,
    ) -> None:
        """Calls are told apart only where the request offers tools. ``in_reasoning``: what the request says, if not
        what the prompt's tokens say."""
        begins = answer.in_reasoning if in_reasoning is None else in_reasoning
        self._question = answer.question
        self._offer = offer or Offer()
        self._part = _Part.REASONING if begins and separate_reasoning else _Part.TEXT
        self._room = answer.visible_chars
        self._call = _CallReader(self._offer)
        self._calls = 0

    def feed(self, ids: Iterable[int]) -> list[Delta]:
        """What these tokens show."""
        return _joined(delta for token in ids for delta in self._token(token))

    def _token(self, token: int) -> Iterator[Delta]:
        text = decode((token,), skip_special_tokens=True)[: self._room]
        self._room -= len(text)
        thinks = self._part is _Part.REASONING
        if not text or (thinks and token == THINK):  # a model may open what the prompt has opened
            return
        if thinks and token == END_THINK:
            self._part = _Part.TEXT
        elif self._offer.may_call and token == TOOL_CALL:
            self._part, self._call = _Part.CALL, _CallReader(self._offer)
        elif self._part is _Part.CALL and token == END_TOOL_CALL:
            self._part = _Part.TEXT
        elif self._part is _Part.CALL:
            yield from self._call_text(text)
        else:
            yield Reasoning(text) if thinks else Text(text)

    def _call_text(self, text: str) -> Iterator[Delta]:
        for tag in self._call.feed(text):
            if isinstance(tag, _Name):
                self._calls += 1
                yield CallStarted(self._calls - 1, _call_id(self._question, self._calls), tag.name)
            else:
                yield CallArguments(self._calls - 1, tag)


class _Name(msgspec.Struct, frozen=True):
    name: str


class _CallReader:
    """The text between the markers of one call."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._name: str | None = None
        self._arguments = 0
        self._pieces: list[str] = []
        self._tail = ""

    def feed(self, text: str) -> Iterator[_Name | str]:
        """The function's name, then pieces of its arguments' JSON."""
        self._pieces.append(text)
        self._tail = (self._tail + text)[-_LONGEST_END:]
        if self._name is not None and not any(end in self._tail for end in _ENDS):
            return  # a long argument is searched only when it can be over
        buffer, at = "".join(self._pieces), 0
        while tag := _TAG.match(buffer, at):
            at = tag.end()
            yield self._tag(tag)
        self._pieces = [buffer[at:]]

    def _tag(self, tag: re.Match[str]) -> _Name | str:
        if name := tag["function"]:
            self._name = name
            return _Name(name)
        if tag["end"]:
            return "}" if self._arguments else "{}"
        self._arguments += 1
        schema = parameter_schema(self._offer.find(self._name or ""), tag["parameter"])
        written = f"{write_json(tag['parameter'])}: {write_json(read_value(tag['value'], schema))}"
        return f"{', ' if self._arguments > 1 else '{'}{written}"


def _joined(deltas: Iterable[Delta]) -> list[Delta]:
    """Texts that follow each other as one."""
    joined: list[Delta] = []
    for kind, group in groupby(deltas, type):
        if kind is Reasoning or kind is Text:
            joined.append(kind("".join(delta.text for delta in group if isinstance(delta, Reasoning | Text))))
        else:
            joined.extend(group)
    return joined


def _call_id(question: str, number: int) -> str:
    return f"call_{hashlib.blake2b(f'{question}:{number}'.encode(), digest_size=12).hexdigest()}"


def parse(answer: Answer, offer: Offer | None = None, *, in_reasoning: bool | None = None) -> Parsed:
    """All of an answer at once."""
    parser = AnswerParser(answer, offer, in_reasoning=in_reasoning)
    return gather(parser.feed(answer.ids))


def gather(deltas: Iterable[Delta]) -> Parsed:
    """What deltas say together. Of the content, what stands before the calls (``detect_and_parse``)."""
    reasoning, content = "", ""
    calls: list[ParsedCall] = []
    for delta in deltas:
        match delta:
            case Reasoning(text):
                reasoning += text
            case Text(text) if not calls:
                content += text
            case Text(_):
                pass  # line breaks between calls
            case CallStarted(_, id_, name):
                calls.append(ParsedCall(id_, name, ""))
            case CallArguments(index, json):
                calls[index] = msgspec.structs.replace(calls[index], arguments=calls[index].arguments + json)
    return Parsed(reasoning=reasoning, content=content, calls=tuple(calls))
