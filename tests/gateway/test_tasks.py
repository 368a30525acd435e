"""The governor's own tasks: the end of one by a bug is told, and not found out by who waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from governor.clock import SystemClock
from tests.harness import governed


class ClockWithABug(SystemClock):
    """Fails in the task of this name, once it is told to."""

    def __init__(self, task: str) -> None:
        self._task = task
        self.fails = False

    def monotonic(self) -> float:
        task = asyncio.current_task()
        if self.fails and task is not None and task.get_name() == self._task:
            raise RuntimeError("a bug of the test's")
        return super().monotonic()


async def test_a_task_that_ends_is_an_alert(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ClockWithABug("admission")
    async with governed("http://127.0.0.1:1", tmp_path, wait_ready=False, clock=clock) as gateway:
        assert not [alert for alert in gateway.governor.snapshot().alerts if "has ended" in alert]
        clock.fails = True
        gateway.governor.admission.set_floors({})
        async with asyncio.timeout(5):
            while not [alert for alert in gateway.governor.snapshot().alerts if "admission has ended" in alert]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert "a bug of the test's" in caplog.text
