"""Plays a plan on the engine model, in its own time."""

from __future__ import annotations

import heapq
from math import inf

from serve.twin.engine import TwinEngine
from serve.twin.engine_model import Ask, Ended, Wrote
from serve.twin.machine import Machine
from serve.twin.tiers_key import Key
from tests.twin.traffic import ANSWERS, Flush, Restart, Served, Step, Turn

TICK_S = 0.005
"""In which a client that counts tokens hears of one and reacts."""
_LIMIT_S = 3600.0


class TwinPlay:
    """One plan on one engine model."""

    def __init__(self, steps: list[Step], machine: Machine) -> None:
        self._machine = machine
        self._engine = TwinEngine(machine.engine, machine.cost)
        self._clock_s = 0.0
        """Of the plan, when the engine's own was 0."""
        self._waiting = list(steps)
        self._ready: list[tuple[float, int]] = []
        self._steps = {step.number: step for step in steps}
        self._by_rid = {step.rid: step for step in steps if isinstance(step, Turn)}
        self._spoke: dict[int, float] = {}
        self._ended: dict[int, float] = {}
        self._sent: dict[int, float] = {}
        self._counted: set[int] = set()
        """Turns that will be aborted after some tokens."""
        self.served: list[Served] = []

    def run(self) -> list[Served]:
        """Until all is said. Raises :class:`AssertionError` when it does not come to an end."""
        self._release()
        while self._waiting or self._ready or self._engine.next_at() is not None:
            assert self._now < _LIMIT_S, f"{self._now:.0f} s, and {len(self._waiting)} steps wait"
            self._advance()
            while self._ready and self._ready[0][0] <= self._now + 1e-9:
                self._do(self._steps[heapq.heappop(self._ready)[1]])
        self._engine.tiers.check_integrity()
        return self.served

    @property
    def _now(self) -> float:
        return self._clock_s + self._engine.now

    def _advance(self) -> None:
        now, next_at = self._engine.now, self._engine.next_at()
        until = inf if next_at is None else next_at
        if self._ready:
            until = min(until, self._ready[0][0] - self._clock_s)
        if self._counted:
            until = min(until, now + TICK_S)
        for event in self._engine.run(max(now, until)):
            at = self._clock_s + event.at
            turn = self._by_rid[event.rid]
            match event:
                case Wrote():
                    self._spoke.setdefault(turn.number, at)
                    if turn.stop_after_tokens is not None and event.stop >= turn.stop_after_tokens:
                        self._engine.abort(self._engine.now, turn.rid)
                        self._counted.discard(turn.number)
                case Ended():
                    self._end(turn, event, at)
        self._release()

    def _end(self, turn: Turn, event: Ended, at: float) -> None:
        self._ended[turn.number] = at
        self._counted.discard(turn.number)
        self._spoke.setdefault(turn.number, at)
        sent = self._sent[turn.number]
        self.served.append(
            Served(
                number=turn.number,
                prompt_tokens=event.prompt_tokens,
                completion_tokens=event.completion_tokens,
                device=event.cached.device,
                host=event.cached.host,
                storage=event.cached.storage,
                at=sent,
                first_s=self._spoke[turn.number] - sent,
                last_s=at - sent,
            )
        )

    def _release(self) -> None:
        """Steps whose gates are all passed get their time."""
        still: list[Step] = []
        for step in self._waiting:
            if all(each in self._spoke for each in step.spoke) and all(each in self._ended for each in step.ended):
                passed = [self._spoke[each] for each in step.spoke] + [self._ended[each] for each in step.ended]
                heapq.heappush(self._ready, (max([self._now, *passed]) + step.pause_s, step.number))
            else:
                still.append(step)
        self._waiting = still

    def _do(self, step: Step) -> None:
        match step:
            case Turn():
                self._sent[step.number] = self._now
                self._engine.submit(self._engine.now, ask_of(step))
                if step.stop_after_tokens is not None:
                    self._counted.add(step.number)
                return
            case Flush():
                assert self._engine.flush()
            case Restart():
                self._clock_s = self._now
                self._engine = TwinEngine(self._machine.engine, self._machine.cost, self._engine.tiers.storage)
        self._spoke[step.number] = self._ended[step.number] = self._now
        self._release()


def ask_of(turn: Turn) -> Ask:
    return Ask(
        rid=turn.rid,
        prompt=turn.prompt,
        output=Key([(ANSWERS + turn.number, 0, turn.writes_tokens)]),
        writes_tokens=turn.writes_tokens,
        max_new_tokens=turn.writes_tokens,
        ignore_eos=turn.ignores_eos,
    )
