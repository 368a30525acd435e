"""The supervisor with real, tiny processes: crash loops, stubborn ones, ones that fork, ones that shout."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from governor.clock import SystemClock
from serve.engine_log import EngineLog
from serve.errors import AlreadySupervised, EngineFailed
from serve.lifecycle import EngineState, RestartPolicy
from serve.process import EngineCommand
from serve.process_table import EngineRecord, ProcessTable, argv_sha256
from serve.readiness import ProbeResult
from serve.run_state import RunState
from serve.supervisor import Supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

QUICK = RestartPolicy(first_delay_s=0.1, max_delay_s=0.4, max_restarts=3)
WAIT_FOR_EVER = "import time\nwhile True: time.sleep(1)\n"


class SwitchProbe:
    """Ready when the file is there; counts how many are open at once."""

    def __init__(self, ready_file: Path) -> None:
        self.ready_file = ready_file
        self.open = self.most_open = self.checks = 0
        self.delay_s = 0.0

    def on_spawned(self) -> None:
        pass

    async def check(self) -> ProbeResult:
        self.checks += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(self.delay_s)
        self.open -= 1
        if self.ready_file.exists():
            return ProbeResult(ready=True)
        return ProbeResult(ready=False, detail="no answer")

    async def aclose(self) -> None:
        pass


class Rig:
    """A supervisor of a Python program, with what it told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ready_file = folder / "ready"
        self.probe = SwitchProbe(self.ready_file)
        self.told: list[tuple[EngineState, str]] = []
        self.supervisor: Supervisor | None = None

    def make(
        self,
        program: str,
        *,
        policy: RestartPolicy = QUICK,
        grace_s: float = 0.5,
        port: int | None = None,
        argv: tuple[str, ...] | None = None,
        log_bytes: int = 100_000,
    ) -> Supervisor:
        source = self.folder / "engine.py"
        source.write_text(textwrap.dedent(program))
        self.supervisor = Supervisor(
            EngineCommand(argv=argv or (sys.executable, str(source), str(self.folder)), port=port),
            self.probe,
            EngineLog(self.folder / "logs" / "engine.log", max_file_bytes=log_bytes, files=3),
            RunState(self.folder / "run"),
            clock=SystemClock(),
            on_change=lambda state, detail: self.told.append((state, detail)),
            policy=policy,
            grace_s=grace_s,
            starting_probe_interval_s=0.02,
            probe_interval_s=0.02,
        )
        return self.supervisor

    @property
    def states(self) -> list[EngineState]:
        """What was told, each run of equal states once."""
        states = [state for state, _ in self.told]
        return [state for index, state in enumerate(states) if index == 0 or states[index - 1] is not state]

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


async def until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what we wait for is another process
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    if rig.supervisor is not None:
        await rig.supervisor.stop()


async def test_becomes_ready_and_stops_without_a_trace(rig: Rig) -> None:
    supervisor = rig.make(WAIT_FOR_EVER)
    rig.ready_file.touch()
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 20)
    pid = supervisor.pid
    assert pid is not None
    assert os.getsid(pid) == pid  # not in our terminal's group: Ctrl-C is delivered once, to us
    await supervisor.stop()
    assert not is_alive(pid)
    assert rig.states == [EngineState.STARTING, EngineState.READY, EngineState.STOPPED]
    assert list((rig.folder / "run").glob("*.json")) == []
    with pytest.raises(EngineFailed, match="stopped"):
        await supervisor.ensure_ready()


async def test_w55_crash_loop_backs_off_then_fails_with_the_last_lines_and_can_be_retried(rig: Rig) -> None:
    supervisor = rig.make(
        """
        import pathlib, sys, time
        folder = pathlib.Path(sys.argv[1])
        with (folder / "starts").open("a") as file:
            print(time.monotonic(), file=file)
        while (folder / "cured").exists():
            time.sleep(0.1)
        sys.exit("out of memory on device 0")
        """
    )
    await supervisor.start()
    with pytest.raises(EngineFailed, match=r"exited with status 1; gave up after 3 restarts.*engine\.log") as failed:
        await asyncio.wait_for(supervisor.ensure_ready(), 20)
    assert "out of memory on device 0" in failed.value.log_tail
    starts = [float(line) for line in rig.lines("starts")]
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert len(gaps) == 3
    assert all(gap >= delay for gap, delay in zip(gaps, (0.1, 0.2, 0.4), strict=True))

    (rig.folder / "cured").touch()
    rig.ready_file.touch()
    supervisor.retry()
    await until(lambda: supervisor.state is EngineState.READY)
    (rig.folder / "cured").unlink()


