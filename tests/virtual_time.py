"""An event loop whose time passes only while nobody has anything to do: an hour of waiting takes no time.

Client and server share it, over real sockets. Time stands still while bytes are on their way between two of them, which
on a busy machine the kernel may take milliseconds for; what a program computes takes no time at all. So figures
measured on it are the twin's own, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import struct
from collections.abc import Awaitable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
_LONG_S = 1.0
_PATIENCE = 200
"""Looks, a millisecond each, at bytes on their way; then something is wrong, and time goes on."""
_TCP_INFO_BYTES = 216
_RECEIVED_AT, _UNSENT_AT, _SENT_AT, _RETRANSMITTED_AT = 128, 144, 200, 208
"""Offsets in ``struct tcp_info`` (Linux ``include/uapi/linux/tcp.h``)."""


class _Traffic(NamedTuple):
    sent: int
    received: int


class _Selector(selectors.DefaultSelector):
    """Does not wait for a time, but moves the clock there."""

    now_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._sockets: dict[int, socket.socket] = {}
        self._accepted: set[tuple[object, object]] = set()
        """Ends of connections that somebody has had to do with; one that is not looked at now is closed, or paused."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        for _ in range(_PATIENCE):
            if not self._is_under_way():
                break
            ready = super().select(0.001)
            if ready:
                return ready
        if timeout is None:
            return super().select(_LONG_S)
        self.now_s += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        ends = self._ends(key.fd)
        if ends is not None:
            self._accepted.add(ends)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._forget(key.fd)
        return key

    def close(self) -> None:
        for descriptor in list(self._sockets):
            self._forget(descriptor)
        super().close()

    def _is_under_way(self) -> bool:
        """Somebody connects or has more to send, was not accepted yet, or has sent what its peer has not got."""
        traffic: dict[tuple[object, object], _Traffic] = {}
        listening: set[object] = set()
        for key in self.get_map().values():
            looked, ends = self._looked_at(key.fd), self._ends(key.fd)
            if looked.family != socket.AF_INET:
                continue
            if key.events & selectors.EVENT_WRITE:
                return True
            if ends is None:
                listening.add(looked.getsockname())
                continue
            info = looked.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            if struct.unpack_from("=I", info, _UNSENT_AT)[0]:
                return True
            sent, again = (struct.unpack_from("=Q", info, at)[0] for at in (_SENT_AT, _RETRANSMITTED_AT))
            traffic[ends] = _Traffic(sent - again, struct.unpack_from("=Q", info, _RECEIVED_AT)[0])
        for (here, there), each in traffic.items():
            other = traffic.get((there, here))
            if other is not None and each.sent != other.received:
                return True
            if other is None and there in listening and (there, here) not in self._accepted:
                return True
        return False

    def _looked_at(self, descriptor: int) -> socket.socket:
        if descriptor not in self._sockets:
            self._sockets[descriptor] = socket.socket(fileno=descriptor)
        return self._sockets[descriptor]

    def _ends(self, descriptor: int) -> tuple[object, object] | None:
        """This end and the other; ``None`` of what is no connection."""
        looked = self._looked_at(descriptor)
        if looked.family != socket.AF_INET:
            return None
        try:
            return looked.getsockname(), looked.getpeername()
        except OSError:
            return None

    def _forget(self, descriptor: int) -> None:
        """The descriptor is the loop's; it must not be closed with our view of it."""
        looked = self._sockets.pop(descriptor, None)
        if looked is not None:
            looked.detach()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``time()`` begins at 0."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


def run_in_virtual_time(work: Awaitable[T]) -> T:
    """Like :func:`asyncio.run`."""

    async def whole() -> T:
        return await work

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(whole())
