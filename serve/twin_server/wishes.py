"""What a request or a script wishes of an answer, and what an answer is. Values: ``answers`` makes one of the other."""

from __future__ import annotations

import math
from enum import StrEnum
from random import Random
from typing import Annotated, Any

import msgspec

from serve.twin_server.calls import ToolSpec
from serve.twin_server.pieces import Ids


class BadWish(ValueError):
    """An answer cannot be as the request wishes. The message names the field."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log-normal, in tokens."""

    median: int
    sigma: float = 0.7
    """Of the logarithm; 0: always the median."""
    least: int = 1
    most: int = 8192

    def draw(self, random: Random) -> int:
        if self.median <= 0:
            return 0
        return max(self.least, min(self.most, round(random.lognormvariate(math.log(self.median), self.sigma))))


class AnswerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How answers are that nobody has wished otherwise."""

    seed: int = 0
    content: Lengths = Lengths(median=160)
    reasoning: Lengths = Lengths(median=120)
    call_share: float = 0.5
    """Of the answers to requests that offer tools."""
    content_before_call_share: float = 0.5
    """Of the answers with a call."""


class WishedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | None = None
    """``None``: made by the tool's schema."""


class Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``custom_params: {"twin": {…}}`` of a request, or a script's answer. What is left out is drawn."""

    tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Of all that is written: reasoning, content, calls and the end marker."""
    reasoning_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    text: str | None = None
    reasoning: str | None = None
    calls: tuple[WishedCall, ...] | None = None
    """An empty list: none."""
    call_share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """How probable a call is where tools are offered."""
    seed: int | None = None
    """Another than the engine's."""
    accept_length: Annotated[float, msgspec.Meta(ge=1)] | None = None
    """Tokens a decode step, where the text is easier or harder to guess than the machine's."""

    def __post_init__(self) -> None:
        if self.tokens is not None and self.text is not None:
            raise ValueError("either tokens or text")
        if self.reasoning_tokens is not None and self.reasoning is not None:
            raise ValueError("either reasoning_tokens or reasoning")


class Choice(StrEnum):
    """``tool_choice``."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class Offer(msgspec.Struct, frozen=True):
    """The tools of a request. A single tool that was chosen by name is the only one of a required choice."""

    tools: tuple[ToolSpec, ...] = ()
    choice: Choice = Choice.AUTO

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.choice is not Choice.NONE

    def find(self, name: str) -> ToolSpec | None:
        return next((tool for tool in self.tools if tool.name == name), None)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request cuts its answer."""

    max_tokens: int
    min_tokens: int = 0
    """Before the end marker."""
    ignore_eos: bool = False
    """Write on until ``max_tokens``."""
    stop: tuple[str, ...] = ()
    thinking_tokens: int | None = None
    """Reasoning is closed after so many."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """All that will be written after the prompt."""

    ids: Ids
    """Cut at the limits; the end marker included where it ends by itself."""
    natural_tokens: int
    """Where the model would stop by itself, however small ``max_tokens`` is; with ``ignore_eos`` as many as these."""
    finish: str
    """``stop`` or ``length``."""
    matched_stop: str | int | None
    """The stop text, or the end marker's id."""
    visible_chars: int
    """Of ``decode(ids, skip_special_tokens=True)``: a stop text and what stands behind it is not shown."""
    in_reasoning: bool
    """It begins inside the thinking phase, by the prompt's tokens."""
    question: str
    """Names the question; the same for all requests that go on with one answer."""


def read_wish(custom_params: Any) -> Wish:
    """The part of ``custom_params`` that is for the twin. Raises :class:`BadWish`."""
    if not isinstance(custom_params, dict) or "twin" not in custom_params:
        return Wish()
    try:
        return msgspec.convert(custom_params["twin"], Wish)
    except msgspec.ValidationError as error:
        raise BadWish(f"custom_params.twin: {error}") from error
