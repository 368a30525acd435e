"""Text of strangers made fit to be kept and shown: control characters spelled out, length bounded."""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Controls, marks of direction and the other characters that have no width and do something."""

LONGEST_NAME = 200
LONGEST_REASON = 2000


def visible(text: str, limit: int) -> str:
    """At most about ``limit`` characters on one line. What does not print (control, ANSI, bidi, surrogates) is spelled
    as in a Python literal."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)


def visible_lines(text: str) -> str:
    """A whole text with its lines, tabs, spaces and joined emoji. What would steer a terminal, turn the direction of
    writing or hide is spelled as in a Python literal."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))
