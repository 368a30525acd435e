"""llama.cpp's own HTTP server. What it does, as seen, stands in ``docs/design/embedded-engine.md``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from governor.errors import UpstreamError
from governor.types import TokenCount
from serve.engine import Capabilities, Endpoint, EngineInfo, EngineLoad
from serve.engines.http import HttpEngine
from serve.engines.openai_upstream import model_cards

_COUNTING: Mapping[Endpoint, str] = {
    Endpoint.CHAT: "/v1/chat/completions/input_tokens",
    Endpoint.RESPONSES: "/v1/responses/input_tokens",
    Endpoint.MESSAGES: "/v1/messages/count_tokens",
}


class LlamaCpp(HttpEngine):
    """See :class:`serve.engine.Engine`. ``version`` is what to report, since the server does not know its own."""

    capabilities = Capabilities(
        endpoints=frozenset(Endpoint),
        counts_prompts=True,
        output_cap_fields=("max_tokens", "max_completion_tokens"),
        shadow_cap_fields=("n_predict",),
        abort_keeps_prefix=True,
    )

    def __init__(self, base_url: str, *, version: str = "unknown", **options: Any) -> None:
        # It closes the connection after a stream without saying so; a pooled one would break on its next use.
        super().__init__("llamacpp", base_url, fresh_connections=True, **options)
        self._version = version

    async def describe(self) -> EngineInfo:
        cards = model_cards(await self.ask("GET", "/v1/models"))
        slots = await self.ask("GET", "/slots")
        if not cards or not isinstance(slots, list):
            raise UpstreamError("The engine (llamacpp) does not say what it serves.")
        return EngineInfo(models=cards, version=self._version, slots=len(slots) or None)

    async def is_ready(self) -> bool:
        return await self.is_answering("/health")

    async def count_prompt(self, endpoint: Endpoint, body: bytes) -> TokenCount | None:
        path = _COUNTING.get(endpoint)
        if path is None:
            return None
        try:
            answer = await self.ask("POST", path, msgspec.Raw(body))
        except UpstreamError:
            return None
        tokens = answer.get("input_tokens") if isinstance(answer, dict) else None
        return TokenCount(tokens=tokens, source="engine") if type(tokens) is int else None

    async def load(self) -> EngineLoad:
        try:
            slots = await self.ask("GET", "/slots")
        except UpstreamError:
            return EngineLoad()
        if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
            return EngineLoad()
        busy = [slot for slot in slots if slot.get("is_processing")]  # the others' contexts give way to any turn
        return EngineLoad(
            running=len(busy),
            kv_used_tokens=sum(slot.get("n_prompt_tokens", 0) for slot in busy),
            kv_capacity_tokens=sum(slot.get("n_ctx", 0) for slot in slots),
        )
