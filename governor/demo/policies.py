"""What the demo's agents may do in each of its two modes.

Nothing is cut or refused in either, so that all do the same work and only time differs. Governed, everything else is as
shipped for Hermes. Ungoverned, the gateway is a relay that watches: it is told that the engine can do nothing but
answer (``governor.demo.world``), so that it has neither a budget to hold turns by nor a way to pause one, and these
policies leave nothing that would hold, order, edit or shorten.
"""

from __future__ import annotations

from governor.demo.figures import Mode

_UNCAPPED = """
[output]                    # nothing is cut
tool_step = 200000
final = 200000
compaction = 200000
title = 200000
background = 200000
loop_chars = 0
"""
_GOVERNED = f"""base = "hermes"
{_UNCAPPED}
[limits]
hold_s = 86400              # nothing is refused
"""
_UNGOVERNED = f"""class = "normal"            # nobody goes first
{_UNCAPPED}
[slices]
enabled = false             # no answer makes room

[compression]
mode = "off"

[limits]
concurrency = 64            # everything goes to the engine as it comes
queue = 1000
hold_s = 86400

[stream]
keepalive = "chunk"         # as its client hears it, in both modes
"""


def policy_text(mode: Mode) -> str:
    """A policy file."""
    return _GOVERNED if mode is Mode.GOVERNED else _UNGOVERNED
