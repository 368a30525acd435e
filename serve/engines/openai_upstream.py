"""Any OpenAI-compatible server, of which nothing more is known than what ``/v1/models`` says."""

from __future__ import annotations

from typing import Any

from governor.errors import UpstreamError
from governor.types import TokenCount
from serve.engine import Capabilities, Endpoint, EngineInfo, EngineLoad, ModelCard
from serve.engines.http import HttpEngine

_WINDOW_KEYS = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "n_ctx",
    "max_input_tokens",
    "max_position_embeddings",
)
"""Names under which servers put the window on a model card: vLLM and SGLang, OpenRouter, ..., llama.cpp."""


def model_cards(listing: Any) -> tuple[ModelCard, ...]:
    """Cards of a ``/v1/models`` answer. Entries without a usable id are left out."""
    entries = listing.get("data") if isinstance(listing, dict) else None
    cards = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and entry["id"]:
            aliases = entry.get("aliases")
            cards.append(
                ModelCard(
                    id=entry["id"],
                    window_tokens=_window(entry),
                    aliases=tuple(a for a in aliases if isinstance(a, str)) if isinstance(aliases, list) else (),
                )
            )
    return tuple(cards)


def _window(entry: dict[str, Any]) -> int | None:
    meta = entry.get("meta")
    for source in (entry, meta if isinstance(meta, dict) else {}):
        for key in _WINDOW_KEYS:
            if type(source.get(key)) is int and source[key] > 0:
                return int(source[key])
    return None


class OpenAIUpstream(HttpEngine):
    """See :class:`serve.engine.Engine`. The base URL may be given with or without its trailing ``/v1``."""

    capabilities = Capabilities(endpoints=frozenset(Endpoint))

    def __init__(self, name: str, base_url: str, **options: Any) -> None:
        # Servers of all kinds close after an answer without saying so, and a request sent into a closing connection
        # is lost, for it is not repeated. A new connection costs next to nothing unless it needs a TLS handshake.
        super().__init__(name, base_url, fresh_connections=base_url.startswith("http://"), **options)

    async def describe(self) -> EngineInfo:
        cards = model_cards(await self.ask("GET", "/v1/models"))
        if not cards:
            raise UpstreamError(f"The engine ({self.name}) lists no model.")
        return EngineInfo(models=cards)

    async def is_ready(self) -> bool:
        return await self.is_answering("/v1/models")

    async def count_prompt(self, endpoint: Endpoint, body: bytes) -> TokenCount | None:
        return None

    async def load(self) -> EngineLoad:
        return EngineLoad()
