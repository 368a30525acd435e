"""Keeps one engine running: carries out what ``serve.lifecycle`` decides.

One task owns the lifecycle; probes, process exits and callers post it events. Slow work (ending a process, probing)
runs beside it and reports its end as an event, so a stop is heard at any time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine

import msgspec

from governor.clock import Clock
from serve import lifecycle
from serve.crash import recognise
from serve.engine_log import EngineLog
from serve.errors import EngineFailed, PortTaken
from serve.lifecycle import EngineState, Lifecycle, RestartPolicy
from serve.process import EngineCommand, EngineProcess, describe_exit
from serve.process_table import ProcessTable
from serve.readiness import Probe
from serve.run_state import RunState

_logger = logging.getLogger(__name__)

_ABLE = frozenset({EngineState.READY, EngineState.BUSY})
"""States in which it takes turns."""

OnChange = Callable[[EngineState, str], None]
"""Called on the loop's thread for each change of state or detail. Must be quick."""


class Supervisor:
    """Supervises one engine. All methods belong to one event loop, in a thread that lives as long as the engine.

    Call :meth:`start`, await :meth:`ensure_ready`, and :meth:`stop` at the end on every path; after that it is spent.
    """

    def __init__(
        self,
        command: EngineCommand,
        probe: Probe,
        log: EngineLog,
        run_state: RunState,
        *,
        clock: Clock,
        on_change: OnChange,
        policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - a frozen value
        table: ProcessTable | None = None,
        grace_s: float = 5.0,
        starting_probe_interval_s: float = 0.1,
        probe_interval_s: float = 5.0,
    ) -> None:
        """``grace_s``: time between SIGTERM and SIGKILL. The intervals lie between two probes; never are two open."""
        self._command = command
        self._probe = probe
        self._log = log
        self._run_state = run_state
        self._clock = clock
        self._on_change = on_change
        self._table = table or ProcessTable()
        self._grace_s = grace_s
        self._starting_probe_interval_s = starting_probe_interval_s
        self._probe_interval_s = probe_interval_s
        self._lifecycle = Lifecycle(policy)
        self._events: asyncio.Queue[lifecycle.Event] = asyncio.Queue()
        self._wake_at: float | None = None
        self._process: EngineProcess | None = None
        self._workers: dict[int, int] = {}
        """Processes that the ready engine cannot do without, with their start times."""
        self._oom_kills_before = 0
        self._owner: asyncio.Task[None] | None = None
        self._prober: asyncio.Task[None] | None = None
        self._helpers: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._progress_noted = False

    @property
    def state(self) -> EngineState:
        """For display; to act on readiness, await :meth:`ensure_ready`."""
        return self._lifecycle.state

    @property
    def detail(self) -> str:
        return self._lifecycle.detail

    @property
    def restarts(self) -> int:
        return self._lifecycle.restarts

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        return self._log.tail(lines)

    async def start(self) -> None:
        """Take the lock, end what an earlier governor left, and start the engine. Returns before it is ready.

        Raises :class:`~serve.errors.AlreadySupervised`.
        """
        if self._owner is not None:
            return
        self._run_state.acquire()
        await self._run_state.reap_orphan(self._table, grace_s=self._grace_s)
        self._owner = asyncio.create_task(self._own(), name="engine-supervisor")
        self._events.put_nowait(lifecycle.StartRequested())

    def retry(self) -> None:
        """Start again after a failure, with a fresh budget of restarts. Does nothing while it runs."""
        self._events.put_nowait(lifecycle.StartRequested())

    def note_progress(self) -> None:
        """The engine has shown a sign of life, such as a relayed token. Cheap: call it as often as you like."""
        if not self._progress_noted:
            self._progress_noted = True
            self._events.put_nowait(lifecycle.Progressed())

    async def ensure_ready(self) -> None:
        """Wait until it can take a turn, through restarts.

        Raises :class:`~serve.errors.EngineFailed` when it gives up, is stopped, or was never started.
        """
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._owner is None or self.state in _ABLE or self.state is EngineState.FAILED
            )
        if self._owner is None or self.state not in _ABLE:
            why = self.detail.rstrip(".")
            raise EngineFailed(
                f"the engine is {self.state}: {why}. Its log: {self._log.path}", log_tail=self.log_tail()
            )

    async def stop(self) -> None:
        """End the engine and everything it started; returns when it is gone. May be repeated."""
        owner = self._owner
        if owner is None:
            self._run_state.release()
            await self._probe.aclose()
            return
        self._events.put_nowait(lifecycle.StopRequested())
        await asyncio.shield(owner)

    async def _own(self) -> None:
        try:
            while True:
                event = await self._next_event()
                if isinstance(event, lifecycle.Progressed):
                    self._progress_noted = False
                for effect in self._lifecycle.on_event(self._clock.monotonic(), event):
                    await self._carry_out(effect)
                if isinstance(event, lifecycle.StopRequested | lifecycle.Exited | lifecycle.SpawnFailed) and (
                    self.state is EngineState.STOPPED
                ):
                    break
        except Exception:
            _logger.exception("the engine's supervisor broke; the engine is ended")
            self._lifecycle.state = EngineState.FAILED
            self._lifecycle.detail = "its supervisor broke; see the governor's log"
            self._tell(self._lifecycle.state, self._lifecycle.detail)
        finally:
            await self._close()

    async def _next_event(self) -> lifecycle.Event:
        if self._wake_at is None:
            return await self._events.get()
        wait_s = max(0.0, self._wake_at - self._clock.monotonic())
        try:
            return await asyncio.wait_for(self._events.get(), wait_s)
        except TimeoutError:
            self._wake_at = None
            return lifecycle.TimePassed()

    async def _carry_out(self, effect: lifecycle.Effect) -> None:
        match effect:
            case lifecycle.Spawn():
                self._spawn()
            case lifecycle.Terminate():
                if self._process is not None:
                    self._help(self._process.terminate())
            case lifecycle.WakeAt(at=at):
                self._wake_at = at
            case lifecycle.Report(state=state, detail=detail):
                self._log.note(f"{state}: {detail}")
                self._tell(state, detail)
                async with self._changed:
                    self._changed.notify_all()

    def _tell(self, state: EngineState, detail: str) -> None:
        try:
            self._on_change(state, detail)
        except Exception:
            # A broken listener must not leave the engine without its supervisor.
            _logger.exception("a listener to the engine's state broke")

    def _spawn(self) -> None:
        try:
            self._check_port()
            self._log.begin()
            self._probe.on_spawned()
            self._workers = {}
            self._oom_kills_before = self._table.oom_kills()
            self._process = EngineProcess(
                self._command, self._log, self._table, grace_s=self._grace_s, on_output=self.note_progress
            )
        except PortTaken as taken:
            self._events.put_nowait(lifecycle.SpawnFailed(taken.message, retry=False))
            return
        except OSError as problem:
            program = self._command.argv[0]
            self._events.put_nowait(lifecycle.SpawnFailed(f"cannot start {program}: {problem}", retry=False))
            return
        self._write_down(self._process)
        self._process.let_go()
        self._events.put_nowait(lifecycle.Spawned(self._process.pid))
        self._help(self._await_exit(self._process))
        self._prober = self._help(self._keep_probing())

    def _write_down(self, process: EngineProcess) -> None:
        if process.record is None:
            return
        try:
            self._run_state.write(msgspec.structs.replace(process.record, workers=self._workers))
        except OSError:
            _logger.warning(
                "cannot write down engine %d: it would outlive a killed governor", process.pid, exc_info=True
            )

    def _check_port(self) -> None:
        """Somebody else on our port would get our traffic, and its answers would be taken for our engine's."""
        port = self._command.port
        if port is None:
            return
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError as taken:
                pid = self._table.listener(port)
                holder = f"process {pid}" if pid is not None else "another process"
                raise PortTaken(
                    f"{holder} already listens on port {port}, and it is not our engine. "
                    "Stop it or choose another port."
                ) from taken

    async def _await_exit(self, process: EngineProcess) -> None:
        returncode = await process.wait()
        await self._end_probing()
        self._process = None
        self._run_state.clear()
        self._events.put_nowait(self._exited(returncode))

    def _exited(self, returncode: int) -> lifecycle.Exited:
        words = self._log.last_words()
        reason = f"the engine {describe_exit(returncode)}"
        crash = recognise(words, returncode=returncode, oom_kills=self._table.oom_kills() - self._oom_kills_before)
        if crash is not None:
            return lifecycle.Exited(reason, cause=str(crash), retry=not crash.stays)
        if self.state is EngineState.STARTING and words:
            # Later the last line may hold a prompt, and what is told here reaches every agent.
            return lifecycle.Exited(reason, cause=f"its last words: {words[-1]}")
        return lifecycle.Exited(reason)

    async def _keep_probing(self) -> None:
        fingerprint: str | None = None
        while True:
            result = await self._probe.check()
            self._check_workers(is_ready=result.ready)
            if result.ready:
                self._events.put_nowait(lifecycle.ProbeAnswered())
            else:
                self._events.put_nowait(lifecycle.ProbeFailed(result.detail, loading=result.loading))
            if result.fingerprint is not None and result.fingerprint != fingerprint:
                fingerprint = result.fingerprint
                self.note_progress()
            starting = self.state is EngineState.STARTING and not result.ready
            await asyncio.sleep(self._starting_probe_interval_s if starting else self._probe_interval_s)

    def _check_workers(self, *, is_ready: bool) -> None:
        """Whether all that the engine had when it became ready is still there, whatever its HTTP server answers."""
        title, process = self._command.worker_title, self._process
        if title is None or process is None or process.record is None:
            return
        if is_ready and not self._workers:
            self._workers = self._table.titled(process.record, title)
            self._write_down(process)
        dead = next((pid for pid, start in self._workers.items() if not self._table.lives(pid, start)), None)
        if dead is not None:
            self._events.put_nowait(lifecycle.WorkerDied(f"a worker of the engine (process {dead}) has died"))

    async def _end_probing(self) -> None:
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.wait({self._prober})
            self._prober = None

    def _help(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._helpers.add(task)
        task.add_done_callback(self._on_helper_done)
        return task

    def _on_helper_done(self, task: asyncio.Task[None]) -> None:
        self._helpers.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _logger.error("supervising the engine: a helper broke", exc_info=problem)

    async def _close(self) -> None:
        """Runs on every end of the owner task, a cancelled one included: leave nothing running."""
        await self._end_probing()
        if self._process is not None:
            await self._process.terminate()
        if self._helpers:
            await asyncio.gather(*self._helpers, return_exceptions=True)
        if self._process is not None:  # who watched it was cancelled together with us
            await self._process.wait()
            self._process = None
            self._run_state.clear()
        self._owner = None
        self._run_state.release()
        self._log.close()
        await self._probe.aclose()
        async with self._changed:
            self._changed.notify_all()
