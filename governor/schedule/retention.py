"""Conversations at rest: whose state is worth a place in L1 while its tool runs, and who is fetched back in time. Pure.

SGLang has no pins: nobody can be kept in L1 by decree. What is left is to know. A waiting turn's prefix counts in its
order as long as it is probably still there (:mod:`governor.schedule.recency`), and a conversation that has fallen out
is brought back by a request for one token, before it is expected, when nobody else wants the engine.

Places in L1 are given by the chance that a conversation goes on within :data:`HORIZON_S`
(:mod:`governor.schedule.toolclock`) until L1 is full; who has one and is not there is fetched. What a return costs is
left out: a token of it costs nearly the same whatever the context. Where nobody knows the chance nothing is fetched.

Not done, because it was measured and helps nothing (``docs/design/retention.md``): to let waiting turns wait longer so
that they do not push out somebody who is about to return.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container

import msgspec

from governor.policy.model import LimitPolicy, SharePolicy
from governor.schedule.events import (
    AgentHeld,
    AgentReleased,
    EngineChanged,
    EngineMode,
    SchedulerEvent,
    TurnArrived,
    TurnEnded,
    TurnPaused,
    TurnWrote,
)
from governor.schedule.recency import Recency
from governor.schedule.toolclock import ToolClock
from governor.types import MAIN_KINDS, AgentName, TurnId

HORIZON_S = 60.0
FORGET_S = 3600.0
"""A conversation that has not gone on for so long is given up."""
MOST_RESTING = 1024
FEWEST_TOKENS = 2048
"""A smaller context is back in a moment."""
SURE = 0.05
"""Chance below which nobody is fetched."""
FETCH_LIMITS = LimitPolicy(queue=0)
"""Of the turn that fetches: where it cannot run at once it is refused."""


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation between two turns."""

    context: str
    agent: AgentName
    share: SharePolicy
    may_fetch: bool
    tokens: int
    """What its last turn has left, prompt and answer."""
    tool: str
    since: float


