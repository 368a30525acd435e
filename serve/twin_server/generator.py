"""What all generating routes share: start, wait, stream; and the faults on the way."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serve.twin_server.errors import BadRequest, json_response
from serve.twin_server.faults import Faults
from serve.twin_server.generation import Batch, Plan
from serve.twin_server.info import STORAGE_CLASS, Identity
from serve.twin_server.mischief import Mischief
from serve.twin_server.planner import Planner
from serve.twin_server.script import Rule
from serve.twin_server.service import TwinService
from serve.twin_server.streaming import BrokenBody, BrokenOff, GeneratedStream


class Generator:
    """One for all requests."""

    def __init__(self, identity: Identity, planner: Planner, service: TwinService, faults: Faults) -> None:
        self.planner = planner
        self._identity = identity
        self._service = service
        self._faults = faults

    @property
    def storage_backend(self) -> str | None:
        """As ``cached_tokens_details`` names it; ``None`` without an L3."""
        return STORAGE_CLASS if self._identity.tiers.has_storage else None

    def begin(self, rule: Rule | None, plans: Callable[[], Sequence[Plan]], rid: str | None) -> tuple[Batch, Mischief]:
        """Start what a request asks for, unless a fault is before it. Raises :class:`Refused`."""
        faults = self._faults.on_request() if rule is None else self._faults.on_request(rule.faults, rule.name)
        self._service.is_dead = self._faults.is_dead
        mischief = Mischief(faults, self._service.clock)
        mischief.before_start()
        batch = self._service.start(plans(), rid)
        for generation in batch.generations:
            generation.limit_tokens = mischief.limit_tokens
        return batch, mischief

    async def stream(
        self, request: Request, batch: Batch, mischief: Mischief, events: AsyncIterator[bytes]
    ) -> Response:
        """Answers when there is something to stream: SGLang sends no head before. Raises :class:`Refused`."""
        await self._wait(request, batch, mischief, lambda: batch.has_news)
        lost_s = self._identity.settings.lost_stream_s
        told = mischief.in_stream(events)
        return GeneratedStream(told, lambda: self._service.abort_lost(batch, lost_s))

    async def whole(self, request: Request, batch: Batch, mischief: Mischief, answer: Callable[[], Any]) -> Response:
        """Answers when all has ended. Raises :class:`Refused`."""
        await self._wait(request, batch, mischief, lambda: batch.is_over)
        if batch.refusal is not None:
            raise batch.refusal
        try:
            mischief.in_body(batch)
        except BrokenOff:
            return BrokenBody()
        return json_response(answer())

    async def _wait(self, request: Request, batch: Batch, mischief: Mischief, enough: Callable[[], bool]) -> None:
        """Aborts what was begun where nobody waits for it any more."""
        look_s = self._service.clock.wall_s(self._identity.settings.lost_client_s)
        looks_at = time.monotonic() + look_s
        try:
            while not enough():
                await batch.news(look_s)
                if time.monotonic() >= looks_at:
                    looks_at = time.monotonic() + look_s
                    if await request.is_disconnected():
                        raise BadRequest("Request is disconnected from the client side (type 1).")
            await mischief.before_head()
        except BaseException:
            self._service.abort_lost(batch, 0.0)
            raise
