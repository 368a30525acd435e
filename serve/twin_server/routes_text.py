"""``/v1/completions`` (``openai/serving_completions.py``) and ``/generate`` (``http_server.py``)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve.twin_server import wire_text
from serve.twin_server.asks import GenerateAsk, TextAsk, agent_of, body_of, require_json
from serve.twin_server.errors import Refused
from serve.twin_server.generation import Batch, Generation
from serve.twin_server.generator import Generator
from serve.twin_server.logprobs import meta_logprobs
from serve.twin_server.reading import TextReader
from serve.twin_server.usage import WEIGHTS, tier_split, usage_of, weights
from serve.twin_server.wire_chat import DONE, event


class TextRoutes:
    """Texts and token ids as they are, without a template."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def routes(self) -> list[Route]:
        return [
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/generate", self._generate, methods=["POST", "PUT"]),
        ]

    # Completions

    async def _completions(self, request: Request) -> Response:
        try:
            require_json(request)
            ask = await body_of(request, TextAsk)
            planner = self._generator.planner
            text = ask.prompt if isinstance(ask.prompt, str) else ""
            rule = planner.rule_of_text(text, agent_of(request, ask.user))
            batch, mischief = self._generator.begin(rule, lambda: planner.texts(ask, rule), ask.rid)
            if not ask.stream:
                return await self._generator.whole(request, batch, mischief, lambda: self._completion(ask, batch))
            return await self._generator.stream(request, batch, mischief, self._completion_events(ask, batch))
        except Refused as refused:
            return refused.openai_response()

    async def _completion_events(self, ask: TextAsk, batch: Batch) -> AsyncIterator[bytes]:
        rid, created = batch.first.rid, int(time.time())
        readers = [TextReader(each.plan, echoed=ask.echo) for each in batch.generations]
        async for index, each in batch.changes():
            refused = each.refusal
            if refused is not None:
                yield event(refused.event())
                break
            seen = readers[index].seen_tokens
            text = readers[index].read(each.written_tokens)
            finish = each.finish or {}
            more: dict[str, Any] = {}
            if ask.return_token_ids:
                more["token_ids"] = each.output_ids[seen:]
            choice = wire_text.completion_choice(index, text, finish.get("type"), finish.get("matched"), more)
            usage = usage_of([each]) if ask.continuous_usage else None
            yield event(wire_text.completion(rid, created, ask.model, [choice], usage, {}))
        sglext = self._sglext(ask, batch)
        if sglext:
            yield event(wire_text.completion(rid, created, ask.model, [], None, sglext))
        if ask.include_usage:
            usage = usage_of(batch.generations, choices=ask.n)
            yield event(wire_text.completion(rid, created, ask.model, [], usage, {}))
        yield DONE

    def _completion(self, ask: TextAsk, batch: Batch) -> dict[str, Any]:
        choices = []
        for index, each in enumerate(batch.generations):
            text = TextReader(each.plan, echoed=ask.echo).read(each.written_tokens)
            finish = each.finish or {}
            more: dict[str, Any] = {"token_ids": each.output_ids} if ask.return_token_ids else {}
            choices.append(wire_text.completion_choice(index, text, finish["type"], finish.get("matched"), more))
        usage = usage_of(batch.generations, choices=ask.n)
        first = batch.first
        metadata = {"weight_version": WEIGHTS} | weights(first.written_tokens)
        more = {"metadata": metadata} | self._sglext(ask, batch)
        return wire_text.completion(first.rid, int(first.began_at), ask.model, choices, usage, more)

    def _sglext(self, ask: TextAsk, batch: Batch) -> dict[str, Any]:
        if not ask.return_cached_tokens_details or not batch.first.was_admitted:
            return {}
        split = tier_split(batch.first.cached, self._generator.storage_backend)
        return {} if split is None else {"sglext": {"cached_tokens_details": split}}

    # Generate

    async def _generate(self, request: Request) -> Response:
        try:
            ask = await body_of(request, GenerateAsk)
        except Refused as refused:
            return refused.openai_response()
        try:
            planner = self._generator.planner
            rule = planner.rule_of_text(ask.text or "", agent_of(request, None))
            batch, mischief = self._generator.begin(rule, lambda: planner.generate(ask, rule), ask.rid)
            if not ask.stream:
                return await self._generator.whole(request, batch, mischief, lambda: self._all_generated(ask, batch))
            return await self._generator.stream(request, batch, mischief, self._generate_events(ask, batch))
        except Refused as refused:
            if not ask.stream or refused.status >= 500:
                return refused.native_response()
            return Response(event(refused.native_event()) + DONE, media_type="text/event-stream")

    async def _generate_events(self, ask: GenerateAsk, batch: Batch) -> AsyncIterator[bytes]:
        """Each event has all that was written so far; an error of the engine is how its last one has finished."""
        readers = [TextReader(each.plan) for each in batch.generations]
        texts = [""] * len(readers)
        async for index, each in batch.changes():
            texts[index] += readers[index].read(each.written_tokens)
            yield event(self._generated(ask, each, texts[index], index))
        yield DONE

    def _all_generated(self, ask: GenerateAsk, batch: Batch) -> Any:
        answers = [
            self._generated(ask, each, TextReader(each.plan).read(each.written_tokens), index)
            for index, each in enumerate(batch.generations)
        ]
        return answers if ask.sampling_params.n > 1 else answers[0]

    def _generated(self, ask: GenerateAsk, each: Generation, text: str, index: int) -> dict[str, Any]:
        place = index if ask.sampling_params.n > 1 else None
        answer = wire_text.generated(each, text, place, self._generator.storage_backend)
        if ask.return_logprob:
            answer["meta_info"] |= meta_logprobs(
                each.plan.prompt_ids, each.output_ids, ask.logprob_start_len, ask.top_logprobs_num
            )
        if ask.return_prompt_token_ids:
            answer["prompt_token_ids"] = each.plan.prompt_ids.tolist()
        return answer
