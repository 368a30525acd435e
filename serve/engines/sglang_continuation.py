"""Pausing a chat on SGLang and going on with it. What the fields mean stands in ``docs/design/sglang.md``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from governor.errors import UpstreamError
from governor.wire.sse import SseEvent
from serve.engine import EngineCall, TokenIds
from serve.engines import sglang_fields as fields

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
        return fields.ids_in(SseEvent(event, data))

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