async def test_w52_stop_ends_stubborn_engines_and_all_they_started(rig: Rig) -> None:
    supervisor = rig.make(
        """
        import os, pathlib, signal, sys, time
        folder = pathlib.Path(sys.argv[1])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        def note():
            with (folder / "pids").open("a") as file:
                print(os.getpid(), file=file)
        note()
        for own_session in (False, True):
            if os.fork() == 0:
                if own_session:
                    os.setsid()
                if os.fork() == 0:  # re-parented
                    note()
                    while True: time.sleep(1)
                os._exit(0)
            os.wait()
        while True: time.sleep(1)
        """
    )
    await supervisor.start()
    await until(lambda: len(rig.lines("pids")) == 3)
    pids = [int(line) for line in rig.lines("pids")]
    assert all(map(is_alive, pids))
    began = time.monotonic()
    await supervisor.stop()
    assert time.monotonic() - began < 5.0
    assert [pid for pid in pids if is_alive(pid)] == []


async def test_w52_what_a_crashed_engine_left_is_ended_before_the_next_start(rig: Rig) -> None:
    supervisor = rig.make(
        """
        import os, pathlib, sys, time
        folder = pathlib.Path(sys.argv[1])
        if (folder / "child").exists():
            stat = pathlib.Path("/proc") / (folder / "child").read_text() / "stat"
            if not stat.exists() or ") Z" in stat.read_text():
                (folder / "ready").touch()
            while True: time.sleep(1)
        child = os.fork()
        if child == 0:
            while True: time.sleep(1)
        (folder / "child").write_text(str(child))
        os._exit(1)
        """
    )
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 20)
    assert supervisor.restarts == 1


async def test_w54_output_is_always_drained(rig: Rig) -> None:
    supervisor = rig.make(
        r"""
        import os, pathlib, sys, time
        folder = pathlib.Path(sys.argv[1])
        os.write(2, b"\xff\xfe broken \x1b[31mcolour\x1b[0m\n")
        os.write(1, b"z" * 1_000_000 + b"\n")
        for number in range(50_000):
            os.write(1 + number % 2, b"%8d %s\r" % (number, b"x" * 80))
        os.write(1, b"\nserving now\n")
        (folder / "ready").touch()
        while True: time.sleep(1)
        """
    )
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 60)
    await until(lambda: "serving now" in supervisor.log_tail())
    await supervisor.stop()
    assert sum(file.stat().st_size for file in (rig.folder / "logs").iterdir()) <= 3 * 100_000


async def test_w50_a_failing_probe_makes_it_busy_not_dead_and_probes_never_overlap(rig: Rig) -> None:
    supervisor = rig.make(WAIT_FOR_EVER)
    rig.ready_file.touch()
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 20)
    pid = supervisor.pid
    rig.ready_file.unlink()
    rig.probe.delay_s = 0.05
    await until(lambda: supervisor.state is EngineState.BUSY)
    seen = rig.probe.checks
    await until(lambda: rig.probe.checks > seen + 5)
    await asyncio.wait_for(supervisor.ensure_ready(), 1)  # busy can still take a turn
    rig.ready_file.touch()
    await until(lambda: supervisor.state is EngineState.READY)
    assert supervisor.pid == pid
    assert supervisor.restarts == 0
    assert rig.probe.most_open == 1


async def test_w50_a_real_exit_is_restarted_within_seconds(rig: Rig) -> None:
    supervisor = rig.make(WAIT_FOR_EVER)
    rig.ready_file.touch()
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 20)
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: supervisor.pid not in {None, first} and supervisor.state is EngineState.READY, within_s=5)
    assert "killed by SIGKILL" in next(detail for state, detail in rig.told if state is EngineState.DOWN)


async def test_an_engine_that_stalls_is_replaced(rig: Rig) -> None:
    supervisor = rig.make(
        WAIT_FOR_EVER, policy=RestartPolicy(first_delay_s=0.01, stall_limit_s=0.3, stall_probes=2, max_restarts=1)
    )
    rig.ready_file.touch()
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 20)
    rig.ready_file.unlink()
    await until(lambda: EngineState.DOWN in rig.states)
    assert "made no progress" in next(detail for state, detail in rig.told if state is EngineState.DOWN)


