"""*image*: what it costs to come back to a conversation with an image, where the model takes images.

An image's tokens are cached by the hash of its content; an engine that hashes placeholders, or none, computes all of it
again. A picture is drawn for each repeat, sent cold, and sent again with a further question.
"""

from __future__ import annotations

import base64
import random
import struct
import zlib
from functools import partial
from typing import Any

from governor.errors import UpstreamError
from governor.measure.checks import require_usage, why_not_cold
from governor.measure.options import Options
from governor.measure.result import Case, Metric
from governor.measure.session import Session, Step

SIDE_PIXELS = 448
_WEIGHT = 4.0
_CELL = 16


def steps(session: Session, options: Options) -> list[Step]:
    if not session.facts.takes_images:
        session.skip("image return", "the model takes no images, by what the engine says of it")
        return []
    found = []
    for number in range(session.repeats):
        found.append(Step("image", _WEIGHT, partial(_return, session, number)))
    return found


async def _return(session: Session, number: int) -> None:
    seed = (await session.prompts.fresh(f"image {number}", 64)).ids or number
    url = "data:image/png;base64," + base64.b64encode(png(f"{seed}", SIDE_PIXELS)).decode()
    question: dict[str, Any] = {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": f"{number}: describe it."},
        ],
    }
    cold, again = Case(name="image, cold"), Case(name="image, return")
    further = [question, {"role": "assistant", "content": "Squares."}, {"role": "user", "content": "Which colours?"}]
    try:
        first = await session.target.ask_messages([question], 1)
        require_usage(first)
        reason = why_not_cold(first, session.facts)
        if reason is not None:
            session.throw(cold, reason)
            return
        session.add(cold, Metric.TTFT_S, first.ttft_s, first)
        second = await session.target.ask_messages(further, 1)
        require_usage(second)
    except UpstreamError as error:
        session.throw(cold, error.message)
        return
    session.add(again, Metric.TTFT_S, second.ttft_s, second)
    if second.cached_tokens is not None:
        session.add(again, Metric.CACHED_TOKENS, second.cached_tokens)


def png(seed: str, side: int) -> bytes:
    """Squares of random colours, as a PNG (RFC 2083) of ``side`` pixels each way."""
    source = random.Random(seed)  # noqa: S311 - a picture
    cells = -(-side // _CELL)
    colours = [[bytes(source.randrange(256) for _ in range(3)) for _ in range(cells)] for _ in range(cells)]
    rows = [b"\0" + b"".join(colours[y // _CELL][x // _CELL] for x in range(side)) for y in range(side)]
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body
