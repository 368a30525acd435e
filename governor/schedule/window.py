"""How many agents may take part at once, so that they do not push each other's caches out. Pure.

An agent's next turn finds its context in cache only if the others' have not displaced it. With too many agents each
turn displaces the next one's prefix and everything is computed again and again; the cure is fewer agents at a time, not
fewer turns (CONCUR: additive increase, multiplicative decrease on the number of active agents, driven by occupancy and
hit rate, as congestion control does it on packets). The window halves when L1 is in use *and* what is served from cache
has fallen; it opens by one when that is well again. Between the marks nothing changes, and after a change nothing
changes for a while (hysteresis), since a new window shows in the hit rate only after everybody's next turn.

Members stay while they work: an agent in a tool call keeps its place for ``IDLE_S``. When the window has become smaller
than its members are many, each leaves with its turn's end until they fit. When somebody waits outside, the member that
has been in for longest makes room after ``RESIDENCE_S``, even while it runs: a long answer keeps nobody out, and is
paused by the rules for everybody. A window of one agent that still serves next to nothing from
cache says that the cache does not work, not that it is too small: then it opens, and stays open for ``USELESS_S``.
"""

from __future__ import annotations

import msgspec

from governor.types import AgentName

LOW_SHARE, HIGH_SHARE = 0.6, 0.85
"""Served from cache: below the first the window closes, above the second it opens. Closing keeps agents out for
minutes, which is worth it only where contexts are computed again all the time."""
FULL = 0.7
"""Of L1 in use by running turns: contexts of some size leave a part of it empty, however many wait."""
SETTLE_S = 20.0
OPENS_S = 60.0
"""After a change, the time until it opens."""
IDLE_S = 45.0
RESIDENCE_S = 120.0
USELESS_SHARE, PROVEN_S, USELESS_S = 0.2, 600.0, 3600.0
"""With one agent: what is still served from a cache that works, the time until it is held for useless, and for how
long."""


class _Member(msgspec.Struct):
    since: float
    running: int = 0
    idle_since: float = 0.0


class ActiveWindow:
    """The agents that take part now. Open for all until what the engine serves says otherwise."""

    def __init__(self) -> None:
        self.size: int | None = None
        """``None``: no limit."""
        self._members: dict[AgentName, _Member] = {}
        self._changed_at = float("-inf")
        self._closes_from = float("-inf")

    @property
    def members(self) -> int:
        return len(self._members)

    def admits(self, agent: AgentName, now: float) -> bool:
        """Whether a turn of this agent may be granted, as far as the window goes."""
        if self.size is None or agent in self._members or len(self._members) < self.size:
            return True
        return self._leaver(now) is not None

    def on_granted(self, agent: AgentName, now: float) -> None:
        member = self._members.get(agent)
        if member is None:
            if self.size is not None and len(self._members) >= self.size:
                leaver = self._leaver(now)
                if leaver is not None:
                    del self._members[leaver]
            member = self._members[agent] = _Member(since=now)
        member.running += 1

    def on_ended(self, agent: AgentName, now: float) -> None:
        member = self._members.get(agent)
        if member is not None:
            member.running = max(0, member.running - 1)  # one may have begun before it lost its place
            member.idle_since = now
            if member.running == 0 and self.size is not None and len(self._members) > self.size:
                del self._members[agent]

    def on_seen(self, now: float, occupancy: float | None, served_share: float | None) -> None:
        """``occupancy``: part of L1 that running turns hold."""
        self._forget_idle(now)
        if occupancy is None or served_share is None or now < max(self._changed_at + SETTLE_S, self._closes_from):
            return
        if served_share < LOW_SHARE and occupancy >= FULL:
            self._close(now, served_share)
        elif self.size is not None and served_share >= HIGH_SHARE and now >= self._changed_at + OPENS_S:
            self.size += 1
            self._changed_at = now
            if self.size > 2 * max(1, len(self._members)):
                self.size = None

    def _close(self, now: float, served_share: float) -> None:
        if self.size != 1:
            self.size = max(1, (len(self._members) if self.size is None else self.size) // 2)
            self._changed_at = now
        elif served_share < USELESS_SHARE and now >= self._changed_at + PROVEN_S:
            self.size, self._closes_from = None, now + USELESS_S

    def next_change(self, now: float) -> float | None:
        """When a place becomes free by time alone."""
        if self.size is None or len(self._members) < self.size:
            return None
        moments = [each.since + RESIDENCE_S for each in self._members.values()]
        moments += [each.idle_since + IDLE_S for each in self._members.values() if each.running == 0]
        return min((moment for moment in moments if moment > now), default=None)

    def _leaver(self, now: float) -> AgentName | None:
        """The member that makes room: idle, and either for long or after its time; the longest in first."""
        best: tuple[float, AgentName] | None = None
        for name, each in self._members.items():
            may = now >= each.since + RESIDENCE_S or (each.running == 0 and now >= each.idle_since + IDLE_S)
            if may and (best is None or each.since < best[0]):
                best = (each.since, name)
        return None if best is None else best[1]

    def _forget_idle(self, now: float) -> None:
        for name in [n for n, each in self._members.items() if each.running == 0 and now >= each.idle_since + IDLE_S]:
            del self._members[name]
