"""The KV ledger: who holds how much of L1. Pure; every call brings its time.

Each running turn has one lease. The sum of all leases never exceeds what the engine says it can hold; a prefix that
several turns share is counted once. A turn that ended in order has left the engine; one that was aborted or cut may
still sit in it, so its lease stays until the engine's own load confirms that it has gone, or a grace limit passes.
Counters without owners leak (the gateways' most reported fault), so there are none: every figure can be added up again
from the leases (:meth:`Ledger.check_integrity`), and what the engine reports beyond them is booked as foreign.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec

from governor.budget.claim import Capacity, Claim, Segment, Shortage, Sight
from governor.types import AgentName, TurnId

GRACE_S = 15.0
"""How long an engine may take to drop an aborted request; SGLang does it at its next step, and one step of a prefill
can take several seconds."""


class LeaseState(StrEnum):
    OPEN = "open"
    LEAVING = "leaving"
    """The turn is over here; the engine has not confirmed it."""


class Lease(msgspec.Struct):
    """One turn's share of L1."""

    claim: Claim
    since: float
    expires: float
    """A lease that is older than any turn may be, while the engine runs fewer requests than there are leases, is
    taken back."""
    state: LeaseState = LeaseState.OPEN
    left_at: float = 0.0


class Freed(msgspec.Struct, frozen=True):
    """A lease that ended without its turn's own word."""

    turn_id: TurnId
    agent: AgentName
    why: str


