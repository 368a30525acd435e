"""What would change in a client's file, as a person sees it."""

from __future__ import annotations

import difflib


def unified(before: str, after: str, name: str) -> str:
    """A unified diff of two texts that are fit to be shown; empty when they are equal."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), fromfile=name, tofile=f"{name} (new)", lineterm=""
    )
    return "\n".join(lines)
