"""``governor top --web`` in a real browser, in front of a governed twin with the demo's agents on it."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from governor import instance
from governor.demo.figures import Mode
from governor.demo.show import Show, running_show
from tests.tui.browser import CHROMIUM, tab

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

_TOLD = re.compile(r"(http://127\.0\.0\.1:\d+)/; its code is (\w+)")


@asynccontextmanager
async def governed_agents() -> AsyncIterator[Show]:
    """The demo's world, once its agents ask."""
    async with running_show(Mode.GOVERNED, speed=30) as show:
        following = asyncio.create_task(show.follow())
        try:
            async with asyncio.timeout(30):
                while show.board.now is None or not any(agent.turns for agent in show.board.now.agents):
                    assert not following.done()
                    await asyncio.sleep(0.1)
            yield show
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@asynccontextmanager
async def served(show: Show, *arguments: str) -> AsyncIterator[tuple[str, str]]:
    """``governor top --web``: its address and its code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor", "top", "--web", "--port", "0", "--home", str(show.home.root)),
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            found = _TOLD.search((await process.stdout.readline()).decode())
        assert found is not None
        yield found[1], found[2]
    finally:
        process.terminate()
        out, err = await process.communicate()
    note = instance.running_instance(show.home)
    assert note is not None
    assert note.admin_token not in (out + err).decode()
    assert process.returncode == 0, (out + err).decode()


def is_held(screen: str) -> bool:
    """An agent's row says so."""
    return re.search(r"(hog|vain|uncapped|small) +held", screen) is not None


async def held_agents(note: instance.RunNote) -> int:
    headers = {"authorization": f"Bearer {note.admin_token}"}
    async with httpx.AsyncClient(base_url=note.url, headers=headers, trust_env=False) as client:
        state = (await client.get("/governor/state")).json()
    return sum(agent["held"] for agent in state["agents"])


async def test_in_a_browser() -> None:
    async with governed_agents() as show, served(show) as (url, code), tab() as page:
        await page.page.goto(url)
        await page.page.fill("#code", code)
        await page.page.keyboard.press("Enter")
        await page.until(lambda screen: "● connected" in screen and "small" in screen and "hog" in screen)
        await page.page.keyboard.press("?")
        await page.until(lambda screen: "quit; the governor runs on" in screen)
        await page.page.keyboard.press("Escape")
        await page.until(lambda screen: "quit; the governor runs on" not in screen)
        await page.page.keyboard.press("2")
        await page.until(lambda screen: "tiers" not in screen)
        await page.page.keyboard.press("p")
        await page.until(is_held)
        note = instance.running_instance(show.home)
        assert note is not None
        assert await held_agents(note) == 1
        await page.page.keyboard.press("p")
        await page.until(lambda screen: not is_held(screen))
        await page.page.keyboard.press("5")
        await page.until(lambda screen: re.search(r"owner via web .*resume", screen) is not None)
        painted = await page.page.locator("#terminal").screenshot()
        assert len(painted) > 20_000, "a page of text, and no empty one"
        assert not page.errors
        assert all(asked.startswith((url, url.replace("http:", "ws:"), "data:")) for asked in page.asked)
        assert note.admin_token not in " ".join([*page.asked, await page.page.content()])
