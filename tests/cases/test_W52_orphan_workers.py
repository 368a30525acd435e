"""W52 orphan-workers: however the governor is stopped, nothing that its engine started stays behind."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from governor.settings import Home
from tests.sglang_program import Faults, pids, port_of, stand_in
from tests.up import is_alive, living, up


@pytest.mark.parametrize(
    ("number", "stubborn"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)]
)
async def test_W52_a_stop_ends_all_workers_and_nothing_else(
    tmp_path: Path, number: signal.Signals, stubborn: bool
) -> None:
    """``stubborn`` workers ignore SIGTERM; one is re-parented, in a session of its own."""
    folder = tmp_path / "engine"
    python, profile = stand_in(folder, Faults(stray=True, stubborn=stubborn))
    async with up(Home(tmp_path / "home"), "--profile", profile, "--python", python) as governor:
        await governor.wait_for_mode("ready")
        engine, *workers = started = pids(folder)
        assert len(workers) == 3
        assert all(map(is_alive, started))
        assert os.getsid(engine) == engine != os.getsid(governor.process.pid)
        port = port_of(engine)
        governor.process.send_signal(number)
        assert await governor.end(within_s=20) == 0
    assert living(started) == []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
