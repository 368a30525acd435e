"""SGLang's KV-event publisher: numbered batches on a PUB socket, the last ones again on a ROUTER.

Source: SGLang 0.5.23 ``disaggregation/kv_events.py``: ``[topic, number, payload]``; a question ``[b"", first number]``
is answered by ``[b"", topic, number, payload]`` for each batch that is kept, and number -1 ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import zmq
import zmq.asyncio

from serve.twin_server.kv_recorder import Batch, KvEvent

_BUFFERED_BATCHES = 10_000
"""``buffer_steps``."""
_MAX_UNSENT = 100_000
"""``hwm``."""
_LINGER_MS = 500
_END = (-1).to_bytes(8, "big", signed=True)


class KvPublisher:
    """Sends while :meth:`open`. A subscriber that is slow or away loses batches, as ZMQ has it."""

    def __init__(
        self, endpoint: str, replay: str | None = None, *, topic: str = "", kept: int = _BUFFERED_BATCHES
    ) -> None:
        """``kept``: batches that can be asked for again."""
        self._endpoint = endpoint
        self._replay_endpoint = replay
        self._topic = topic.encode()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._number = 0
        self._live: zmq.Socket[bytes] | None = None

    def publish(self, events: Sequence[KvEvent], *, is_lost: bool = False) -> None:
        """One batch. Never waits; what nobody hears only the buffer has, and so it is with one that ``is_lost``."""
        payload = msgspec.msgpack.encode(Batch(ts=time.time(), events=list(events)))
        number, self._number = self._number, self._number + 1
        self._buffer.append((number, payload))
        if self._live is not None and not is_lost:
            self._live.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """While inside, both sockets are bound. Raises :class:`zmq.ZMQError` where an address is taken."""
        with zmq.Context() as context, context.socket(zmq.PUB) as live:
            live.setsockopt(zmq.LINGER, _LINGER_MS)
            live.set_hwm(_MAX_UNSENT)
            live.bind(self._endpoint)
            self._live = live
            try:
                async with self._replaying():
                    yield
            finally:
                self._live = None

    @asynccontextmanager
    async def _replaying(self) -> AsyncIterator[None]:
        if self._replay_endpoint is None:
            yield
            return
        with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as router:
            router.setsockopt(zmq.LINGER, _LINGER_MS)
            router.bind(self._replay_endpoint)
            answering = asyncio.create_task(self._answer(router))
            try:
                yield
            finally:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)

    async def _answer(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3:
                continue
            client, _, first = frames
            for number, payload in list(self._buffer):
                if number >= int.from_bytes(first, "big"):
                    await router.send_multipart([client, b"", self._topic, number.to_bytes(8, "big"), payload])
            await router.send_multipart([client, b"", b"", _END, b""])