async def test_noted_progress_keeps_a_silent_engine(rig: Rig) -> None:
    supervisor = rig.make(WAIT_FOR_EVER, policy=RestartPolicy(stall_limit_s=0.5, stall_probes=1))
    rig.ready_file.touch()
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 20)
    rig.ready_file.unlink()
    for _ in range(20):
        supervisor.note_progress()
        await asyncio.sleep(0.05)
    assert EngineState.DOWN not in rig.states


async def test_w53_after_kill_9_of_the_governor_the_next_start_ends_our_orphan(rig: Rig) -> None:
    supervisor = rig.make(WAIT_FOR_EVER)
    governor = textwrap.dedent(
        """
        import asyncio, pathlib, sys
        from tests.unit.test_supervisor import Rig
        async def main():
            supervisor = Rig(pathlib.Path(sys.argv[1])).make(open(sys.argv[1] + "/engine.py").read())
            await supervisor.start()
            await asyncio.sleep(60)
        asyncio.run(main())
        """
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", governor, str(rig.folder))
    state = rig.folder / "run" / "engine.json"
    await until(state.exists)
    orphan = msgspec.json.decode(state.read_bytes(), type=EngineRecord).pid
    killed.kill()
    await killed.wait()
    assert is_alive(orphan)

    rig.ready_file.touch()
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 20)
    assert not is_alive(orphan)
    assert supervisor.pid not in {None, orphan}


@pytest.mark.parametrize("change", ["start_ticks", "boot_id", "argv"])
async def test_w53_a_reused_pid_is_left_alone(rig: Rig, change: str) -> None:
    argv = (sys.executable, "-c", WAIT_FOR_EVER)
    stranger = await asyncio.create_subprocess_exec(*argv)
    try:
        await until(lambda: b"-c" in Path(f"/proc/{stranger.pid}/cmdline").read_bytes())
        record = ProcessTable().record(stranger.pid, argv, "mark")
        assert record is not None
        assert ProcessTable().is_present(record)
        changed = {
            "start_ticks": msgspec.structs.replace(record, start_ticks=record.start_ticks - 1),
            "boot_id": msgspec.structs.replace(record, boot_id="another"),
            "argv": msgspec.structs.replace(record, argv_sha256=argv_sha256(("vllm", "serve"))),
        }[change]
        assert not ProcessTable().is_present(changed)
        run_state = RunState(rig.folder / "run")
        run_state.acquire()
        run_state.write(changed)
        run_state.release()
        rig.ready_file.touch()
        supervisor = rig.make(WAIT_FOR_EVER)
        await supervisor.start()
        await asyncio.wait_for(supervisor.ensure_ready(), 20)
        assert is_alive(stranger.pid)
    finally:
        stranger.kill()
        await stranger.wait()


async def test_w53_a_foreign_listener_is_named_and_not_touched(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        rig.ready_file.touch()
        supervisor = rig.make(WAIT_FOR_EVER, port=port)
        await supervisor.start()
        with pytest.raises(EngineFailed, match=f"process {os.getpid()} already listens on port {port}"):
            await asyncio.wait_for(supervisor.ensure_ready(), 20)
        assert supervisor.pid is None
        assert rig.probe.checks == 0


async def test_w53_only_one_of_two_supervisors_wins(rig: Rig) -> None:
    supervisor = rig.make(WAIT_FOR_EVER)
    await supervisor.start()
    second = Rig(rig.folder).make(WAIT_FOR_EVER)
    with pytest.raises(AlreadySupervised, match=f"pid {os.getpid()}"):
        await second.start()
    await second.stop()
    await until(lambda: supervisor.pid is not None)
    assert supervisor.state is EngineState.STARTING


async def test_a_loop_that_cancels_everything_leaves_no_engine(rig: Rig) -> None:
    """As ``asyncio.run`` does when its main coroutine ends by an exception."""
    supervisor = rig.make(
        """
        import pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (pathlib.Path(sys.argv[1]) / "up").touch()
        while True: time.sleep(1)
        """
    )
    await supervisor.start()
    await until((rig.folder / "up").exists)
    pid = supervisor.pid
    assert pid is not None
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others)
    assert not is_alive(pid)
    assert supervisor.pid is None
    assert list((rig.folder / "run").glob("*.json")) == []


