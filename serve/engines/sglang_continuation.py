"""Pausing a chat on SGLang and going on with it. What the fields mean stands in ``docs/design/sglang.md``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from governor.errors import UpstreamError
from governor.wire.sse import SseEvent
from serve.engine import EngineCall, TokenIds
from serve.engines import sglang_fields as fields

_END_THINK = "</think>"
"""Of the Qwen3 and DeepSeek families. Where it is no token of its own, the model has another."""
_END_THINK_FRAMED = f"\n{_END_THINK}\n\n"
"""As Qwen's template writes it."""

Ask = Callable[[str, str, Any], Awaitable[Any]]
"""Method, path and body to the decoded answer. Raises :class:`UpstreamError`."""


class SglangContinuation:
    """See :class:`serve.engine.Continuation`."""

    def __init__(self, ask: Ask, abort: Callable[[EngineCall], Awaitable[None]]) -> None:
        self._ask = ask
        self._abort = abort

    def first(self, call: EngineCall) -> EngineCall:
        return fields.asking_for_ids(call)

    def ids_in(self, event: bytes, data: bytes) -> TokenIds | None:
        return fields.ids_in(SseEvent(event, data)) if fields.IDS_NAME in event else None

    def again(self, call: EngineCall) -> EngineCall:
        return fields.again(call)

    def next(self, call: EngineCall, ids: TokenIds, *, thinking: bool) -> EngineCall:
        return fields.continue_from(call, ids, thinking=thinking)

    async def abort(self, call: EngineCall) -> None:
        await self._abort(call)

    async def texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """An empty list of ids would be taken for a list of tokens, so such a text is not asked for."""
        asked = [list(each) for each in ids if each]
        if not asked:
            return ["" for _ in ids]
        answer = await self._ask("POST", "/v1/detokenize", {"tokens": asked})
        texts = answer.get("text") if isinstance(answer, dict) else None
        if not isinstance(texts, list) or len(texts) != len(asked) or not all(isinstance(text, str) for text in texts):
            raise UpstreamError("The engine (sglang) answered tokens with something else than their texts.")
        found = iter(texts)
        return [next(found) if each else "" for each in ids]

    async def tokens_of(self, text: str) -> tuple[int, ...]:
        (tokens,) = await self._tokens_of(text)
        return tokens

    async def prompt_ids(self, body: bytes) -> tuple[int, ...]:
        answer = await self._ask("POST", "/v1/tokenize", msgspec.Raw(fields.asking_for_prompt(body)))
        try:
            return msgspec.convert(answer, _Prompt).tokens
        except msgspec.ValidationError as error:
            raise UpstreamError("The engine (sglang) answered a chat with something else than its tokens.") from error

    async def thinking_end(self) -> tuple[int, ...]:
        marker, framed = await self._tokens_of(_END_THINK, _END_THINK_FRAMED)
        return framed if len(marker) == 1 else ()

    async def _tokens_of(self, *texts: str) -> list[tuple[int, ...]]:
        answer = await self._ask("POST", "/v1/tokenize", {"prompt": list(texts), "add_special_tokens": False})
        try:
            tokens = msgspec.convert(answer, _Tokens).tokens
        except msgspec.ValidationError as error:
            raise UpstreamError("The engine (sglang) answered texts with something else than their tokens.") from error
        if len(tokens) != len(texts):
            raise UpstreamError(f"The engine (sglang) answered {len(texts)} texts with the tokens of {len(tokens)}.")
        return tokens


class _Prompt(msgspec.Struct):
    tokens: tuple[int, ...]


class _Tokens(msgspec.Struct):
    tokens: list[tuple[int, ...]]
