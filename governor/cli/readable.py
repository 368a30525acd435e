"""What left a prompt, as a person reads it on a terminal. Pure."""

from __future__ import annotations

from governor.compress.left_text import left_text
from governor.visible import visible_lines


def readable(body: bytes) -> str:
    """Safe to print."""
    return visible_lines(left_text(body, media_hint=": --raw prints it"))
