"""``governor top`` as a program in a real terminal: tmux sends the keys and says what stands on the screen."""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from governor import instance
from governor.settings import Home, Secret
from serve.scripted import ScriptedEngine
from tests.harness import ADMIN_TOKEN, Governed, governed

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")

_COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:[34][0-7]|9[0-7]|[34]8;[0-9;]+)m")
HOSTILE_MODEL = "[/]\x1b[2J\x1b]0;title\x07[@click=app.quit]x"


class Terminal:
    """One program in one terminal."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def tmux(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "tmux",
            *("-L", self._name, "-f", "/dev/null"),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode:
            raise RuntimeError(err.decode())
        return out.decode()

    async def screen(self) -> str:
        return await self.tmux("capture-pane", "-p")

    async def press(self, *keys: str) -> None:
        await self.tmux("send-keys", *keys)

    async def until(self, condition: Callable[[str], bool], within_s: float = 30) -> str:
        """The screen once it is as wanted. On time-out the error shows the last one."""
        screen = ""
        try:
            async with asyncio.timeout(within_s):
                while not condition(screen := await self.screen()):  # noqa: ASYNC110 - tmux tells of no change
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"the screen stayed:\n{screen}") from None
        return screen


@asynccontextmanager
async def terminal(command: str, width: int, height: int) -> AsyncIterator[Terminal]:
    """A terminal in which a shell runs ``command`` and stays, so that what the program left behind can be seen."""
    chosen = Terminal(f"governor-test-{secrets.token_hex(4)}")
    shell = f"{command}; echo left with $?; exec cat"
    await chosen.tmux("new-session", "-d", "-x", str(width), "-y", str(height), shell)
    try:
        yield chosen
    finally:
        await chosen.tmux("kill-server")


@asynccontextmanager
async def running(engine: ScriptedEngine, root: Path, agent: str) -> AsyncIterator[Governed]:
    """A governor that other programs find, as after ``governor up``."""
    with instance.only_instance(Home(root)):
        async with governed(engine.url, root, agents=(agent,)) as governor:
            instance.write_note(Home(root), governor.url, 0.0, Secret(ADMIN_TOKEN))
            yield governor
        instance.remove_note(Home(root))


async def test_top_in_a_terminal(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "governor", "top", "--home", str(tmp_path)])
    async with ScriptedEngine() as engine, terminal(command, 80, 24) as screen:
        await screen.until(lambda text: "no governor runs from this home" in text)
        async with running(engine, tmp_path, "alice") as governor:
            await screen.until(lambda text: "● connected" in text and "alice" in text)
            assert (await governor.chat(model="scripted")).status_code == 200
            assert (await governor.chat(model=HOSTILE_MODEL)).status_code == 404
            text = await screen.until(lambda text: "refused" in text and "  ok  " in text)
            assert len(text.splitlines()) == 24
            await screen.press("?")
            await screen.until(lambda text: "the chosen agent's own screen" in text)
            await screen.press("Escape")
            await screen.until(lambda text: "the chosen agent's own screen" not in text)
        await screen.until(lambda text: "not connected, retrying" in text and "alice" in text)
        async with running(engine, tmp_path, "bob"):
            await screen.until(lambda text: "● connected" in text and "bob" in text)
            await screen.press("q")
            text = await screen.until(lambda text: "left with" in text)
            assert text.strip() == "left with 0", "the terminal is as it was before"


@pytest.mark.parametrize("option", ["", " --no-color"])
async def test_colours_can_be_left_out(option: str, tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "governor", "top", "--home", str(tmp_path)]) + option
    async with terminal(command, 80, 24) as screen:
        await screen.until(lambda text: "no governor runs from this home" in text)
        styled = await screen.tmux("capture-pane", "-p", "-e")
        assert bool(_COLOUR.search(styled)) == (not option)


async def test_top_needs_a_terminal(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor", "top", "--home", str(tmp_path)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 2
    assert out == b""
    assert b"governor status --json" in err
