"""One client connection: uvicorn's protocol, with the limits that it has none for itself.

Every state in which a connection waits for its client has a deadline::

    opened, nothing said yet      head deadline      408
    a head has begun              head deadline      408, or 431 beyond MAX_HEAD_BYTES
    a body is being sent          body.py            408
    answered, body not at its end head deadline      closed: nobody reads that body any more
    answered, idle                uvicorn's keep-alive timeout
    answered, bytes but no head   head deadline      408
    the client does not read      stall deadline     reset, which ends its turn

A request that is sent before the last one was answered (pipelining, which no known client does) is not looked at: the
connection closes after the current answer. uvicorn would stop reading until then, and not see such a client leave.
An upgrade is refused, because the parser skips the body of a request that asks for one.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from governor.errors import BadRequest, GovernorError, HeadTooLarge, RequestTimeout

HEAD_DEADLINE_S = 20.0
"""From the first byte of a request, or the opening of a connection, to the end of its head."""
STALL_DEADLINE_S = 120.0
"""How long a client may leave its answer unread. Everything between us is full then, and its turn holds a lease."""
MAX_HEAD_BYTES = 64 * 1024


class DeadlineProtocol(HttpToolsProtocol):
    """See the module. The server makes one for each connection."""

    head_deadline_s: ClassVar[float] = HEAD_DEADLINE_S
    stall_deadline_s: ClassVar[float] = STALL_DEADLINE_S
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0
    _is_deaf = False
    """A request came before its turn; neither it nor what follows is looked at."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.access_log = False  # uvicorn logs whole targets, whose query may hold a key, once its logger has a handler
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._unstall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._deadline is None and not self._is_answering:
            self._arm()
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            self._check_head_size()

    def on_message_begin(self) -> None:
        if self._is_answering:
            self._ignore_the_rest()
            return
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._arm()

    def on_url(self, url: bytes) -> None:
        if not self._is_deaf:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_deaf:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_deaf:
            return
        self._head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._check_head_size()
        if self.parser.should_upgrade():
            self._refuse(BadRequest("This server speaks HTTP/1.1; send no Upgrade header.", param="upgrade"))
        if not self._is_deaf:
            self._in_head = False
            self._disarm()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_deaf:
            return
        super().on_message_complete()
        if not self._is_answering:  # the answer came first; uvicorn has dropped its own timer at the rest of the body
            self._disarm()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self.stall_deadline_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._unstall()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        if self._is_answering:
            self._ignore_the_rest()
        else:
            self._refuse(BadRequest(msg))

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing to warn of: the client has been told."""

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self.head_deadline_s, self._on_deadline)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _unstall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _ignore_the_rest(self) -> None:
        self._is_deaf = True
        self.cycle.keep_alive = False

    def _check_head_size(self) -> None:
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HeadTooLarge(f"The request head is larger than {MAX_HEAD_BYTES} bytes."))

    def _on_deadline(self) -> None:
        if self._in_head or self.cycle is None:
            self._refuse(RequestTimeout(f"The request head did not arrive within {self.head_deadline_s:g} s."))
        else:
            self.transport.close()

    def _refuse(self, error: GovernorError) -> None:
        """Answer without an app, and close."""
        self._is_deaf = True
        self._disarm()
        if self.transport.is_closing():
            return
        body = error.body()
        status = f"{error.status} {HTTPStatus(error.status).phrase}"
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: {error.content_type}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def protocol_with(*, head_deadline_s: float, stall_deadline_s: float) -> type[DeadlineProtocol]:
    """The protocol with these deadlines, in seconds."""
    deadlines = {"head_deadline_s": head_deadline_s, "stall_deadline_s": stall_deadline_s}
    return type("DeadlineProtocol", (DeadlineProtocol,), deadlines)