class Retention:
    """Watches the scheduler's events, and knows who rests."""

    def __init__(self) -> None:
        self.clock = ToolClock()
        self.recency = Recency()
        self._turns: dict[TurnId, TurnArrived] = {}
        """That have a context, and wait or run."""
        self._resting: OrderedDict[str, Rest] = OrderedDict()
        self._fetched: set[str] = set()
        """Contexts at rest that have been fetched once."""
        self._held: set[AgentName] = set()
        """Agents whose turns will not come for now."""

    def on_event(self, now: float, event: SchedulerEvent) -> SchedulerEvent:
        """Take note of what the scheduler is about to be told; an arrival comes back with what of it is in L1."""
        match event:
            case TurnArrived():
                return self._on_arrived(now, event)
            case TurnWrote(turn_id, tokens):
                self.recency.grow(turn_id, tokens)
            case TurnPaused():
                self._on_paused(event)
            case TurnEnded():
                self._on_ended(now, event)
            case AgentHeld(agent=agent):
                self._held.add(agent)
            case AgentReleased(agent):
                self._held.discard(agent)
            case EngineChanged():
                self.recency.capacity_tokens = event.capacity.tokens
                if event.anew or event.mode is not EngineMode.READY:
                    self.recency.forget()  # at worst it comes back as it was
        return event

    def on_granted(self, turn_id: TurnId) -> None:
        """A turn runs, or goes on."""
        turn = self._turns.get(turn_id)
        if turn is not None and turn.context is not None:
            self.recency.hold(turn_id, turn.context, 0 if turn.claim is None else turn.claim.prompt_tokens)

    def context_of(self, turn_id: TurnId) -> str | None:
        """Of a turn that waits or runs."""
        turn = self._turns.get(turn_id)
        return None if turn is None else turn.context

    def resident_tokens(self, turn: TurnArrived) -> int:
        """Of a turn's prompt, what is probably in L1 now. All of its known prefix or nothing: what is evicted first is
        a context's end, and a hybrid model cannot go on from a shallower place without computing the rest."""
        if turn.context is None or turn.prefix_tokens <= 0 or not self.recency.holds(turn.context):
            return 0
        quota = turn.share.retained_tokens
        return turn.prefix_tokens if quota is None or self._used_by(turn.agent, turn.context) <= quota else 0

    def resting(self) -> list[Rest]:
        """Longest first; for display."""
        return list(self._resting.values())

    def to_fetch(self, now: float, *, held_tokens: int, having: Container[str]) -> Rest | None:
        """Who of those in ``having`` is to be brought back into L1, where running turns hold so much; the likeliest
        first. Each is fetched once a rest at most: the arrival of the turn that does it counts."""
        fits = self.recency.capacity_tokens
        if fits is None or not any(each.may_fetch for each in self._resting.values()):
            return None
        room = fits - held_tokens
        for chance, rest in self._ranked(now):
            if rest.tokens > room:
                return None
            room -= rest.tokens
            if chance >= SURE and rest.context in having and self._may_fetch(rest):
                return rest
        return None

    def check_integrity(self) -> None:
        """Raises ``AssertionError``."""
        self.recency.check_integrity()
        if not self._fetched <= self._resting.keys():
            raise AssertionError("something was fetched for a conversation that does not rest")
        if len(self._resting) > MOST_RESTING:
            raise AssertionError("too many conversations at rest are kept")

    def _on_arrived(self, now: float, turn: TurnArrived) -> TurnArrived:
        self._forget_old(now)
        if turn.context is None:
            return turn
        self._turns[turn.turn_id] = turn
        if turn.fetches:
            if turn.context in self._resting:
                self._fetched.add(turn.context)
            return turn
        resident = self.resident_tokens(turn)
        rest = self._wake(turn.context)
        if rest is not None and turn.prefix_tokens > 0:
            self.clock.on_return(rest.agent, rest.tool, now - rest.since)
        return msgspec.structs.replace(turn, resident_tokens=resident)

    def _on_paused(self, event: TurnPaused) -> None:
        self.recency.let_go(event.turn_id)
        turn = self._turns.get(event.turn_id)
        if turn is not None:
            self._turns[event.turn_id] = msgspec.structs.replace(turn, claim=event.claim)

    def _on_ended(self, now: float, event: TurnEnded) -> None:
        turn = self._turns.pop(event.turn_id, None)
        if turn is None or turn.context is None:
            return
        left = event.left
        if left is None:
            self.recency.end(event.turn_id)
            return
        self.recency.end(event.turn_id, left.tokens, left.cached_tokens)
        if turn.fetches or turn.kind not in MAIN_KINDS:
            return
        self._wake(turn.context)
        self._resting[turn.context] = Rest(
            context=turn.context,
            agent=turn.agent,
            share=turn.share,
            # A rate would count the request for it as a turn.
            may_fetch=turn.share.prewarm and turn.limits.turns_per_minute is None,
            tokens=left.tokens,
            tool=left.tool,
            since=now,
        )
        while len(self._resting) > MOST_RESTING:
            self._wake(next(iter(self._resting)))

    def _used_by(self, agent: AgentName, context: str) -> float:
        """KV tokens of the agent's conversations at rest, from the latest one to this."""
        used = 0
        for rest in reversed(self._resting.values()):
            if rest.agent == agent:
                used += rest.tokens
                if rest.context == context:
                    return used
        return math.inf

    def _kept(self) -> list[Rest]:
        """Those within their agents' quotas, which the latest ones have."""
        used: dict[AgentName, int] = {}
        kept = []
        for rest in reversed(self._resting.values()):
            used[rest.agent] = used.get(rest.agent, 0) + rest.tokens
            quota = rest.share.retained_tokens
            if quota is None or used[rest.agent] <= quota:
                kept.append(rest)
        return kept

    def _ranked(self, now: float) -> list[tuple[float, Rest]]:
        """By the chance to go on within the horizon, 0 where nobody knows; of equals the latest first."""
        kept = self._kept()
        expected = {pair: self.clock.expected(*pair) for pair in {(each.agent, each.tool) for each in kept}}
        ranked = []
        for rest in kept:
            returns = expected[rest.agent, rest.tool]
            ranked.append((0.0 if returns is None else returns.chance(now - rest.since, HORIZON_S), rest))
        return sorted(ranked, key=lambda pair: -pair[0])

    def _may_fetch(self, rest: Rest) -> bool:
        if not rest.may_fetch or rest.context in self._fetched or rest.tokens < FEWEST_TOKENS:
            return False
        if rest.agent in self._held:
            return False
        return not self.recency.holds(rest.context)

    def _wake(self, context: str) -> Rest | None:
        self._fetched.discard(context)
        return self._resting.pop(context, None)

    def _forget_old(self, now: float) -> None:
        while self._resting:
            rest = next(iter(self._resting.values()))
            if now - rest.since < FORGET_S:
                return
            self.clock.on_given_up(rest.agent, rest.tool)
            self._wake(rest.context)
