"""Agents, the gateway's deciding code and the engine's twin in virtual time.

One heap of moments at which somebody does something, and the engine, which says when it has something to tell. Nothing
happens in between, so an hour in which one answer is written costs as much as a second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count

from governor.policy.model import KeepAlive
from governor.simulate.acts import Act, Answer, Compacted, Loop, Request, Sleep
from governor.simulate.agents import SessionLoop, loops_of
from governor.simulate.deciding import Decider, Governor, Host, Policies
from governor.simulate.flight import Flight
from governor.simulate.floor import Floor
from governor.simulate.result import Capacity, CompactionRow, Result, Sample, TurnEnd, WaitPlace
from governor.types import TurnId
from serve.twin.engine import TwinEngine
from serve.twin.engine_model import EngineSettings
from serve.twin.machine import Machine
from serve.twin.tiers_model import BrokenBooks
from serve.twin.trace import Trace

SAMPLE_S = 30.0
SIGHT_S = 5.0
"""Between two looks of the governor at the engine."""
SHORTEST_LOOK_S = 0.25
ROUNDING_S = 1e-6
LOOK_AGAIN_S = 0.05
"""After a deadline that is over and has changed nothing."""
REPORT_TOKENS = 512
"""The governor hears of what a turn writes by so much; it reserves some 4,096 ahead."""
DISCONNECT_S = 3.0
"""Until an engine notices by itself that a client has hung up ("a few seconds"); a gateway aborts at once."""


Decides = Callable[[EngineSettings, Host], Decider]
"""Makes whoever decides in one run."""


def simulate(
    trace: Trace,
    machine: Machine,
    policies: Policies | None = None,
    seed: int = 0,
    *,
    decides: Decides | None = None,
    sample_s: float = SAMPLE_S,
) -> Result:
    """Play a trace on a machine. ``policies`` (:func:`~governor.simulate.deciding.read_policies`) put the governor
    between the agents and the engine, ``decides`` somebody else; with neither every request goes straight to it. The
    same arguments give the same result. ``sample_s``: between two looks at the engine."""
    return Simulation(trace, machine, policies, seed, sample_s, decides).run()


def _arrival(flight: Flight) -> tuple[float, int]:
    return flight.arrived_s, flight.number


class _Player:
    """A session that is being played."""

    def __init__(self, loop: SessionLoop) -> None:
        self.loop = loop
        self.acts: Loop = loop.play()


class Simulation:
    """One run. It is the governor's :class:`~governor.simulate.deciding.Host` and the floor's crew."""

    def __init__(
        self,
        trace: Trace,
        machine: Machine,
        policies: Policies | None,
        seed: int,
        sample_s: float,
        decides: Decides | None = None,
    ) -> None:
        if decides is None and policies is not None:
            decides = partial(Governor, policies)
        self.now = 0.0
        self.engine = TwinEngine(machine.engine, machine.cost)
        self.floor = Floor(self.engine, self)
        self._trace = trace
        self._machine = machine
        self._seed = seed
        self._sample_s = sample_s
        self._window_tokens = machine.engine.context_tokens
        self._governor = None if decides is None else decides(machine.engine, self)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._turn_numbers = count(1)
        self._players = [_Player(loop) for loop in loops_of(trace, seed, self._window_tokens)]
        self._playing = len(self._players)
        self._asking: dict[TurnId, tuple[Flight, _Player | None]] = {}
        self._deadline: float | None = None
        self._ended_s = 0.0
        self._closed: list[Flight] = []
        self.fetches: list[Flight] = []
        """The governor's own requests; they are nobody's turns."""
        self._compactions: list[CompactionRow] = []
        self._samples: list[Sample] = []

    def run(self) -> Result:
        """Play it to its end."""
        for player in self._players:
            self._at(0.0, partial(self._step, player, None))
        self._at(0.0, self._sample)
        if self._governor is not None:
            self._at(0.0, self._look)
        until = self._trace.header.until_s
        while self._playing:
            at = self._next_at()
            if until is not None and at > until:
                self._go_to(until)
                self._cut_off()
                break
            self._go_to(at)
            while self._heap and self._heap[0][0] <= self.now:
                heappop(self._heap)[2]()
        return self._result()

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` if books of the engine or of the governor do not add up."""
        self.engine.tiers.check_integrity()
        if isinstance(self._governor, Governor):
            self._governor.check_integrity()

    # Time

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heappush(self._heap, (at, next(self._order), act))

    def _next_at(self) -> float:
        moments = [at for at in (self.engine.next_at(), self._heap[0][0] if self._heap else None) if at is not None]
        if not moments:
            raise BrokenBooks(f"{self._playing} sessions wait for nothing at {self.now:.3f} s")
        return max(self.now, min(moments))

    def _go_to(self, at: float) -> None:
        for event in self.engine.run(at):
            self.now = max(self.now, event.at)
            self.floor.take(event)
        self.now = at

    # The agents

    def _step(self, player: _Player, answer: Answer | None) -> None:
        """Let a session do what it does next."""
        player.loop.now = self.now
        while True:
            try:
                act: Act = player.acts.send(answer)
            except StopIteration:
                self._playing -= 1
                return
            answer = None
            match act:
                case Sleep(until_s):
                    self._at(max(self.now, until_s), partial(self._step, player, None))
                    return
                case Request():
                    self._arrive(player, act)
                    return
                case Compacted():
                    self._note(player, act)

    def _note(self, player: _Player, act: Compacted) -> None:
        self._compactions.append(
            CompactionRow(
                at_s=self.now,
                agent=player.loop.agent,
                session=player.loop.session,
                before_tokens=act.before_tokens,
                after_tokens=act.after_tokens,
                threshold_tokens=act.threshold_tokens,
                end=act.end,
            )
        )

    def _arrive(self, player: _Player, request: Request) -> None:
        flight = Flight(next(self._turn_numbers), request, self.now)
        self._asking[flight.turn_id] = flight, player
        self._watch(flight)
        if self._governor is not None:
            self._governor.arrive(self.now, flight, self.floor.new_tokens(flight))
            self._set_deadline()
        else:
            room = max(1, self._window_tokens - flight.prompt_tokens)
            flight.cap = room if request.cap is None else request.cap
            self.floor.send(self.now, flight)

    def _watch(self, flight: Flight) -> None:
        """Hang up when its client has heard nothing for too long."""
        patience_s = flight.request.patience_s
        if patience_s is None or (flight.request.streams and self._is_kept_alive(flight)):
            return
        heard_s = flight.heard_s if flight.request.streams else flight.arrived_s
        self._at(heard_s + patience_s, partial(self._lose_patience, flight, patience_s))

    def _lose_patience(self, flight: Flight, patience_s: float) -> None:
        if flight.turn_id not in self._asking:
            return
        if flight.request.streams and flight.heard_s + patience_s > self.now:
            self._watch(flight)
            return
        was_on_engine = flight.is_on_engine
        if was_on_engine:
            rid = self.floor.forget(flight)
            delay_s = DISCONNECT_S if self._governor is None else 0.0
            self._at(self.now + delay_s, partial(self._abort, rid))
        self._close(flight, TurnEnd.GAVE_UP, f"no sign of life for {patience_s:.0f} s", confirmed=not was_on_engine)

    def _abort(self, rid: str) -> None:
        self.floor.abort(self.now, rid)

    def _is_kept_alive(self, flight: Flight) -> bool:
        """Whether the gateway's keep-alives are a sign of life to this client."""
        if self._governor is None:
            return False
        sent = self._governor.policy_of(flight).stream.keepalive
        return sent is KeepAlive.CHUNK or flight.request.keepalive is KeepAlive.COMMENT

    # What is decided, and what the engine tells

    def on_granted(self, flight: Flight) -> None:
        if flight.turn_id in self._asking:  # else its client has just gone, and its end is on the way
            self.floor.send(self.now, flight)

    def on_held(self, flight: Flight, reason: str) -> None:
        if not flight.is_waiting:  # a paused one has its reason
            flight.begin_wait(self.now, WaitPlace.GOVERNOR, reason, self.floor.agents())

    def on_refused(self, flight: Flight, end: TurnEnd, reason: str, retry_after_s: int | None) -> None:
        if flight.turn_id in self._asking:
            self._close(flight, end, reason, retry_after_s)

    def on_pause_asked(self, flight: Flight, reason: str) -> None:
        self.floor.pause(self.now, flight, reason)

    def on_fetch(self, request: Request) -> Flight:
        flight = Flight(next(self._turn_numbers), request, self.now)
        self._asking[flight.turn_id] = flight, None
        return flight

    def on_fetch_given_up(self, flight: Flight) -> None:
        if flight.is_on_engine:
            self._at(self.now, partial(self._abort, self.floor.forget(flight)))
        self._close(flight, TurnEnd.GAVE_UP, "somebody else wants the engine")

    def on_started(self, flight: Flight) -> None:
        if self._governor is not None:
            self._at(self.now, partial(self._tell_started, flight))

    def on_landed(self, flight: Flight, end: TurnEnd) -> None:
        self._close(flight, end)

    def on_paused(self, flight: Flight) -> None:
        self._at(self.now, partial(self._tell_paused, flight))

    # What the governor hears

    def _tell_started(self, flight: Flight) -> None:
        if self._governor is not None and flight.is_on_engine:
            self._governor.on_started(self.now, flight)
            self._set_deadline()
            self._report(flight, flight.rid, 0)

    def _report(self, flight: Flight, rid: str, told: int) -> None:
        """Tell what it has written, and be there when there may be as much again."""
        if self._governor is None or not flight.is_on_engine or flight.rid != rid:
            return
        written = flight.written_since_grant
        if written - told >= REPORT_TOKENS:
            told = written
            self._governor.on_wrote(self.now, flight)
            self._set_deadline()
        wait_s = (told + REPORT_TOKENS - written) / self._fastest(flight)
        self._at(self.now + max(wait_s, SHORTEST_LOOK_S), partial(self._report, flight, rid, told))

    def _fastest(self, flight: Flight) -> float:
        """Tokens a second that it cannot exceed."""
        cost, accept_length = self._machine.cost, flight.request.accept_length or self._machine.engine.accept_length
        return accept_length / (cost.decode_step_s + cost.decode_request_s)

    def _tell_paused(self, flight: Flight) -> None:
        if self._governor is not None and flight.turn_id in self._asking:
            self._governor.on_paused(self.now, flight)
            self._set_deadline()

    def _look(self) -> None:
        if self._governor is not None:
            if self._asking:
                self._governor.on_seen(self.now, self.engine.load())
                self._set_deadline()
            self._at(self.now + SIGHT_S, self._look)

    def _close(
        self,
        flight: Flight,
        end: TurnEnd,
        detail: str = "",
        retry_after_s: int | None = None,
        *,
        confirmed: bool = True,
    ) -> None:
        """A turn has ended: its row, its lease, its client."""
        _, player = self._asking.pop(flight.turn_id)
        flight.close(self.now, end, detail)
        (self.fetches if player is None else self._closed).append(flight)
        self._ended_s = self._ended_s if player is None else max(self._ended_s, self.now)
        answer = Answer(
            end=end, prompt_tokens=flight.prompt_tokens, written=flight.written, retry_after_s=retry_after_s
        )
        # From the heap: whoever has decided this is still deciding.
        self._at(self.now, partial(self._leave, flight, player, answer, confirmed))

    def _leave(self, flight: Flight, player: _Player | None, answer: Answer, confirmed: bool) -> None:
        if self._governor is not None:
            self._governor.on_ended(self.now, flight, confirmed=confirmed)
            self._set_deadline()
        if player is not None:
            self._step(player, answer)

    def _set_deadline(self) -> None:
        """Be there when time alone changes something."""
        if self._governor is None:
            return
        deadline = self._governor.next_deadline(self.now)
        if deadline is None:
            return
        # A sum of times may be a hair before the moment it stands for, and time that stands still would stay there.
        deadline = deadline + ROUNDING_S if deadline > self.now else self.now + LOOK_AGAIN_S
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
            self._at(deadline, partial(self._pass_time, deadline))

    def _pass_time(self, deadline: float) -> None:
        if self._governor is not None and deadline == self._deadline:  # else an earlier one has taken its place
            self._deadline = None
            self._governor.pass_time(self.now)
            self._set_deadline()

    # The books

    def _sample(self) -> None:
        self.floor.explain()
        load, tiers = self.engine.load(), self.engine.tiers
        settings = tiers.settings
        self._samples.append(
            Sample(
                at_s=self.now,
                running=load.running,
                waiting=load.waiting,
                held=0 if self._governor is None else self._governor.held,
                l1_used_tokens=load.used_tokens,
                l1_tokens=load.held_tokens,
                l2_tokens=settings.page_floor(settings.host_tokens) - tiers.tree.free_host_tokens,
                l3_tokens=tiers.storage.used_tokens,
                l1_used_slots=load.used_slots,
                l1_slots=settings.device_slots - tiers.tree.free_slots,
                l2_slots=settings.host_slots - tiers.tree.free_host_slots,
            )
        )
        self._at(self.now + self._sample_s, self._sample)

    def _cut_off(self) -> None:
        for flight, player in list(self._asking.values()):
            if player is not None:
                player.acts.close()
                flight.close(self.now, TurnEnd.CUT_OFF)
                self._closed.append(flight)
            self._ended_s = self.now

    def _result(self) -> Result:
        settings = self._machine.engine.tiers
        return Result(
            trace=self._trace.header.name,
            machine=self._machine.name,
            governed=self._governor is not None,
            seed=self._seed,
            capacity=Capacity(
                window_tokens=self._window_tokens,
                l1_tokens=settings.page_floor(settings.device_tokens),
                l1_slots=settings.device_slots,
                l2_tokens=settings.page_floor(settings.host_tokens),
                l2_slots=settings.host_slots,
            ),
            ended_s=self._ended_s,
            turns=tuple(flight.row() for flight in sorted(self._closed, key=_arrival)),
            compactions=tuple(self._compactions),
            samples=tuple(self._samples),
        )
