"""The tokens of what follows an answer in a prompt: its end, the new messages, the beginning of the next answer.

The engine renders them behind an answer of one letter, without the conversation and the tools, twice with different
letters: what both end with is what follows the answer. That the same comes behind the real conversation is looked at
once for each form of a tail, since it costs a rendering of everything.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from governor.output.history import Asked
from governor.wire.messages import decode
from governor.wire.request import GenerationRequest
from serve.engine import Continuation

_MOST_FORMS = 4096
_LEFT_OUT = ("tools", "tool_choice", "stream", "stream_options")
_QUESTION = {"role": "user", "content": "."}
_SEVERAL = 2
"""Results of tools in a row; more of them are rendered alike."""


class Tails:
    """Remembers which forms of tails were found to be rendered alike wherever they stand."""

    def __init__(self) -> None:
        self._is_alike: OrderedDict[tuple[object, ...], bool] = OrderedDict()

    def clear(self) -> None:
        """Another engine may render otherwise."""
        self._is_alike.clear()

    async def tail(
        self, continuation: Continuation, request: GenerationRequest, asked: Asked, end: int | None
    ) -> tuple[int, ...] | None:
        """``end``: the token that ended the answer, which is left out here; ``None``: it was cut off, and had none.
        ``None`` where it cannot be had: the template does not end answers with that token, or renders what follows them
        by what stands before. Raises :class:`~governor.errors.UpstreamError`."""
        answer, follows = request.messages[asked.answer_at], request.messages[asked.answer_at + 1 :]
        form = self._form(request, asked, end)
        if self._is_alike.get(form) is False:
            return None
        bodies = [
            _body(request, [_QUESTION, _like(decode(answer), letter), *map(msgspec.Raw, follows)]) for letter in "ab"
        ]
        one, other = await asyncio.gather(*map(continuation.prompt_ids, bodies))
        tail = _after(_common_end(one, other), end) if one != other else ()
        if not tail:
            return None
        if form not in self._is_alike:
            self._is_alike[form] = await self._is_everywhere(continuation, request, tail)
            while len(self._is_alike) > _MOST_FORMS:
                self._is_alike.popitem(last=False)
        if not self._is_alike[form]:
            return None
        return tail if end is None else tail[1:]

    def _form(self, request: GenerationRequest, asked: Asked, end: int | None) -> tuple[object, ...]:
        runs = [(role, min(len(list(run)), _SEVERAL)) for role, run in groupby(request.roles[asked.answer_at + 1 :])]
        has_calls = b'"tool_calls"' in bytes(request.messages[asked.answer_at])
        return asked.rendering, has_calls, end, *runs

    async def _is_everywhere(
        self, continuation: Continuation, request: GenerationRequest, tail: tuple[int, ...]
    ) -> bool:
        """The whole prompt ends so, and the tail begins with a marker, which no text before it can be joined to."""
        whole = await continuation.prompt_ids(request.json.body)
        (text,) = await continuation.texts([tail[:1]])
        return whole[-len(tail) :] == tail and not text


def _body(request: GenerationRequest, messages: Sequence[Any]) -> bytes:
    return request.json.edited({"messages": msgspec.json.encode(messages)} | dict.fromkeys(_LEFT_OUT))


def _like(answer: Any, letter: str) -> dict[str, Any]:
    """An answer with as many calls of the same names, which says but a letter."""
    calls = [_call_like(call, letter) for call in answer.get("tool_calls") or ()]
    return {"role": "assistant", "content": letter} | ({"tool_calls": calls} if calls else {})


def _call_like(call: Any, letter: str) -> dict[str, Any]:
    function = {"name": call["function"]["name"], "arguments": f'{{"{letter}":"{letter}"}}'}
    return {"id": call.get("id"), "type": "function", "function": function}


def _common_end(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    same = 0
    while same < min(len(one), len(other)) and one[-1 - same] == other[-1 - same]:
        same += 1
    return tuple(one[len(one) - same :])


def _after(common: tuple[int, ...], end: int | None) -> tuple[int, ...]:
    """From the answer's end token on; empty if it is not there."""
    if end is None:
        return common
    return common[common.index(end) :] if end in common else ()
