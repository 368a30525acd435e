"""``governor up --profile``: what is missing is named, and an engine whose plugin is silent serves all the same."""

from __future__ import annotations

import os
from pathlib import Path

from governor.settings import Home
from tests.sglang_program import stand_in
from tests.up import started, told, up


async def test_an_engine_that_is_not_installed_is_named_with_the_cure(tmp_path: Path) -> None:
    environment = {"GOVERNOR_ENGINES": str(tmp_path / "engines")}
    process = await started(Home(tmp_path / "home"), "--profile", "sglang-cpu", environment=environment)
    words = await told(process)
    assert process.returncode == 6
    assert "governor engine install --profile sglang-cpu" in words


async def test_an_interpreter_without_sglang_is_refused(tmp_path: Path) -> None:
    process = await started(Home(tmp_path / "home"), "--profile", "sglang-cpu", "--python", "/bin/false")
    words = await told(process)
    assert process.returncode == 6
    assert "no SGLang in the environment of /bin/false" in words


async def test_a_silent_plugin_is_an_alert_and_no_obstacle(tmp_path: Path) -> None:
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    python, profile = stand_in(folder, plugin=True)
    async with up(home, "--profile", profile, "--python", python) as governor:
        await governor.wait_for_mode("ready")
        assert (await governor.chat()).status_code == 200
        await governor.wait_for_alert("our plugin in the engine does not answer")


async def test_a_full_l3_folder_is_told(tmp_path: Path) -> None:
    folder, home = tmp_path / "engine", Home(tmp_path / "home")
    python, profile = stand_in(folder)
    with profile.open("a") as file:
        file.write("[l3]\nmin_free_gb = 1000000\non_full = 'detach'\n")
    async with up(home, "--profile", profile, "--python", python) as governor:
        await governor.wait_for_alert("over the free space to be left")
        assert os.listdir(home.root / "l3")  # noqa: PTH208 - the pathlib form counts as blocking here
