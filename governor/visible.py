"""Text of strangers made fit to be kept and shown: control characters spelled out, length bounded."""

from __future__ import annotations

LONGEST_NAME = 200
LONGEST_REASON = 2000


def visible(text: str, limit: int) -> str:
    """At most about ``limit`` characters on one line. What does not print (control, ANSI, bidi, surrogates) is spelled
    as in a Python literal."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)
