"""The suites by name. Each makes its steps from a session and what was chosen; ``docs/bench-protocol.md`` tells how."""

from governor.measure.suites.catalogue import SUITES, Suite

__all__ = ["SUITES", "Suite"]