class Ledger:
    """All leases of one engine."""

    def __init__(self, capacity: Capacity = Capacity(), grace_s: float = GRACE_S) -> None:  # noqa: B008 - a frozen value
        self.capacity = capacity
        self.foreign_tokens = 0
        """KV in use that no lease explains, by the engine's last two reports: one alone may be older than our books."""
        self._last_excess = 0
        self._grace_s = grace_s
        self._leases: dict[TurnId, Lease] = {}
        self._shared: Counter[Segment] = Counter()
        """Holders of each segment. Where its size was told differently it is another one."""
        self._held_tokens = 0
        self._held_slots = 0
        self._agents: dict[AgentName, int] = {}
        """KV tokens by agent, shared prefixes in full for each."""

    # Looking

    @property
    def held_tokens(self) -> int:
        """Of all leases, shared prefixes once."""
        return self._held_tokens

    @property
    def held_slots(self) -> int:
        return self._held_slots

    @property
    def free_tokens(self) -> int | None:
        """``None``: the engine does not tell what it has."""
        if self.capacity.tokens is None:
            return None
        return self.capacity.tokens - self._held_tokens - self.foreign_tokens

    def agent_tokens(self, agent: AgentName) -> int:
        """What the agent's turns hold, each as if it were alone."""
        return self._agents.get(agent, 0)

    def holds(self, turn_id: TurnId) -> bool:
        return turn_id in self._leases

    def claim_of(self, turn_id: TurnId) -> Claim | None:
        lease = self._leases.get(turn_id)
        return None if lease is None else lease.claim

    def leases(self) -> list[Lease]:
        """In the order of their grants; for display."""
        return list(self._leases.values())

    def cost(self, claim: Claim) -> int:
        """Tokens it would add to what is held."""
        return claim.own_tokens + sum(s.tokens for s in claim.segments if s not in self._shared)

    def shortage(self, claim: Claim, *, without: tuple[TurnId, ...] = (), reserve_tokens: int = 0) -> Shortage:
        """What is missing for ``claim`` now; falsy when it fits.

        ``without``: leases thought away. ``reserve_tokens``: room that this claim must leave free for others.
        """
        total, slots = self.capacity.tokens, self.capacity.slots
        one = (
            claim.prompt_tokens + claim.output_tokens
        )  # an engine writes the choices of a request one by one if it must
        never = (total is not None and one > total) or (slots is not None and claim.slots > slots)
        missing_tokens = missing_slots = 0
        gone = [self._leases[turn_id].claim for turn_id in without if turn_id in self._leases]
        if total is not None:
            need = self._cost_without(claim, gone)
            foreign = self.foreign_tokens if self._leases else 0  # alone a turn runs; the engine knows better than we
            missing_tokens = need + reserve_tokens - (total - foreign)
        if slots is not None:
            missing_slots = self._held_slots - sum(each.slots for each in gone) + claim.slots - slots
        return Shortage(tokens=max(0, missing_tokens), slots=max(0, missing_slots), never=never)

    def at_most(self, claim: Claim) -> Claim:
        """``claim``, cut to what the engine has at all. For an answer that was begun: it has grown until it filled L1,
        and only the engine can say that it must end."""
        total = self.capacity.tokens
        if total is None or claim.tokens <= total:
            return claim
        room = max(0, total - claim.prompt_tokens) // claim.choices
        if room:
            return msgspec.structs.replace(claim, output_tokens=room)
        own = Segment(claim.turn_id.encode(), total)
        return msgspec.structs.replace(claim, segments=(own,), output_tokens=0, margin_tokens=0)

    def larger(self, claim: Claim, output_tokens: int) -> Claim:
        """``claim`` with so much more to write, as far as it may and as the engine has at all."""
        more = claim.output_tokens + output_tokens
        if claim.most_output_tokens is not None:
            more = min(more, claim.most_output_tokens)
        return self.at_most(msgspec.structs.replace(claim, output_tokens=more))

    # Booking

    def book(self, claim: Claim, now: float, lasts_s: float) -> None:
        """Open the turn's lease. Raises ``ValueError`` if it has one or does not fit: asking first is the caller's."""
        if claim.turn_id in self._leases:
            raise ValueError(f"turn {claim.turn_id} has a lease")
        if self.shortage(claim):
            raise ValueError(f"turn {claim.turn_id} does not fit")
        self._leases[claim.turn_id] = Lease(claim, now, now + lasts_s)
        self._add(claim)

    def grow(self, turn_id: TurnId, output_tokens: int) -> bool:
        """Let a running turn write up to ``output_tokens`` beyond its prompt; ``False`` where that does not fit."""
        lease = self._leases.get(turn_id)
        return lease is not None and self.change(msgspec.structs.replace(lease.claim, output_tokens=output_tokens))

    def change(self, claim: Claim) -> bool:
        """What a running turn needs now, in place of what it has; ``False`` where that does not fit."""
        lease = self._leases.get(claim.turn_id)
        if lease is None or lease.state is LeaseState.LEAVING:
            return False
        if claim.tokens > lease.claim.tokens and self.shortage(claim, without=(claim.turn_id,)):
            return False
        self._take(lease.claim)
        self._add(claim)
        lease.claim = claim
        return True

    def release(self, turn_id: TurnId, now: float, *, confirmed: bool) -> None:
        """The turn is over. ``confirmed``: the engine itself has ended it, so that it holds nothing more. Unknown and
        repeated releases change nothing."""
        lease = self._leases.get(turn_id)
        if lease is None:
            return
        if confirmed or self.capacity == Capacity():  # an engine that tells nothing confirms nothing either
            self._drop(turn_id)
        elif lease.state is LeaseState.OPEN:
            lease.state, lease.left_at = LeaseState.LEAVING, now

    def clear(self) -> None:
        """The engine has started anew: nothing in it is left."""
        for turn_id in tuple(self._leases):
            self._drop(turn_id)
        self.foreign_tokens = self._last_excess = 0

    def reconcile(self, now: float, sight: Sight) -> list[Freed]:
        """Compare with what the engine reports. Leases that it no longer runs are freed, oldest departures first."""
        freed = []
        if sight.running is not None:
            spare = len(self._leases) - sight.running
            for turn_id, lease in sorted(self._leases.items(), key=_by_departure):
                if spare <= 0:
                    break
                gone = lease.state is LeaseState.LEAVING and lease.left_at <= sight.asked_at
                expired = lease.state is LeaseState.OPEN and lease.expires <= sight.asked_at
                if gone or expired:
                    spare -= 1
                    if expired:
                        freed.append(Freed(turn_id, lease.claim.agent, "expired, and the engine runs fewer turns"))
                    self._drop(turn_id)
        freed += self.expire(now)
        if sight.used_tokens is not None:
            excess = max(0, sight.used_tokens - self._held_tokens)
            self.foreign_tokens = min(excess, self._last_excess)
            self._last_excess = excess
        return freed

    def expire(self, now: float) -> list[Freed]:
        """Free those whose grace has passed without a word of the engine's."""
        late = [
            turn_id
            for turn_id, lease in self._leases.items()
            if lease.state is LeaseState.LEAVING and now >= lease.left_at + self._grace_s
        ]
        freed = [
            Freed(turn_id, self._leases[turn_id].claim.agent, f"not confirmed within {self._grace_s:.0f} s")
            for turn_id in late
        ]
        for turn_id in late:
            self._drop(turn_id)
        return freed

    def next_expiry(self) -> float | None:
        """When :meth:`expire` would next free something."""
        leaving = [lease.left_at for lease in self._leases.values() if lease.state is LeaseState.LEAVING]
        return min(leaving) + self._grace_s if leaving else None

    def check_integrity(self) -> None:
        """Add everything up again. Raises ``AssertionError`` on any difference."""
        other = Ledger()
        for lease in self._leases.values():
            other._add(lease.claim)
        for name in ("_shared", "_held_tokens", "_held_slots", "_agents"):
            if getattr(self, name) != getattr(other, name):
                raise AssertionError(f"ledger {name}: booked {getattr(self, name)}, leases {getattr(other, name)}")
        if min(self._held_tokens, self._held_slots, self.foreign_tokens) < 0:
            raise AssertionError("negative figures in the ledger")

    # Parts

    def _cost_without(self, claim: Claim, gone: list[Claim]) -> int:
        """Tokens held with ``claim`` and without ``gone``."""
        left: dict[Segment, int] = {}
        held = self._held_tokens
        for each in gone:
            held -= each.own_tokens
            for segment in each.segments:
                holders = left.get(segment, self._shared[segment]) - 1
                left[segment] = holders
                if holders == 0:
                    held -= segment.tokens
        held += claim.own_tokens
        return held + sum(s.tokens for s in claim.segments if left.get(s, self._shared[s]) == 0)

    def _add(self, claim: Claim) -> None:
        for segment in claim.segments:
            if not self._shared[segment]:
                self._held_tokens += segment.tokens
            self._shared[segment] += 1
        self._held_tokens += claim.own_tokens
        self._held_slots += claim.slots
        if claim.tokens:
            self._agents[claim.agent] = self._agents.get(claim.agent, 0) + claim.tokens

    def _take(self, claim: Claim) -> None:
        for segment in claim.segments:
            self._shared[segment] -= 1
            if not self._shared[segment]:
                del self._shared[segment]
                self._held_tokens -= segment.tokens
        self._held_tokens -= claim.own_tokens
        self._held_slots -= claim.slots
        left = self._agents.pop(claim.agent, 0) - claim.tokens
        if left:
            self._agents[claim.agent] = left

    def _drop(self, turn_id: TurnId) -> None:
        self._take(self._leases.pop(turn_id).claim)


def _by_departure(item: tuple[TurnId, Lease]) -> tuple[bool, float]:
    lease = item[1]
    return lease.state is LeaseState.OPEN, lease.left_at if lease.state is LeaseState.LEAVING else lease.since
