"""Faults at one request: before anything is done, before the head, in the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from serve.twin_server.clock import ScaledClock
from serve.twin_server.errors import EngineFailed, Refused
from serve.twin_server.faults import Cut, Delay, ErrorFrame, HttpError, RequestFault
from serve.twin_server.generation import Batch
from serve.twin_server.streaming import BrokenOff
from serve.twin_server.wire_chat import DONE, event


class Mischief:
    """What is to happen to a request; mostly nothing."""

    def __init__(self, faults: Sequence[RequestFault], clock: ScaledClock) -> None:
        self._faults = faults
        self._clock = clock

    def before_start(self) -> None:
        """Raises :class:`Refused`."""
        for fault in self._faults:
            if isinstance(fault, HttpError):
                raise EngineFailed(fault.status, fault.message, retry_after_s=fault.retry_after_s)

    async def before_head(self) -> None:
        for fault in self._faults:
            if isinstance(fault, Delay):
                await asyncio.sleep(self._clock.wall_s(fault.seconds))

    async def in_stream(self, events: AsyncIterator[bytes], batch: Batch) -> AsyncIterator[bytes]:
        """The events as far as they come. Raises :class:`BrokenOff` where the connection is to break."""
        if self._ends(batch) is None:
            async for chunk in events:
                yield chunk
                if self._ends(batch) is not None:
                    break
        fault = self._ends(batch)
        if isinstance(fault, Cut):
            raise BrokenOff
        if fault is not None:
            yield event(_failed(fault).event()) + DONE

    def in_body(self, batch: Batch) -> None:
        """Of an answer in one piece. Raises :class:`Refused`, :class:`BrokenOff`."""
        fault = self._ends(batch)
        if isinstance(fault, Cut):
            raise BrokenOff
        if fault is not None:
            raise _failed(fault)

    def _ends(self, batch: Batch) -> Cut | ErrorFrame | None:
        """The fault that has come to its place."""
        for fault in self._faults:
            if isinstance(fault, Cut | ErrorFrame) and batch.first.written_tokens >= fault.after_tokens:
                return fault
        return None


def _failed(fault: ErrorFrame) -> Refused:
    return EngineFailed(fault.status, fault.message)
