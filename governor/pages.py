"""What the admin pages beside the state answer: an agent's policy in force, and the end of the engine's log.

Shared with the dashboard; values only.
"""

from __future__ import annotations

import msgspec


class PolicyValueView(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a policy."""

    key: str
    """Dotted, as in ``output.final``."""
    value: str
    """As JSON."""
    source: str
    """The file it comes from, with its line where it has one."""
    own: bool
    """It comes from the agent's own file."""


class PolicyPage(msgspec.Struct, frozen=True, kw_only=True):
    """``/governor/agents/NAME/policy``: what is in force, whatever its file says now."""

    agent: str
    values: tuple[PolicyValueView, ...]
    """By key."""
    problem: str | None = None
    """Why the agent's file cannot be used as it is."""


class EngineLogPage(msgspec.Struct, frozen=True, kw_only=True):
    """``/governor/engine/log``: its last lines."""

    lines: tuple[str, ...] = ()
    """Oldest first, as the engine wrote them."""
    why_none: str = ""
    """Why there is none to show."""
