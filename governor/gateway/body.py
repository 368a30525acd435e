"""Reading a request body: whole, within a deadline, a size and a decompressed size, or a clear error."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping

import msgspec

from governor.errors import (
    BadRequest,
    BodyTooLarge,
    RequestTimeout,
    UnsupportedEncoding,
    UnsupportedMediaType,
)
from governor.gateway.http import Receive

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class BodyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much, and how long."""

    max_bytes: int = 32 * 1024 * 1024
    """Of the decoded body; what comes over the wire is bounded by the same figure."""
    deadline_s: float = 60.0
    """For the whole body, not for each piece of it."""


class ClientLeft(Exception):
    """The client closed before its body was complete."""


async def read_json_body(receive: Receive, headers: Mapping[str, str], limits: BodyLimits) -> bytes:
    """The decoded body. Raises a 4xx :class:`BadRequest`, or :class:`ClientLeft`."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType("The content-type must be application/json.", param="content-type")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity" and encoding not in _WINDOW_BITS:
        raise UnsupportedEncoding("Send the body plain, or with content-encoding gzip.", param="content-encoding")
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.max_bytes:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.deadline_s):
            body = await _receive_all(receive, limits)
    except TimeoutError as error:
        raise RequestTimeout(f"The request body did not arrive within {limits.deadline_s:g} s.") from error
    return body if encoding == "identity" else _decompress(body, encoding, limits)


async def _receive_all(receive: Receive, limits: BodyLimits) -> bytes:
    pieces, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece = message.get("body", b"")
        size += len(piece)
        if size > limits.max_bytes:
            raise _too_large(limits)
        pieces.append(piece)
        more = message.get("more_body", False)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _decompress(body: bytes, encoding: str, limits: BodyLimits) -> bytes:
    """One member, never more than the limit in memory. A second member or trailing bytes are refused."""
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        plain = inflater.decompress(body, limits.max_bytes + 1)
    except zlib.error as error:
        raise BadRequest(f"The body is not valid {encoding}.", param="content-encoding") from error
    if len(plain) > limits.max_bytes:
        raise _too_large(limits)
    if not inflater.eof or inflater.unused_data:
        raise BadRequest(f"The {encoding} body is cut short or has more after its end.", param="content-encoding")
    return plain


def _too_large(limits: BodyLimits) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {limits.max_bytes} bytes.")
