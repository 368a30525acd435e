"""``/v1/chat/completions``: from messages to a stream or a whole answer (``openai/serving_chat.py``)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve.twin_server import wire_chat
from serve.twin_server.asks import ChatAsk, agent_of, body_of, check_chat, require_json
from serve.twin_server.errors import Refused
from serve.twin_server.generation import Batch, Generation
from serve.twin_server.generator import Generator
from serve.twin_server.mischief import Mischief
from serve.twin_server.reading import ChatReader, chunk_of, thought_tokens, whole_calls, whole_chat
from serve.twin_server.usage import tier_split, usage_of


class ChatRoutes:
    """One route; its two halves are used by the Messages dialect too."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def routes(self) -> list[Route]:
        return [Route("/v1/chat/completions", self._chat, methods=["POST"])]

    async def _chat(self, request: Request) -> Response:
        try:
            require_json(request)
            ask = with_headers(await body_of(request, ChatAsk), request.headers)
            batch, mischief = self.begin(ask, request)
            if not ask.stream:
                return await self._generator.whole(request, batch, mischief, lambda: self.whole(ask, batch))
            framed = request.headers.get("x-sglext-ids-framed") == "1"
            events = self.events(ask, batch, framed=framed)
            return await self._generator.stream(request, batch, mischief, events)
        except Refused as refused:
            return refused.openai_response()

    def begin(self, ask: ChatAsk, request: Request) -> tuple[Batch, Mischief]:
        """Raises :class:`Refused`."""
        planner = self._generator.planner
        check_chat(ask, planner.window_tokens)
        rule = planner.rule_of_chat(ask, agent_of(request, ask.user))
        return self._generator.begin(rule, lambda: [planner.chat(ask, rule)] * ask.n, ask.rid)

    async def events(self, ask: ChatAsk, batch: Batch, *, framed: bool = False) -> AsyncIterator[bytes]:
        """The stream, to its ``[DONE]``."""
        stream = wire_chat.ChatStream(batch.first.rid, int(time.time()), ask.model)
        readers = [_reader(ask, each) for each in batch.generations]
        finishes: dict[int, bytes] = {}
        refused: Refused | None = None
        async for index, each in batch.changes():
            refused = each.refusal
            if refused is not None:
                yield wire_chat.event(refused.event())
                break
            reader = readers[index]
            usage = usage_of([each], thought_tokens(each)) if ask.continuous_usage else None
            if not reader.was_read:
                yield stream.role(index)
            for delta in reader.read(each.written_tokens):
                yield chunk_of(delta, stream, index, usage)
            finish = each.finish
            if finish is not None:
                reason = reader.finish_reason(finish["type"])
                finishes[index] = stream.finish(index, reason, finish.get("matched"))
        for index in sorted(finishes):
            yield finishes[index]
        for chunk in self._extensions(ask, batch, stream, framed=framed, with_ids=refused is None):
            yield chunk
        if ask.include_usage:
            thought = sum(thought_tokens(each) for each in batch.generations)
            yield stream.usage(usage_of(batch.generations, thought, choices=ask.n))
        yield wire_chat.DONE

    def whole(self, ask: ChatAsk, batch: Batch) -> dict[str, Any]:
        """Of a batch that is over."""
        choices = []
        for index, each in enumerate(batch.generations):
            reader = _reader(ask, each)
            parsed = whole_chat(reader, each)
            finish = each.finish or {"type": "abort"}
            reason = reader.finish_reason(finish["type"])
            matched = None if reason == "tool_calls" else finish.get("matched")
            said = wire_chat.message(parsed.content, parsed.reasoning, whole_calls(parsed))
            more: dict[str, Any] = {}
            if ask.return_prompt_token_ids or ask.return_token_ids:
                more["prompt_token_ids"] = each.plan.prompt_ids.tolist()
            if ask.return_token_ids:
                more["response_token_ids"] = each.output_ids
            choices.append(wire_chat.choice(index, said, reason, matched, more))
        thought = sum(thought_tokens(each) for each in batch.generations)
        usage = usage_of(batch.generations, thought, choices=ask.n)
        told = self._tiers(ask, batch) | _ids(ask, batch)
        first = batch.first
        return wire_chat.whole(first, ask.model, choices, usage, told or None)

    def _tiers(self, ask: ChatAsk, batch: Batch) -> dict[str, Any]:
        if not ask.return_cached_tokens_details or not batch.first.was_admitted:
            return {}
        split = tier_split(batch.first.cached, self._generator.storage_backend)
        return {} if split is None else {"cached_tokens_details": split}

    def _extensions(
        self, ask: ChatAsk, batch: Batch, stream: wire_chat.ChatStream, *, framed: bool, with_ids: bool
    ) -> list[bytes]:
        """Ids go in an event of their own where the client has said that it knows it."""
        tiers, ids = self._tiers(ask, batch), _ids(ask, batch) if with_ids else {}
        if not framed:
            return [stream.extension(tiers | ids)] if tiers or ids else []
        chunks = [stream.extension(tiers)] if tiers else []
        return [*chunks, stream.extension(ids, "sglext_ids")] if ids else chunks


def with_headers(ask: ChatAsk, headers: Mapping[str, str]) -> ChatAsk:
    """Ids may also be asked for by headers."""
    changes = {
        field: True
        for field, header in (
            ("return_input_ids_in_sglext", "x-sglext-return-input-ids"),
            ("return_output_ids_in_sglext", "x-sglext-return-output-ids"),
        )
        if headers.get(header) == "1"
    }
    return msgspec.structs.replace(ask, **changes) if changes else ask


def _ids(ask: ChatAsk, batch: Batch) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if ask.return_input_ids_in_sglext:
        told["input_ids"] = batch.first.plan.prompt_ids.tolist()
    if ask.return_output_ids_in_sglext:
        told["output_ids"] = [each.output_ids for each in batch.generations]
    return told


def _reader(ask: ChatAsk, generation: Generation) -> ChatReader:
    return ChatReader(generation.plan, separate_reasoning=ask.separate_reasoning)
