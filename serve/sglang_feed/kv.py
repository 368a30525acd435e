"""Listens to SGLang's KV events: numbered batches over ZMQ, missed ones asked for again, a new engine noticed.

Source: SGLang 0.5.23 ``disaggregation/kv_events.py``: PUB frames ``[topic, number, payload]``; a ROUTER answers
``[b"", first number]`` with ``[b"", topic, number, payload]`` for what it still has, and ends with number -1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from serve.sglang_feed.events import FeedEvent, KvLost, KvReset
from serve.sglang_feed.messages import KvBatch, Unreadable, read_batch

_REPLAY_S = 5.0
_QUIET_MS = 1000
"""After a silence of this length the publisher is asked once for what was missed."""
_MAX_QUEUED = 100_000
_RECONNECT_MS = 200


class KvFeed:
    """Calls ``sink`` with events in order; a :class:`KvReset` goes before whatever does not join on to what was told.

    ``replay`` is the address for missed batches; without it every gap is a reset.
    """

    def __init__(self, endpoint: str, replay: str | None, sink: Callable[[FeedEvent], None], topic: str = "") -> None:
        self._endpoint = endpoint
        self._replay_endpoint = replay
        self._sink = sink
        self._topic = topic.encode()
        self._last = -1
        self._last_at = 0.0

    async def run(self) -> None:
        """Until cancelled. What ``sink`` raises ends it."""
        context = zmq.asyncio.Context()
        try:
            with closing(_socket(context, zmq.SUB)) as live:
                live.setsockopt(zmq.SUBSCRIBE, self._topic)
                monitor = live.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
                live.connect(self._endpoint)
                try:
                    await self._follow(context, live, monitor)
                finally:
                    live.disable_monitor()
                    monitor.close(linger=0)
        finally:
            context.destroy(linger=0)

    async def _follow(
        self, context: zmq.asyncio.Context, live: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket
    ) -> None:
        poller = zmq.asyncio.Poller()
        poller.register(live, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        settled = True
        while True:
            ready = dict(await poller.poll(None if settled else _QUIET_MS))
            if not ready:  # the last batch before a silence may be lost, and no later one shows the gap
                await self._catch_up(context)
                settled = True
                continue
            settled = False
            if monitor in ready:
                if parse_monitor_message(await monitor.recv_multipart())["event"] == zmq.EVENT_DISCONNECTED:
                    self._sink(KvLost("the engine closed the connection"))
                else:
                    await self._begin(context, "connected to the engine")
                continue
            frames = await live.recv_multipart()
            if len(frames) == 3:
                await self._on_batch(context, int.from_bytes(frames[1], "big"), frames[2])

    async def _begin(self, context: zmq.asyncio.Context, reason: str) -> None:
        """Forget what was told, and take what the publisher still has."""
        self._last, self._last_at = -1, 0.0
        self._sink(KvReset(reason))
        await self._catch_up(context)

    async def _on_batch(self, context: zmq.asyncio.Context, number: int, payload: bytes) -> None:
        try:
            batch = read_batch(payload)
        except Unreadable as error:
            await self._begin(context, str(error))
            return
        if number <= self._last:
            if batch.at <= self._last_at:
                return  # it was in a replay already
            await self._begin(context, "the engine counts from the start: it is a new one")
            return
        if number > self._last + 1:
            await self._catch_up(context)
            if number <= self._last:
                return
            if number > self._last + 1:
                self._sink(KvReset(f"batches {self._last + 1} to {number - 1} are lost"))
        self._tell(number, batch)

    async def _catch_up(self, context: zmq.asyncio.Context) -> None:
        """Ask for all since the last one. Stops at a hole."""
        if self._replay_endpoint is None:
            return
        async for number, payload in _replayed(context, self._replay_endpoint, self._last + 1):
            if number != self._last + 1:
                self._sink(KvReset(f"batches {self._last + 1} to {number - 1} are lost"))
            try:
                batch = read_batch(payload)
            except Unreadable as error:
                self._sink(KvReset(str(error)))
                batch = KvBatch(self._last_at, ())
            self._tell(number, batch)
            await asyncio.sleep(0)  # thousands may follow, and turns are on this loop

    def _tell(self, number: int, batch: KvBatch) -> None:
        self._last, self._last_at = number, batch.at
        for event in batch.events:
            self._sink(event)


async def _replayed(context: zmq.asyncio.Context, endpoint: str, first: int) -> AsyncIterator[tuple[int, bytes]]:
    """Batches from ``first`` on that the publisher still has, as far as it answers in time."""
    with closing(_socket(context, zmq.DEALER)) as asking:
        asking.connect(endpoint)
        await asking.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            try:
                async with asyncio.timeout(_REPLAY_S):
                    *_, number, payload = await asking.recv_multipart()
            except TimeoutError:
                return
            if number == (-1).to_bytes(8, "big", signed=True):
                return
            yield int.from_bytes(number, "big"), payload


def _socket(context: zmq.asyncio.Context, kind: int) -> zmq.asyncio.Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, _MAX_QUEUED)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    return socket
