"""The life of one engine as a state machine: when to start it, when to leave it alone, when to give up.

Pure: no clock, no process, no lock. ``Lifecycle.on_event(now, event)`` returns effects for the supervisor to carry
out. It stands apart from process I/O so that every rule can be tested in virtual time.

States and what moves them::

    STOPPED --StartRequested--> STARTING --ProbeAnswered--> READY <--ProbeAnswered/ProbeFailed--> BUSY
    STARTING/READY/BUSY --Exited--> DOWN --backoff--> STARTING
    READY/BUSY --WorkerDied--> (ended) --Exited--> DOWN
    STARTING --Exited for a cause that stays--> FAILED
    DOWN --budget of restarts spent--> FAILED --StartRequested--> STARTING
    any --StopRequested--> STOPPED

Busy is not down: an engine that reads a long prompt may not answer a probe for minutes. A failing probe alone never
ends an engine; only silence does (no answer, no log line, no change in its figures), far longer than any prompt takes.
An answer is not life either: an engine whose worker has died may go on answering, and is replaced at once.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class EngineState(StrEnum):
    """The values are those of ``governor.events.EngineChanged.state``."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DOWN = "down"
    FAILED = "failed"
    STOPPED = "stopped"


ALIVE = frozenset({EngineState.STARTING, EngineState.READY, EngineState.BUSY})
"""States in which the engine has a process."""


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Patience and its limits, in seconds."""

    first_delay_s: float = 1.0
    """Wait before the first restart; doubled for each further one."""
    max_delay_s: float = 60.0
    max_restarts: int = 5
    """Restarts in a row before the engine counts as failed. The count starts anew after a stable run."""
    stable_after_s: float = 120.0
    """A run that was ready for this long proves the engine sound."""
    start_limit_s: float = 1800.0
    """From process start to first answer. Large weights on a slow disk take many minutes."""
    start_silence_s: float = 600.0
    """While starting: longest time without a log line or an answer."""
    stall_limit_s: float = 900.0
    """While ready: longest time without any sign of progress, with probes failing, before the engine is replaced."""
    stall_probes: int = 5
    """Probes in a row that must have failed, too."""

    def delay_s(self, restarts: int) -> float:
        """Wait before restart number ``restarts`` (from 1): ``first * 2^(restarts-1)``, at most ``max_delay_s``."""
        return float(min(self.max_delay_s, self.first_delay_s * 2 ** (restarts - 1)))


class StartRequested(msgspec.Struct, frozen=True):
    """Somebody wants the engine up: at the beginning, or by hand after a failure."""


class StopRequested(msgspec.Struct, frozen=True):
    """Somebody wants it gone."""


class Spawned(msgspec.Struct, frozen=True):
    pid: int


class SpawnFailed(msgspec.Struct, frozen=True):
    reason: str
    retry: bool = True
    """False where another try cannot help: the program is missing, the port is a stranger's."""


class Exited(msgspec.Struct, frozen=True):
    """The process and everything it had started are gone."""

    reason: str
    """How it ended."""
    cause: str = ""
    """Why, and what to do, where its last words tell (:mod:`serve.crash`)."""
    retry: bool = True
    """False where the cause lies in what it was given, so that another start ends the same way."""


class WorkerDied(msgspec.Struct, frozen=True):
    """A process that the engine cannot do without is gone; the first one may still answer. ``reason`` names it."""

    reason: str


class ProbeAnswered(msgspec.Struct, frozen=True):
    """The engine is able to take a turn."""


class ProbeFailed(msgspec.Struct, frozen=True):
    reason: str
    loading: bool = False
    """It answered, but is still loading: that is progress."""


class Progressed(msgspec.Struct, frozen=True):
    """A sign of life: log output, a moving figure, a relayed token."""


class TimePassed(msgspec.Struct, frozen=True):
    """A wake-up asked for by :class:`WakeAt`, or any other look at the time."""


Event = (
    StartRequested
    | StopRequested
    | Spawned
    | SpawnFailed
    | Exited
    | WorkerDied
    | ProbeAnswered
    | ProbeFailed
    | Progressed
    | TimePassed
)


class Spawn(msgspec.Struct, frozen=True):
    """Start the process; answer with ``Spawned`` or ``SpawnFailed``."""


class Terminate(msgspec.Struct, frozen=True):
    """End the process and all it started; answer with ``Exited``."""


class WakeAt(msgspec.Struct, frozen=True):
    """Send ``TimePassed`` at this time. A later one replaces it."""

    at: float


class Report(msgspec.Struct, frozen=True):
    """Tell the world."""

    state: EngineState
    detail: str


Effect = Spawn | Terminate | WakeAt | Report


