"""The stand-in for SGLang behind the real supervisor and probe, with little patience."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Self

from governor.clock import SystemClock
from serve.engine_log import EngineLog
from serve.launcher import free_port
from serve.lifecycle import EngineState, RestartPolicy
from serve.process import EngineCommand
from serve.run_state import RunState
from serve.sglang_launcher import WORKER_TITLE
from serve.sglang_probe import SglangProbe
from serve.supervisor import Supervisor
from tests.sglang_program import Faults, environment, set_faults


class Supervised:
    """Stops what it made when left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.told: list[tuple[EngineState, str]] = []
        self._supervisor: Supervisor | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._supervisor is not None:
            await self._supervisor.stop()

    def make(self, faults: Faults, policy: RestartPolicy) -> Supervisor:
        set_faults(self.folder, faults)
        argv = ("-m", "tests.sglang_program", "--port", str(self.port), "--served-model-name", "m")
        self._supervisor = Supervisor(
            EngineCommand(
                argv=(sys.executable, *argv, "--context-length", "8192"),
                env=environment(self.folder),
                port=self.port,
                worker_title=WORKER_TITLE,
            ),
            SglangProbe(self.url, timeout_s=0.3),
            EngineLog(self.folder / "logs" / "engine.log"),
            RunState(self.folder / "run"),
            clock=SystemClock(),
            on_change=lambda state, detail: self.told.append((state, detail)),
            policy=policy,
            grace_s=0.5,
            starting_probe_interval_s=0.02,
            probe_interval_s=0.05,
        )
        return self._supervisor

    @property
    def states(self) -> list[EngineState]:
        return [state for state, _ in self.told]

    def detail_of(self, state: EngineState) -> str:
        """Of the last report of it."""
        return next(detail for told, detail in reversed(self.told) if told is state)
