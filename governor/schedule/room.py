"""Whether there is room in L1 for a turn, and what is missing, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from governor.budget.ledger import Ledger
from governor.schedule.events import TurnArrived
from governor.types import AgentClass, AgentName, TurnId

HOLD_BACK = {AgentClass.INTERACTIVE: 0.0, AgentClass.NORMAL: 0.0, AgentClass.BACKGROUND: 0.2}
"""Part of L1 that a class leaves free for better ones, as long as anybody else runs."""


class Room:
    """The KV ledger, as the turn scheduler asks it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.floors: Mapping[AgentName, int] = {}

    def lacks(self, turn: TurnArrived) -> bool:
        """Whether the turn cannot have its room now. Alone it always can: that it can fit at all was seen on its
        arrival."""
        claim, ledger = turn.claim, self.ledger
        if claim is None or ledger.held_tokens == 0:
            return False
        return bool(ledger.shortage(claim, reserve_tokens=self._left_to_others(turn)))

    def missing_for(self, turn: TurnArrived) -> str | None:
        """What is missing, in words; ``None`` if nothing is."""
        claim, ledger = turn.claim, self.ledger
        if claim is None or not self.lacks(turn):
            return None
        short = ledger.shortage(claim, reserve_tokens=self._left_to_others(turn))
        if short.tokens:
            return f"needs {ledger.cost(claim):,} KV tokens, {short.tokens:,} more than are free"
        return f"needs {claim.slots} state slots, {short.slots} more than are free"

    def over_ceiling(self, turn: TurnArrived) -> str | None:
        """How the turn would exceed its agent's part, in words. One turn alone always may run."""
        claim, ceiling = turn.claim, turn.share.ceiling_tokens
        held = self.ledger.agent_tokens(turn.agent)
        if claim is None or ceiling is None or held == 0 or held + claim.tokens <= ceiling:
            return None
        return f"this agent holds {held:,} of its {ceiling:,} KV tokens and asks for {claim.tokens:,} more"

    def fits_without(self, turn: TurnArrived, gone: tuple[TurnId, ...]) -> bool:
        """Whether it would fit if those turns were not there."""
        return turn.claim is None or not self.ledger.shortage(
            turn.claim, without=gone, reserve_tokens=self._left_to_others(turn)
        )

    @property
    def occupancy(self) -> float | None:
        """Part of L1 that is held; ``None``: unknown."""
        total = self.ledger.capacity.tokens
        return None if not total else (self.ledger.held_tokens + self.ledger.foreign_tokens) / total

    def too_large(self, turn: TurnArrived) -> str | None:
        """Why the turn can never run, with the numbers."""
        claim, total = turn.claim, self.ledger.capacity
        if claim is None or not self.ledger.shortage(claim).never:
            return None
        output = claim.output_tokens * claim.choices
        have = f"{total.tokens or 0:,} KV tokens" + (f" and {total.slots} state slots" if total.slots else "")
        return f"{claim.prompt_tokens:,} prompt tokens and {output:,} for the answer never fit the engine's {have}"

    def _left_to_others(self, turn: TurnArrived) -> int:
        """KV tokens that this turn must leave free: other agents' floors, and better classes' part."""
        own = HOLD_BACK[turn.agent_class]
        held_back = int(own * (self.ledger.capacity.tokens or 0)) if own else 0
        if not self.floors:
            return held_back
        floors = sum(
            max(0, floor - self.ledger.agent_tokens(name)) for name, floor in self.floors.items() if name != turn.agent
        )
        return max(floors, held_back)