async def test_a_full_disk_does_not_keep_the_engine_from_running(rig: Rig) -> None:
    (rig.folder / "run" / "engine.part").mkdir(parents=True)  # the record cannot be written
    rig.ready_file.touch()
    supervisor = rig.make(WAIT_FOR_EVER)
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 20)


async def test_who_asks_before_the_start_is_told(rig: Rig) -> None:
    with pytest.raises(EngineFailed, match="stopped"):
        await asyncio.wait_for(rig.make(WAIT_FOR_EVER).ensure_ready(), 1)


async def test_a_missing_program_fails_at_once(rig: Rig) -> None:
    supervisor = rig.make("", argv=("/nonexistent/engine",))
    await supervisor.start()
    with pytest.raises(EngineFailed, match="cannot start /nonexistent/engine"):
        await asyncio.wait_for(supervisor.ensure_ready(), 20)
    assert supervisor.restarts == 0


async def test_a_broken_listener_does_not_end_supervision(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    supervisor = rig.make(WAIT_FOR_EVER)
    rig.told = None  # type: ignore[assignment]  # every report now raises in the listener
    rig.ready_file.touch()
    await supervisor.start()
    await asyncio.wait_for(supervisor.ensure_ready(), 20)
    await supervisor.stop()
    assert supervisor.pid is None


TITLED = """
    import ctypes, os, pathlib, subprocess, sys, time
    folder = pathlib.Path(sys.argv[1])
    os.fork() == 0 and os.setsid()
    libc = ctypes.CDLL(None)
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    # As setproctitle does: what /proc shows of arguments and environment is gone.
    start, end = int(fields[45]), int(fields[48])
    ctypes.memset(start, 0, end - start)
    with (folder / "pids").open("a") as file:
        print(os.getpid(), file=file)
    while True: time.sleep(1)
"""


@pytest.mark.parametrize("first_lives", [True, False])
async def test_w53_processes_that_hide_arguments_and_environment_are_still_known(rig: Rig, first_lives: bool) -> None:
    """As SGLang's do. The worker has a session of its own, so only what was written down tells of it."""
    source = rig.folder / "engine.py"
    source.write_text(textwrap.dedent(TITLED))
    argv = (sys.executable, str(source), str(rig.folder))
    engine = await asyncio.create_subprocess_exec(*argv, start_new_session=True)
    await until(lambda: len(rig.lines("pids")) == 2)
    table = ProcessTable()
    first, other = engine.pid, next(int(pid) for pid in rig.lines("pids") if int(pid) != engine.pid)
    try:
        record, known = table.record(first, argv, "mark"), table.record(other, argv, "mark")
        assert record is not None
        assert known is not None
        assert table.titled(record, sys.executable) == {}
        record = msgspec.structs.replace(record, workers={other: known.start_ticks})
        if not first_lives:
            engine.kill()
            await engine.wait()
        assert table.is_present(record) is first_lives
        assert set(table.members(record)) == ({first, other} if first_lives else {other})
        stale = msgspec.structs.replace(record, workers={other: known.start_ticks - 1})
        assert other not in table.members(stale)
    finally:
        os.kill(other, signal.SIGKILL)
        if engine.returncode is None:
            engine.kill()
        await engine.wait()


async def test_w53_a_governor_killed_before_it_has_written_the_engine_down_leaves_none(rig: Rig) -> None:
    governor = textwrap.dedent(
        """
        import asyncio, os, pathlib, sys
        from serve.engine_log import EngineLog
        from serve.process import EngineCommand, EngineProcess
        from serve.process_table import ProcessTable
        async def main():
            folder = pathlib.Path(sys.argv[1])
            command = EngineCommand(argv=(sys.executable, "-c", f"open({str(folder / 'ran')!r}, 'w')"))
            log = EngineLog(folder / "engine.log")
            process = EngineProcess(command, log, ProcessTable(), grace_s=1, on_output=lambda: None)
            (folder / "pid").write_text(str(process.pid))
            os.kill(os.getpid(), 9)
        asyncio.run(main())
        """
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", governor, str(rig.folder))
    await killed.wait()
    pid = int(rig.lines("pid")[0])
    await until(lambda: not is_alive(pid))
    assert not (rig.folder / "ran").exists()