class Lifecycle:
    """Owned by one task; see the module for its rules."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.state = EngineState.STOPPED
        self.detail = ""
        self.restarts = 0
        """Restarts since the last stable run or manual start."""
        self._has_process = False
        self._wanted = False
        self._spawned_at = 0.0
        self._ready_since: float | None = None
        self._progress_at = 0.0
        self._failed_probes = 0
        self._restart_at: float | None = None
        self._end_reason: str | None = None
        """Why we are ending it, once ``Terminate`` has been given."""

    def on_event(self, now: float, event: Event) -> list[Effect]:
        effects = self._decide(now, event)
        if not any(isinstance(effect, WakeAt) for effect in effects) and (at := self._next_deadline()) is not None:
            effects.append(WakeAt(at))
        return effects

    def _decide(self, now: float, event: Event) -> list[Effect]:
        match event:
            case StartRequested():
                return self._on_start(now)
            case StopRequested():
                return self._on_stop()
            case Spawned(pid=pid):
                return self._on_spawned(pid)
            case SpawnFailed(reason=reason, retry=retry):
                return self._on_gone(now, reason, "", retry=retry)
            case Exited(reason=reason, cause=cause, retry=retry):
                # What has worked once can work again: a disk is full, a file is away only for a while.
                retry = retry or self._ready_since is not None
                return self._on_gone(now, self._end_reason or reason, cause, retry=retry)
            case WorkerDied(reason=reason):
                return self._terminate(reason) if self._has_process else []
            case ProbeAnswered():
                return self._on_answer(now)
            case ProbeFailed(reason=reason, loading=loading):
                return self._on_probe_failed(now, reason, loading=loading)
            case Progressed():
                self._progress_at = now
                return []
            case TimePassed():
                return self._on_time(now)

    def _on_start(self, now: float) -> list[Effect]:
        self._wanted = True
        if self._has_process:
            return []
        self.restarts = 0
        return self._spawn(now, "starting")

    def _on_stop(self) -> list[Effect]:
        self._wanted = False
        self._restart_at = None
        if not self._has_process:
            return self._report(EngineState.STOPPED, "stopped")
        return self._terminate("stopped")

    def _spawn(self, now: float, detail: str) -> list[Effect]:
        self._has_process = True
        self._spawned_at = self._progress_at = now
        self._restart_at = None
        self._ready_since = None
        self._end_reason = None
        self._failed_probes = 0
        return [*self._report(EngineState.STARTING, detail), Spawn()]

    def _on_spawned(self, pid: int) -> list[Effect]:
        if not self._wanted:
            return self._terminate("stopped")
        return self._report(EngineState.STARTING, f"process {pid} is loading")

    def _on_gone(self, now: float, reason: str, cause: str, *, retry: bool) -> list[Effect]:
        self._has_process = False
        if not self._wanted:
            return self._report(EngineState.STOPPED, "stopped")
        if self._ready_since is not None and now - self._ready_since >= self._policy.stable_after_s:
            self.restarts = 0
        self._ready_since = None
        why = f": {cause}" if cause else ""
        if not retry:
            return self._report(EngineState.FAILED, f"{reason}{why}")
        if self.restarts >= self._policy.max_restarts:
            return self._report(EngineState.FAILED, f"{reason}; gave up after {self.restarts} restarts{why}")
        self.restarts += 1
        delay_s = self._policy.delay_s(self.restarts)
        self._restart_at = now + delay_s
        return self._report(
            EngineState.DOWN,
            f"{reason}; restart {self.restarts} of {self._policy.max_restarts} in {delay_s:g} s{why}",
        )

    def _on_answer(self, now: float) -> list[Effect]:
        if not self._has_process or self._end_reason is not None:
            return []
        self._progress_at = now
        self._failed_probes = 0
        if self._ready_since is None:
            self._ready_since = now
        if self.state is EngineState.READY:
            return []
        took = (
            f"ready {now - self._spawned_at:.1f} s after its start" if self.state is EngineState.STARTING else "ready"
        )
        return self._report(EngineState.READY, took)

    def _on_probe_failed(self, now: float, reason: str, *, loading: bool) -> list[Effect]:
        if not self._has_process or self._end_reason is not None:
            return []
        if loading:
            self._progress_at = now
        if self.state is EngineState.STARTING:
            return self._report(EngineState.STARTING, reason) if loading and reason != self.detail else []
        self._failed_probes += 1
        if self.state is EngineState.READY:
            return self._report(EngineState.BUSY, reason)
        return self._on_time(now)

    def _on_time(self, now: float) -> list[Effect]:
        if self._restart_at is not None:
            return self._spawn(now, f"restart {self.restarts}") if now >= self._restart_at else []
        if not self._has_process or self._end_reason is not None:
            return []
        silent_s = now - self._progress_at
        policy = self._policy
        if self.state is EngineState.STARTING:
            if now - self._spawned_at >= policy.start_limit_s:
                return self._terminate(f"did not answer within {policy.start_limit_s:g} s of its start")
            if silent_s >= policy.start_silence_s:
                return self._terminate(f"gave no sign for {silent_s:.0f} s while starting")
        elif (
            self.state is EngineState.BUSY
            and silent_s >= policy.stall_limit_s
            and self._failed_probes >= policy.stall_probes
        ):
            return self._terminate(f"made no progress for {silent_s:.0f} s")
        return []

    def _terminate(self, reason: str) -> list[Effect]:
        if self._end_reason is not None:
            return []
        self._end_reason = reason
        return [Terminate()]

    def _report(self, state: EngineState, detail: str) -> list[Effect]:
        self.state = state
        self.detail = detail
        return [Report(state, detail)]

    def _next_deadline(self) -> float | None:
        # A busy engine needs no wake-up: each failed probe looks at the time.
        if self._restart_at is not None:
            return self._restart_at
        if not self._has_process or self._end_reason is not None:
            return None
        if self.state is EngineState.STARTING:
            return min(self._spawned_at + self._policy.start_limit_s, self._progress_at + self._policy.start_silence_s)
        return None
