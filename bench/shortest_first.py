"""ThunderAgent's rule, as its scheduler has it (arXiv 2602.13692; ``MultiBackendRouter`` at commit a7eef77), to compare
the governor with.

A program (here: a session) is active or paused. Only active ones are sent to the engine, and that at once. Every five
seconds the tokens of all active programs, and a hundred more for each, are compared with the pool: beyond it, programs
that are not inside a turn are paused, the smallest first; where these do not suffice, those inside a turn are marked
and paused when it ends, the smallest first, too. Nothing stops an answer that runs. Where there is room, paused ones
are resumed, the smallest first; one that has waited for half an hour is resumed in any case. Its decay of idle programs
is off, as it is by default.
"""

from __future__ import annotations

from typing import Final

import msgspec

from governor.policy.model import Policy
from governor.simulate.deciding import Host
from governor.simulate.flight import Flight
from serve.twin.engine_model import EngineSettings, Load

TICK_S: Final = 5.0
BUFFER_TOKENS: Final = 100
"""``BUFFER_PER_PROGRAM``."""
FORCED_AFTER_S: Final = 1800.0
"""``_wait_for_resume``."""


class _Program(msgspec.Struct):
    tokens: int = 0
    flight: Flight | None = None
    """Its turn, on the engine or held."""
    paused_since: float | None = None
    is_marked: bool = False


class ShortestFirst:
    """A :class:`~governor.simulate.deciding.Decider`."""

    def __init__(self, engine: EngineSettings, host: Host) -> None:
        self._engine = engine
        self._host = host
        self._pool_tokens = engine.tiers.page_floor(engine.tiers.device_tokens)
        self._programs: dict[str, _Program] = {}
        self._ticks_at = TICK_S

    @property
    def held(self) -> int:
        return sum(1 for each in self._programs.values() if each.flight is not None and each.paused_since is not None)

    def policy_of(self, flight: Flight) -> Policy:
        return Policy()

    def arrive(self, now: float, flight: Flight, new_tokens: int) -> None:
        request = flight.request
        room = max(1, self._engine.context_tokens - flight.prompt_tokens)
        flight.cap = room if request.cap is None else request.cap
        program = self._programs.get(_name(flight))
        if program is None:
            program = self._programs[_name(flight)] = _Program()
            if self._used + flight.prompt_tokens + BUFFER_TOKENS > self._pool_tokens:
                program.paused_since = now
        program.flight, program.tokens = flight, flight.prompt_tokens
        if program.paused_since is None:
            self._host.on_granted(flight)
        else:
            self._host.on_held(flight, f"paused: the pool holds {self._used:,} of {self._pool_tokens:,} tokens")

    def on_started(self, now: float, flight: Flight) -> None:
        pass

    def on_wrote(self, now: float, flight: Flight) -> None:
        self._programs[_name(flight)].tokens = flight.prompt_tokens + flight.written

    def on_paused(self, now: float, flight: Flight) -> None:
        raise NotImplementedError("it pauses nobody inside a turn")

    def on_ended(self, now: float, flight: Flight, *, confirmed: bool) -> None:
        program = self._programs[_name(flight)]
        program.flight, program.tokens = None, flight.prompt_tokens + flight.written
        if program.is_marked:
            program.is_marked, program.paused_since = False, now
            self._resume(now)

    def on_seen(self, now: float, load: Load) -> None:
        pass

    def pass_time(self, now: float) -> None:
        if now < self._ticks_at:
            return
        self._ticks_at = now + TICK_S
        self._resume(now)  # before it pauses, as the original does
        self._pause(now)

    def next_deadline(self, now: float) -> float | None:
        return self._ticks_at if any(each.flight is not None for each in self._programs.values()) else None

    @property
    def _used(self) -> int:
        return sum(each.tokens + BUFFER_TOKENS for each in self._programs.values() if each.paused_since is None)

    def _pause(self, now: float) -> None:
        over = self._used - self._pool_tokens
        active = sorted((p for p in self._programs.values() if p.paused_since is None), key=lambda p: p.tokens)
        for program in (each for each in active if each.flight is None):
            if over <= 0:
                return
            program.paused_since = now
            over -= program.tokens + BUFFER_TOKENS
        for program in (each for each in active if each.flight is not None):
            if over <= 0:
                return
            program.is_marked = True
            over -= program.tokens + BUFFER_TOKENS

    def _resume(self, now: float) -> None:
        waiting = [p for p in self._programs.values() if p.flight is not None and p.paused_since is not None]
        for program in sorted(waiting, key=lambda p: p.tokens):
            since = program.paused_since
            fits = self._used + program.tokens + BUFFER_TOKENS <= self._pool_tokens
            if program.flight is None or since is None or not (fits or now - since >= FORCED_AFTER_S):
                continue
            program.paused_since = None
            self._host.on_granted(program.flight)


def _name(flight: Flight) -> str:
    return f"{flight.request.agent}/{flight.request.session}"
