"""Faults at one request: before anything is done, before the head, in the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from serve.twin_server.clock import ScaledClock
from serve.twin_server.errors import EngineFailed, Refused
from serve.twin_server.faults import Cut, Delay, ErrorFrame, HttpError, RequestFault
from serve.twin_server.generation import Batch, Interrupted
from serve.twin_server.streaming import BrokenOff
from serve.twin_server.wire_chat import DONE, event


class Mischief:
    """What is to happen to a request; mostly nothing."""

    def __init__(self, faults: Sequence[RequestFault], clock: ScaledClock) -> None:
        self._faults = faults
        self._clock = clock
        interruptions = [fault for fault in faults if isinstance(fault, Cut | ErrorFrame)]
        self._interruption = min(interruptions, key=lambda fault: fault.after_tokens, default=None)

    def before_start(self) -> None:
        """Raises :class:`Refused`."""
        for fault in self._faults:
            if isinstance(fault, HttpError):
                raise EngineFailed(fault.status, fault.message, retry_after_s=fault.retry_after_s)

    async def before_head(self) -> None:
        for fault in self._faults:
            if isinstance(fault, Delay):
                await asyncio.sleep(self._clock.wall_s(fault.seconds))

    async def in_stream(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The events as far as they come. Raises :class:`BrokenOff` where the connection is to break."""
        try:
            async for chunk in events:
                yield chunk
        except Interrupted:
            fault = self._interruption
            if not isinstance(fault, ErrorFrame):
                raise BrokenOff from None
            yield event(_failed(fault).event()) + DONE

    def in_body(self, batch: Batch) -> None:
        """Of an answer in one piece. Raises :class:`Refused`, :class:`BrokenOff`."""
        fault = self._interruption
        if fault is None or not batch.first.is_interrupted:
            return
        if isinstance(fault, Cut):
            raise BrokenOff
        raise _failed(fault)

    @property
    def limit_tokens(self) -> int | None:
        """Where it is interrupted."""
        return None if self._interruption is None else self._interruption.after_tokens


def _failed(fault: ErrorFrame) -> Refused:
    return EngineFailed(fault.status, fault.message)
