"""W54 undrained-pipe: an engine may write what and as much as it likes, and nobody has to read it."""

from __future__ import annotations

from pathlib import Path

from governor.settings import Home
from serve.engine_log import EngineLog
from tests.sglang_program import Faults, stand_in
from tests.up import up

SHOUTED = 5_000_000


def resident_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


async def test_W54_five_megabytes_of_broken_output_are_drained_and_bounded(tmp_path: Path) -> None:
    python, profile = stand_in(tmp_path / "engine", Faults(shout_bytes=SHOUTED, load_s=0.3))
    home = Home(tmp_path / "home")
    async with up(home, "--profile", profile, "--python", python) as governor:
        before = resident_bytes(governor.process.pid)
        await governor.wait_for_mode("ready")
        assert (await governor.chat()).status_code == 200
        assert resident_bytes(governor.process.pid) - before < SHOUTED * 4
        governor.process.terminate()
        assert await governor.end() == 0
    files = sorted(home.logs.glob("engine.log*"))
    assert sum(file.stat().st_size for file in files) <= 3 * 4 * 1024 * 1024
    text = "".join(file.read_text() for file in files)
    assert "fired up and ready" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 5000
    assert EngineLog(home.logs / "engine.log").tail() == ()  # a later viewer reads the file
