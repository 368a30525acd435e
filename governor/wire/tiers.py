"""SGLang's ``sglext.cached_tokens_details``: which tier served the cached tokens, read and taken out again.

An answer carries it beside other extensions, which a client may have asked for; those stay.
Source: SGLang 0.5.23 ``entrypoints/openai/protocol.py`` (``SglExt``), ``serving_chat.py``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from governor.errors import BadRequest
from governor.wire.jsonobject import JsonObject

EXTENSIONS = "sglext"
_DETAILS = "cached_tokens_details"


class WireTiers(msgspec.Struct):
    """Tokens by tier. ``Any``: a lying engine must not break the relay."""

    device: Any = None
    host: Any = None
    storage: Any = None


def tiers_of(extensions: Any) -> WireTiers | None:
    """From the decoded ``sglext`` of an answer; ``None`` if it does not tell."""
    details = extensions.get(_DETAILS) if isinstance(extensions, dict) else None
    if not isinstance(details, dict):
        return None
    return WireTiers(device=details.get("device"), host=details.get("host"), storage=details.get("storage"))


def without_tiers(data: bytes) -> bytes:
    """An answer or a chunk without the split; ``b""`` if the chunk has carried nothing else."""
    try:
        json = JsonObject(data)
        extensions = msgspec.json.decode(json.raw(EXTENSIONS) or b"null")
    except (BadRequest, msgspec.MsgspecError):
        return data
    if tiers_of(extensions) is None:
        return data
    del extensions[_DETAILS]
    if extensions:
        return json.edited({EXTENSIONS: msgspec.json.encode(extensions)})
    if bytes(json.raw("choices") or b"") == b"[]" and bytes(json.raw("usage") or b"null") == b"null":
        return b""
    return json.edited({EXTENSIONS: None})
