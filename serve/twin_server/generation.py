"""Generations as the HTTP side sees them: what they will write, how far they are, how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from serve.twin.engine_model import Ask, Cached, Ended, EndReason
from serve.twin.tiers_key import Key
from serve.twin_server.errors import EngineFailed, Refused, prompt_over_pool
from serve.twin_server.pieces import Ids
from serve.twin_server.wishes import Answer, Offer

PROBE_PREFIX = "HEALTH_CHECK"
"""What names of health checks begin with."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the model, and the answer: the twin knows it before the first token is written."""

    prompt_ids: Ids
    prompt: Key
    answer: Answer
    output: Key
    """Of the answer's tokens."""
    max_new_tokens: int
    longest_prompt_tokens: int
    """That the engine takes."""
    offer: Offer = Offer()
    """The tools whose calls are read out of the answer."""
    thinks: bool = False
    """The request says that the answer begins in the thinking phase."""
    priority: int = 0
    ignore_eos: bool = False
    accept_length: float | None = None
    """See :class:`serve.twin.engine_model.Ask`."""

    def ask(self, rid: str) -> Ask:
        return Ask(
            rid=rid,
            prompt=self.prompt,
            output=self.output,
            writes_tokens=len(self.answer.ids),
            max_new_tokens=self.max_new_tokens,
            priority=self.priority,
            ignore_eos=self.ignore_eos,
            accept_length=self.accept_length,
        )


class Generation:
    """Owned by the service, which moves it; read by one route. ``news`` is set with each change."""

    def __init__(self, rid: str, plan: Plan, news: asyncio.Event) -> None:
        self.rid = rid
        self.plan = plan
        self.began_at = time.time()
        self.first_token_at: float | None = None
        self.written_tokens = 0
        """As its reader may see them: no more than ``limit_tokens``."""
        self.limit_tokens: int | None = None
        """Where a fault interrupts what is told of it."""
        self.cached = Cached()
        self.was_admitted = False
        self.retractions = 0
        self.ended: Ended | None = None
        self.ended_at: float | None = None
        self._news = news

    @property
    def is_probe(self) -> bool:
        """Of a health check, which is not counted."""
        return self.rid.startswith(PROBE_PREFIX)

    # The service's side

    def on_admitted(self, cached: Cached) -> None:
        if not self.was_admitted:
            self.was_admitted, self.cached = True, cached

    def on_wrote(self, stop: int) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.time()
        self._write(stop)
        self._news.set()

    def on_ended(self, ended: Ended) -> None:
        self.ended, self.ended_at = ended, time.time()
        self._write(ended.completion_tokens)
        self._news.set()

    def _write(self, stop: int) -> None:
        seen = stop if self.limit_tokens is None else min(stop, self.limit_tokens)
        self.written_tokens = max(self.written_tokens, seen)

    # The route's side

    @property
    def is_over(self) -> bool:
        return self.ended is not None

    @property
    def is_interrupted(self) -> bool:
        return self.limit_tokens is not None and self.written_tokens >= self.limit_tokens

    @property
    def prompt_tokens(self) -> int:
        """As ``meta_info`` has it: a request that is aborted while it waits says nothing (``_handle_abort_req``)."""
        return len(self.plan.prompt_ids) if self.was_admitted else 0

    @property
    def output_ids(self) -> list[int]:
        return self.plan.answer.ids[: self.written_tokens].tolist()

    @property
    def refusal(self) -> Refused | None:
        """The error that the engine ended it with, if it is one."""
        if self.ended is None:
            return None
        match self.ended.reason:
            case EndReason.TOO_LONG:
                return prompt_over_pool(len(self.plan.prompt_ids), self.plan.longest_prompt_tokens)
            case EndReason.QUEUE_FULL:
                return EngineFailed(HTTPStatus.SERVICE_UNAVAILABLE, "The request queue is full.")
            case EndReason.OUT_OF_MEMORY:
                return EngineFailed(
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    "Out of memory even after retracting all other requests in the decode batch. Aborting the last "
                    "request.",
                )
            case _:
                return None

    @property
    def finish(self) -> dict[str, Any] | None:
        """``meta_info.finish_reason``."""
        if self.ended is None or self.is_interrupted:
            return None
        match self.ended.reason:
            case EndReason.STOP | EndReason.LENGTH if self.plan.answer.finish == "stop":
                return {"type": "stop", "matched": self.plan.answer.matched_stop}
            case EndReason.STOP | EndReason.LENGTH:
                return {"type": "length", "length": self.ended.completion_tokens}
            case EndReason.ABORT if not self.was_admitted:
                return {"type": "abort", "message": "Abort in waiting queue"}
            case EndReason.ABORT:
                return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
            case _:
                refusal = self.refusal
                status = refusal.status if refusal else None
                return {"type": "abort", "message": str(refusal), "status_code": status, "err_type": None}


class Interrupted(Exception):
    """Of a stream: a fault ends it here."""


class Batch:
    """The generations of one request, by their choice's index."""

    def __init__(self, generations: Sequence[Generation], news: asyncio.Event) -> None:
        self.generations = generations
        self._news = news

    @property
    def is_over(self) -> bool:
        return all(each.is_over for each in self.generations)

    @property
    def has_news(self) -> bool:
        """Something was written, or has ended."""
        return any(each.written_tokens or each.is_over for each in self.generations)

    @property
    def first(self) -> Generation:
        return self.generations[0]

    @property
    def refusal(self) -> Refused | None:
        """Of the first that the engine has ended with an error."""
        return next((each.refusal for each in self.generations if each.refusal), None)

    async def news(self, patience_s: float | None = None) -> None:
        """Wait until something has changed since the last time, or for ``patience_s`` of the wall."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._news.wait()
        self._news.clear()

    async def changes(self) -> AsyncIterator[tuple[int, Generation]]:
        """Whoever has written more or has ended since it was given last; ends with the last one's end. Raises
        :class:`Interrupted` where a fault has come to its place."""
        seen: list[tuple[int, bool]] = [(0, False)] * len(self.generations)
        while True:
            for index, each in enumerate(self.generations):
                now = each.written_tokens, each.is_over
                if now != seen[index] and each.limit_tokens != 0:
                    seen[index] = now
                    yield index, each
                if each.is_interrupted:
                    raise Interrupted
            if all(over for _, over in seen):
                return
            await self.news()
