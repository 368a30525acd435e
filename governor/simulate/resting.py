"""Conversations at rest in virtual time: names for their contexts, and the requests that fetch them back into L1.

The names stand for what the gateway has from its hash chain: a prompt that goes on from one that was sent has its name,
one that begins anew or branches off early has another.
"""

from __future__ import annotations

from collections import OrderedDict

from governor.budget.claim import Claim
from governor.policy.model import SlicePolicy
from governor.schedule.events import Left, TurnArrived
from governor.schedule.retention import FETCH_LIMITS, Rest
from governor.simulate.acts import Request
from governor.simulate.flight import Flight
from governor.types import AgentClass, AgentName, PromptShape, TurnKind
from serve.twin.tiers_key import Key

LINES = 8
"""Kept of a session."""
GOES_ON = 0.9
"""Part of an earlier prompt that a prompt must begin with; what a client moves along at its end may differ."""


class Contexts:
    """Who a request goes on from."""

    def __init__(self) -> None:
        self._sent: dict[tuple[AgentName, str], OrderedDict[str, Key]] = {}
        self.held: dict[str, Key] = {}
        """Prompt and answer, by name."""
        self._count = 0

    def name_of(self, request: Request) -> str:
        """Of the context that it makes longer. Changes state."""
        if request.fetches is not None:
            return request.fetches
        lines = self._sent.setdefault((request.agent, request.session), OrderedDict())
        fitting = [name for name, sent in lines.items() if sent.common(request.prompt, 0) >= GOES_ON * len(sent)]
        name = max(fitting, key=lambda name: len(lines[name]), default=None)
        if name is None:
            self._count += 1
            name = f"{request.agent}/{request.session}/{self._count}"
        lines[name] = request.prompt
        lines.move_to_end(name)
        if len(lines) > LINES:
            self.held.pop(lines.popitem(last=False)[0], None)
        return name

    def on_answered(self, context: str, flight: Flight) -> Left | None:
        """What it leaves; ``None`` if it was not answered."""
        if not flight.written:
            return None
        if flight.request.fetches is not None:
            return Left(tokens=flight.prompt_tokens)
        self.held[context] = flight.context
        return Left(
            tokens=len(flight.context),
            cached_tokens=flight.cached_tokens,
            tool=flight.request.tool,
        )

    def fetch_of(self, now: float, rest: Rest) -> Request:
        """For one token behind all that the conversation has."""
        key = self.held[rest.context]
        return Request(
            agent=rest.agent,
            session="",
            kind=TurnKind.BACKGROUND,
            shape=PromptShape.REPEAT,
            attempt=1,
            asked_s=now,
            prompt=key,
            output=key.cut(len(key) - 1, len(key)),
            cap=1,
            accept_length=None,
            patience_s=None,
            fetches=rest.context,
        )


def fetch_turn(flight: Flight, claim: Claim) -> TurnArrived:
    """What is asked of the scheduler for such a request."""
    return TurnArrived(
        turn_id=flight.turn_id,
        agent=flight.request.agent,
        agent_class=AgentClass.BACKGROUND,
        kind=flight.request.kind,
        limits=FETCH_LIMITS,
        slices=SlicePolicy(enabled=False),
        claim=claim,
        context=flight.request.fetches,
        prefix_tokens=flight.prompt_tokens,
        fetches=True,
    )
