"""The turns that wait: in which order they are looked at, and when time alone changes something for them. Pure.

Work is counted: of each agent only the first few turns are looked at, since an agent's turns differ in nothing that
orders them but the prefix credit and their arrival; moments are kept in a heap and each is passed once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from governor.schedule.events import TurnArrived
from governor.schedule.order import Rank, class_rank, rank
from governor.schedule.standing import Waiting
from governor.types import AgentName, TurnId

INHERIT_S = 30.0
MOST_LEFT = 256
LOOK_AHEAD = 4
"""Turns of one agent that are looked at, beyond those that its own limits keep back."""


class _Moment(IntEnum):
    YIELD = 0
    """From here on an answer may be paused for it."""
    DUE = 1
    """From here on it beats everything."""
    HOLD = 2
    """Its client is told to come back later."""


class _Left(NamedTuple):
    waited_s: float
    at: float
    number: int


class TurnQueue:
    """All waiting turns."""

    def __init__(self) -> None:
        self._turns: dict[TurnId, Waiting] = {}
        self._agents: dict[AgentName, list[tuple[tuple[int, int, int], Waiting]]] = {}
        self._moments: list[tuple[float, int, _Moment, TurnId]] = []
        self._overdue: dict[TurnId, Waiting] = {}
        self._patient: set[TurnId] = set()
        self._left: OrderedDict[tuple[AgentName, bytes], _Left] = OrderedDict()
        """Of prompts whose clients have hung up while they waited."""
        self.out_of_time: dict[TurnId, Waiting] = {}
        """Those whose ``hold_s`` is over."""
        self.yielding: set[TurnId] = set()
        """Those that let others go first."""

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, turn_id: TurnId) -> bool:
        return turn_id in self._turns

    def get(self, turn_id: TurnId) -> Waiting | None:
        return self._turns.get(turn_id)

    def all(self) -> list[Waiting]:
        return list(self._turns.values())

    def agents(self) -> list[AgentName]:
        return list(self._agents)

    def add(self, waiting: Waiting, now: float) -> None:
        turn = waiting.turn
        self._turns[turn.turn_id] = waiting
        insort(self._agents.setdefault(turn.agent, []), (_place(waiting), waiting), key=lambda entry: entry[0])
        self._patient.add(turn.turn_id)
        if waiting.yields:
            self.yielding.add(turn.turn_id)
        asked = waiting.since - waiting.patient_for_s
        moments = [(asked + turn.slices.yield_after_s, _Moment.YIELD), (waiting.due, _Moment.DUE)]
        if not waiting.resumed:
            moments.append((waiting.since + turn.limits.hold_s, _Moment.HOLD))
        for at, kind in moments:
            heappush(self._moments, (at, waiting.number, kind, turn.turn_id))
        self.pass_time(now)

    def newcomer(self, turn: TurnArrived, now: float, number: int) -> Waiting:
        """A turn that begins to wait, unless it can run at once. A client that hung up and asks for the very same
        prompt again keeps its place, so that it comes to run instead of beginning anew for ever."""
        left = self._left.pop((turn.agent, turn.prompt), None) if turn.prompt else None
        if left is None or now - left.at > INHERIT_S:
            return Waiting(turn, now, number)
        return Waiting(turn, now, left.number, patient_for_s=left.waited_s)

    def leave(self, turn_id: TurnId, now: float) -> Waiting | None:
        """It is not waited for any more."""
        waiting = self.remove(turn_id)
        if waiting is not None and waiting.turn.prompt:
            waited_s = now - waiting.since + waiting.patient_for_s
            self._left[waiting.turn.agent, waiting.turn.prompt] = _Left(waited_s, now, waiting.number)
            if len(self._left) > MOST_LEFT:
                self._left.popitem(last=False)
        return waiting

    def remove(self, turn_id: TurnId) -> Waiting | None:
        """It comes to run."""
        waiting = self._turns.pop(turn_id, None)
        if waiting is None:
            return None
        mine = self._agents[waiting.turn.agent]
        mine.remove((_place(waiting), waiting))
        if not mine:
            del self._agents[waiting.turn.agent]
        self._patient.discard(turn_id)
        self.yielding.discard(turn_id)
        self._overdue.pop(turn_id, None)
        self.out_of_time.pop(turn_id, None)
        return waiting

    def begin_anew(self, agent: AgentName, now: float, arrivals: int) -> int:
        """The agent was held: its turns' waiting budgets begin now, behind all that have come, else the release of one
        would stop everybody. So does the ``hold_s`` of one that was kept beyond it. Returns ``arrivals``, which counts
        them anew."""
        for _, waiting in tuple(self._agents.get(agent, ())):
            arrivals += 1
            since = now if waiting.turn.turn_id in self.out_of_time else waiting.since
            self.remove(waiting.turn.turn_id)
            self.add(msgspec.structs.replace(waiting, since=since, number=arrivals, patient_for_s=since - now), now)
        return arrivals

    def pass_time(self, now: float) -> None:
        """Take note of the moments that are over."""
        while self._moments and self._moments[0][0] <= now:
            _, number, kind, turn_id = heappop(self._moments)
            waiting = self._turns.get(turn_id)
            if waiting is None or waiting.number != number:
                continue
            if kind is _Moment.DUE:
                self._overdue[turn_id] = waiting
            elif kind is _Moment.HOLD:
                self.out_of_time[turn_id] = waiting
            else:
                self._patient.discard(turn_id)

    def next_moment(self) -> float | None:
        """When :meth:`pass_time` will next have something to note."""
        while self._moments:
            at, number, _, turn_id = self._moments[0]
            waiting = self._turns.get(turn_id)
            if waiting is not None and waiting.number == number:
                return at
            heappop(self._moments)
        return None

    def overdue(self) -> list[Waiting]:
        """Beyond their waiting budget, the one that is longest over first."""
        return list(self._overdue.values())

    def is_overdue(self, waiting: Waiting) -> bool:
        return waiting.turn.turn_id in self._overdue

    def is_patient(self, waiting: Waiting) -> bool:
        """Nobody is paused for it yet."""
        return waiting.turn.turn_id in self._patient

    def in_order(
        self,
        now: float,
        attained: Callable[[AgentName], float],
        may: Callable[[Waiting], bool],
        look_ahead: int | None = LOOK_AHEAD,
    ) -> Iterator[Waiting]:
        """Those to be looked at, best first. ``may``: its agent's own limits let it run. ``look_ahead``: of each agent;
        ``None`` for all."""
        yield from (waiting for waiting in tuple(self._overdue.values()) if may(waiting))
        ranked: list[tuple[Rank, Waiting]] = []
        for agent, mine in self._agents.items():
            service, looked_at = attained(agent), 0
            for _, waiting in mine:
                if waiting.turn.turn_id in self._overdue or not may(waiting):
                    continue
                ranked.append((rank(waiting.turn, attained=service, number=waiting.number), waiting))
                looked_at += 1
                if looked_at == look_ahead:
                    break
        ranked.sort(key=lambda pair: pair[0])
        yield from (waiting for _, waiting in ranked)

    def position(self, turn_id: TurnId, attained: Callable[[AgentName], float]) -> int:
        """Of a waiting turn in the order of all; 1 is looked at first."""
        if turn_id in self._overdue:
            return 1 + list(self._overdue).index(turn_id)

        def ranked(waiting: Waiting) -> Rank:
            return rank(waiting.turn, attained=attained(waiting.turn.agent), number=waiting.number)

        own = ranked(self._turns[turn_id])
        better = sum(bisect_left(mine, own, key=lambda entry: ranked(entry[1])) for mine in self._agents.values())
        return 1 + better + sum(1 for waiting in self._overdue.values() if ranked(waiting) > own)


def _place(waiting: Waiting) -> tuple[int, int, int]:
    """Among its agent's turns."""
    turn = waiting.turn
    return class_rank(turn.agent_class), -turn.resident_tokens, waiting.number
