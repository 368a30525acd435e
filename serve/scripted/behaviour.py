"""How one generation call is answered: the knobs of an engine and the behaviours that scripts are made of.

A behaviour says what the model does and what goes wrong; the engine supplies ids, framing, counts and pace. The same
behaviour works on all four APIs. ``WORDS`` lists short words for the common ones.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

import msgspec

from serve.scripted.script import BadScript, Ending
from serve.scripted.tokens import Counting

WORDS = """\
    say            a generated answer            say:TEXT       exactly this answer
    call:NAME      a tool call without arguments call:NAME:JSON a tool call
    429  429/3     too many requests, Retry-After 3             503  503/2  400  ...  any error status
    overflow:vllm  the context overflow of that engine          hang  never answers
    cut@4  rst@4   breaks off before the fifth event            eof@4     ends well there, but without a finish
    cut  rst       breaks off before the head                   error@4   an error event instead of the fifth
    length         ends at the output cap                       empty     reasoning only

A word may end in *N to stand N times.
"""


class Overflow(StrEnum):
    """Whose context overflow is imitated. The wordings are in ``serve.scripted.errors``."""

    SGLANG = "sglang"
    SGLANG_SCHEDULER = "sglang_scheduler"
    """Raised after the tokenizer let the request pass; neither client recognises this wording."""
    VLLM = "vllm"
    OPENAI = "openai"
    LLAMACPP = "llamacpp"


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = {}


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer. Without any field: a generated text of the engine's usual length."""

    say: str | int | None = None
    """The text of the answer, or how many tokens to generate; ``None``: the engine's usual length, or nothing
    beside tool calls."""
    reasoning: str | int | None = None
    """Reasoning before the text: a text or a number of tokens; ``None``: the engine's usual."""
    calls: tuple[ScriptedCall, ...] = ()
    finish: str | None = None
    """Finish reason in OpenAI's words in place of the true one."""
    usage: tuple[int, int] | None = None
    """Prompt and completion tokens to report in place of the true ones."""
    cached_tokens: int | None = None
    """Cached tokens to report in place of the true ones."""
    delay_s: float = 0.0
    """Silence before the head of the answer."""
    hang_s: float | None = None
    """Accept the request, say nothing for so long, then close without an answer."""
    status: int = 200
    message: str | None = None
    """Text of the error for a ``status`` of 400 and more, or of the in-stream error."""
    code: str | int | None = None
    """``code`` of that error."""
    retry_after_s: int | None = None
    """``Retry-After`` of that error."""
    overflow: Overflow | None = None
    """Refuse as this engine refuses a prompt over its window, whatever the real length."""
    window_tokens: int | None = None
    """Hold this call to another window than the engine's."""
    break_after: int | None = None
    """Events that are sent before ``ending`` or ``error_frame`` strikes, the opening one included; more than there
    are: just before the closing one. ``None``: the answer is completed. An answer in one body breaks at its middle."""
    ending: Ending = Ending.CUT
    """How the connection ends there."""
    error_frame: bool = False
    """Break off with an error event of the stream in place of ``ending``."""
    ends_before_head: bool = False
    """Apply ``ending`` before a single byte was sent."""
    times: int = 1
    """How many calls are answered this way before the script goes on."""


class Knobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine a conversation runs on."""

    model: str = "scripted"
    """Id in ``/v1/models``; requests may name any model."""
    seed: int = 0
    """The same seed and prompt give the same answer."""
    window_tokens: int = 131_072
    """Prompt and output together."""
    advertise_window: bool = True
    """Tell ``max_model_len`` in ``/v1/models``."""
    overflow: Overflow = Overflow.SGLANG
    """Wording of a refusal for length."""
    answer_tokens: int = 32
    """Length of a generated answer that nothing stops earlier."""
    reasoning_tokens: int = 0
    """Reasoning before each generated answer."""
    tokens_per_chunk: int = 1
    head_delay_s: float = 0.0
    """Silence before every answer, refusals included."""
    prefill_tokens_per_s: float = 0.0
    """Pace of uncached prompt tokens; 0: no time at all."""
    decode_tokens_per_s: float = 0.0
    """Pace of output tokens of one stream; 0: as fast as the connection takes them."""
    remembered_prompts: int = 64
    """Prompts the prefix cache holds; 0 switches it off."""
    report_cached_tokens: bool = True
    """Tell ``cached_tokens`` in usage, as SGLang does only when asked at its start."""
    counting: Counting = Counting.WORDS
    """What a token is."""
    count_endpoints: bool = True
    """Serve ``/tokenize`` and ``/v1/messages/count_tokens``."""
    pool_tokens: int | None = None
    """KV pool of the ``pool_model`` mode."""
    keep_bodies: bool = True
    """Keep the bytes of answers in the hits; off for long benchmarks."""


_WORD = re.compile(r"(?P<verb>[a-z_]+|\d{3})(?:@(?P<after>\d+))?(?:/(?P<retry>\d+))?(?::(?P<rest>.*))?", re.DOTALL)
_TIMES = re.compile(r"^(?P<word>.+?)\*(?P<times>\d+)$", re.DOTALL)


def parse_word(text: str) -> Behaviour:
    """The behaviour a word of ``WORDS`` stands for. Raises :class:`BadScript`."""
    repeated = _TIMES.match(text)
    word, times = (repeated["word"], int(repeated["times"])) if repeated else (text, 1)
    match = _WORD.fullmatch(word)
    if match is None:
        raise BadScript(f"not a behaviour: {text!r}")
    return msgspec.structs.replace(_of_word(match, text), times=times)


def _of_word(match: re.Match[str], text: str) -> Behaviour:
    verb, rest = match["verb"], match["rest"]
    after = int(match["after"]) if match["after"] else None
    retry = int(match["retry"]) if match["retry"] else None
    if verb.isdigit():
        return Behaviour(status=int(verb), retry_after_s=retry, message=rest)
    if verb == "say":
        return Behaviour(say=rest)
    if verb == "call" and rest:
        name, _, arguments = rest.partition(":")
        try:
            return Behaviour(calls=(ScriptedCall(name, msgspec.json.decode(arguments or "{}", type=dict[str, Any])),))
        except msgspec.DecodeError as error:
            raise BadScript(f"arguments of {text!r}: {error}") from error
    if verb == "overflow":
        return Behaviour(overflow=Overflow(rest or Overflow.SGLANG))
    if verb in ("cut", "rst", "eof"):
        ending = Ending.FIN if verb == "eof" else Ending(verb)
        return Behaviour(break_after=after, ending=ending, ends_before_head=after is None)
    if verb == "error":
        return Behaviour(break_after=after or 0, error_frame=True, message=rest)
    if verb == "hang":
        return Behaviour(hang_s=float(rest or 3600))
    if verb == "length":
        return Behaviour(finish="length")
    if verb == "empty":
        return Behaviour(say="", reasoning=16)
    raise BadScript(f"not a behaviour: {text!r}")


class Script:
    """Behaviours consumed one a call; after the last, calls get ``after``."""

    def __init__(self, behaviours: tuple[Behaviour, ...] = (), after: Behaviour | None = None) -> None:
        self._queue = [behaviour for behaviour in behaviours for _ in range(behaviour.times)]
        self._after = after or Behaviour()
        self._next = 0

    @property
    def remaining(self) -> int:
        return len(self._queue) - self._next

    def take(self) -> Behaviour:
        if self._next >= len(self._queue):
            return self._after
        self._next += 1
        return self._queue[self._next - 1]
