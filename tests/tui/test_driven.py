"""Sessions at a real terminal, in front of a governed twin with four agents on it: keys, what is seen, what is left."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.tui.test_browser import governed_agents, is_held
from tests.tui.test_terminal import Terminal, terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")

PYTHON = shlex.quote(sys.executable)
CRASHES = """
import time
from tui.app import Dashboard
began = time.monotonic()
def now():
    if time.monotonic() > began + 3:
        raise RuntimeError("on purpose")
    return time.time()
Dashboard(lambda: None, now=now).run()
"""
LEFT = "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{keypad_flag}"


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def assert_as_before(screen: Terminal) -> None:
    """No other screen, a cursor, no mouse, and a line that is edited and echoed."""
    assert (await screen.tmux("display-message", "-p", LEFT)).strip() == "0 1 0 0"


async def test_an_agent_is_paused_and_goes_on(tmp_path: Path) -> None:
    async with governed_agents() as show:
        command = shlex.join([sys.executable, "-m", "governor", "top", "--home", str(show.home.root)])
        async with terminal(command, 110, 30) as screen:
            await screen.until(lambda text: "● connected" in text and "small" in text and "hog" in text)
            await screen.press("2")
            await screen.until(lambda text: "1 overview" in text and "tiers" not in text)
            await screen.press("p")
            await screen.until(is_held)
            await screen.press("p")
            await screen.until(lambda text: not is_held(text))
            await screen.press("5")
            await screen.until(lambda text: re.search(r"owner .*resume", text) is not None)
            await screen.press("q")
            text = await screen.until(lambda text: "left with" in text)
            assert text.strip() == "left with 0"
            await assert_as_before(screen)


async def test_the_demo(tmp_path: Path) -> None:
    command = f"TMPDIR={shlex.quote(str(tmp_path))} {PYTHON} -m governor demo --speed 60"
    async with terminal(command, 80, 24) as screen:
        text = await screen.until(lambda text: "UNGOVERNED" in text and "● connected" in text and "hog" in text)
        assert "g: with the governor" in text
        await screen.until(lambda text: " s without" in text or " min without" in text)
        await screen.press("g")
        await screen.until(lambda text: "UNGOVERNED" not in text and "GOVERNED" in text and "starting" in text)
        text = await screen.until(
            lambda text: "sglang" in text and " with the governor" in text and "- with" not in text
        )
        assert "g: without the governor" in text
        await screen.press("q")
        await screen.until(lambda text: "left with 0" in text)
        await assert_as_before(screen)
    assert not left_in(tmp_path)


@pytest.mark.parametrize("ends", ["crash", "SIGTERM"])
async def test_the_terminal_is_left_as_it_was(tmp_path: Path, ends: str) -> None:
    program = tmp_path / "crashes.py"
    program.write_text(CRASHES)
    top = f"{PYTHON} -m governor top --home {shlex.quote(str(tmp_path))}"
    crashes = f"PYTHONPATH={shlex.quote(str(Path.cwd()))} {PYTHON} {program}"
    command = crashes if ends == "crash" else f"timeout --foreground 8 {top}"
    # A line that is edited, with echo: what a shell finds.
    async with terminal(f"{command}; echo status $?; stty -a | tr ';' '\\n' | grep -w icanon", 100, 50) as screen:
        await screen.until(lambda text: "1 overview" in text)
        text = await screen.until(lambda text: "left with" in text)
        assert ("on purpose" in text) == (ends == "crash")
        assert " icanon" in text
        assert " echo " in text
        assert "-icanon" not in text
        await assert_as_before(screen)
