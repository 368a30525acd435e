"""The engine's life in virtual time: no process, no clock, no sleep."""

from __future__ import annotations

import pytest

from serve.lifecycle import (
    Effect,
    EngineState,
    Event,
    Exited,
    Lifecycle,
    ProbeAnswered,
    ProbeFailed,
    Progressed,
    Report,
    RestartPolicy,
    Spawn,
    Spawned,
    SpawnFailed,
    StartRequested,
    StopRequested,
    Terminate,
    TimePassed,
    WakeAt,
    WorkerDied,
)

POLICY = RestartPolicy(
    first_delay_s=1.0,
    max_delay_s=5.0,
    max_restarts=4,
    stable_after_s=100.0,
    start_limit_s=1000.0,
    start_silence_s=300.0,
    stall_limit_s=900.0,
    stall_probes=3,
)


class Life:
    """A lifecycle with a hand-moved clock; keeps what it said."""

    def __init__(self, policy: RestartPolicy = POLICY, now: float = 50_000.0) -> None:
        self.lifecycle = Lifecycle(policy)
        self.now = now
        self.wake_at: float | None = None

    def send(self, event: Event, *, after_s: float = 0.0) -> list[Effect]:
        self.now += after_s
        effects = self.lifecycle.on_event(self.now, event)
        for effect in effects:
            if isinstance(effect, WakeAt):
                self.wake_at = effect.at
        return effects

    def start(self, *, ready: bool = True) -> None:
        assert Spawn() in self.send(StartRequested())
        self.send(Spawned(7))
        if ready:
            self.send(ProbeAnswered(), after_s=2.0)
            assert self.state is EngineState.READY

    @property
    def state(self) -> EngineState:
        return self.lifecycle.state

    def wait_for_wake(self) -> list[Effect]:
        assert self.wake_at is not None
        self.now = max(self.now, self.wake_at)
        return self.send(TimePassed())


def test_starts_once_and_reports_each_step() -> None:
    life = Life()
    assert life.send(StartRequested())[:2] == [Report(EngineState.STARTING, "starting"), Spawn()]
    assert life.send(StartRequested()) == [WakeAt(life.now + 300.0)]  # no second process
    assert life.send(Spawned(7))[0] == Report(EngineState.STARTING, "process 7 is loading")
    assert life.send(ProbeFailed("Loading model", loading=True))[0] == Report(EngineState.STARTING, "Loading model")
    assert life.send(ProbeAnswered(), after_s=3.0) == [Report(EngineState.READY, "ready 3.0 s after its start")]
    assert life.send(ProbeAnswered()) == []


def test_wakes_no_earlier_than_its_limits_even_when_the_clock_started_long_ago() -> None:
    life = Life(now=1e9)
    life.send(StartRequested())
    assert life.wake_at == 1e9 + 300.0


def test_w55_restarts_back_off_then_give_up_with_the_reason() -> None:
    life = Life()
    life.start()
    delays = []
    for _ in range(POLICY.max_restarts):
        life.send(Exited("the engine exited with status 1"))
        assert life.state is EngineState.DOWN
        assert life.wake_at is not None
        delays.append(life.wake_at - life.now)
        assert life.send(TimePassed()) == [WakeAt(life.wake_at)]  # not before its time
        assert Spawn() in life.wait_for_wake()
        life.send(Spawned(8))
        life.send(ProbeAnswered(), after_s=1.0)
    assert delays == [1.0, 2.0, 4.0, 5.0]
    assert life.send(Exited("the engine exited with status 1")) == [
        Report(EngineState.FAILED, "the engine exited with status 1; gave up after 4 restarts")
    ]
    life.now += 10_000.0
    assert life.send(TimePassed()) == []


def test_w55_manual_retry_has_a_fresh_budget() -> None:
    life = Life(RestartPolicy(max_restarts=0))
    life.start()
    life.send(Exited("gone"))
    assert life.state is EngineState.FAILED
    assert Spawn() in life.send(StartRequested())
    assert life.lifecycle.restarts == 0


def test_a_stable_run_restores_the_budget_and_a_short_one_does_not() -> None:
    life = Life()
    life.start()
    life.send(Exited("gone"), after_s=POLICY.stable_after_s - 1)
    assert life.lifecycle.restarts == 1
    life.wait_for_wake()
    life.send(Spawned(8))
    life.send(ProbeAnswered())
    life.send(Exited("gone"), after_s=POLICY.stable_after_s)
    assert life.lifecycle.restarts == 1


def test_w55_a_slow_start_is_no_failure_while_there_are_signs_of_life() -> None:
    life = Life()
    life.start(ready=False)
    for _ in range(4):
        assert Terminate() not in life.send(Progressed(), after_s=200.0)
        assert Terminate() not in life.send(TimePassed())
    assert life.state is EngineState.STARTING


@pytest.mark.parametrize(
    ("step_s", "sign", "reason"),
    [(200.0, True, "did not answer within 1000 s"), (301.0, False, "gave no sign for 301 s")],
)
def test_a_start_has_its_limits(step_s: float, sign: bool, reason: str) -> None:
    life = Life()
    life.start(ready=False)
    effects: list[Effect] = []
    while Terminate() not in effects:
        if sign:
            life.send(Progressed())
        effects = life.send(TimePassed(), after_s=step_s)
    assert life.send(TimePassed()) == []  # said once
    down = life.send(Exited("the engine was killed by SIGTERM"))[0]
    assert isinstance(down, Report)
    assert down.state is EngineState.DOWN
    assert reason in down.detail


def test_w50_busy_is_not_down() -> None:
    life = Life()
    life.start()
    assert life.send(ProbeFailed("no answer")) == [Report(EngineState.BUSY, "no answer")]
    for _ in range(1000):
        assert life.send(ProbeFailed("no answer"), after_s=60.0) == []
        life.send(Progressed())
    assert life.send(ProbeAnswered()) == [Report(EngineState.READY, "ready")]


def test_w50_a_long_silence_with_many_failed_probes_is_a_stall() -> None:
    life = Life()
    life.start()
    assert Terminate() not in life.send(ProbeFailed("no answer"), after_s=899.0)
    assert Terminate() not in life.send(ProbeFailed("no answer"), after_s=2.0)  # long enough, too few probes
    assert Terminate() in life.send(ProbeFailed("no answer"))
    assert life.send(ProbeAnswered()) == []  # too late: it is being ended
    down = life.send(Exited("the engine was killed by SIGTERM"))[0]
    assert down == Report(EngineState.DOWN, "made no progress for 901 s; restart 1 of 4 in 1 s")


@pytest.mark.parametrize("moment", ["spawning", "loading", "ready", "down", "failed", "stopped"])
def test_stop_at_any_moment_ends_in_stopped(moment: str) -> None:
    life = Life(RestartPolicy(max_restarts=0) if moment == "failed" else POLICY)
    if moment == "spawning":
        life.send(StartRequested())
    elif moment != "stopped":
        life.start(ready=moment != "loading")
    if moment in {"down", "failed"}:
        life.send(Exited("gone"))
    effects = life.send(StopRequested())
    if moment in {"spawning", "loading", "ready"}:
        assert Terminate() in effects
        assert life.send(Exited("the engine was killed by SIGTERM")) == [Report(EngineState.STOPPED, "stopped")]
    assert life.state is EngineState.STOPPED
    life.now += 10_000.0
    assert life.send(TimePassed()) == []


def test_what_cannot_be_cured_is_not_tried_again() -> None:
    life = Life()
    life.send(StartRequested())
    assert life.send(SpawnFailed("no such program", retry=False)) == [Report(EngineState.FAILED, "no such program")]


def test_a_cause_that_stays_is_not_tried_again_unless_the_engine_has_worked() -> None:
    ended = Exited("it exited", cause="no weights. Give a folder.", retry=False)
    life = Life()
    life.start(ready=False)
    assert life.send(ended) == [Report(EngineState.FAILED, "it exited: no weights. Give a folder.")]
    life = Life()
    life.start()
    assert life.send(ended)[0] == Report(
        EngineState.DOWN, "it exited; restart 1 of 4 in 1 s: no weights. Give a folder."
    )


def test_a_dead_worker_ends_an_engine_that_answers() -> None:
    life = Life()
    assert life.send(WorkerDied("too early")) == []
    life.start()
    assert life.send(WorkerDied("worker 8 died")) == [Terminate()]
    assert life.send(WorkerDied("worker 9 died")) == []  # they all go now
    assert life.send(ProbeAnswered()) == []
    down = life.send(Exited("it was killed by SIGTERM", cause="the GPU's memory is full."))[0]
    assert down == Report(EngineState.DOWN, "worker 8 died; restart 1 of 4 in 1 s: the GPU's memory is full.")
