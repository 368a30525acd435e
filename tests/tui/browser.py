"""A dashboard in a real browser: what its terminal was sent, as a screen, and keys that are pressed in the page."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pyte
from playwright.async_api import Page, WebSocket, async_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""Playwright's own builds are downloaded from elsewhere; the system's is as good."""


class Tab:
    """One page. ``errors``: what went wrong in it, by its own word."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.asked: list[str] = []
        """Addresses of all requests."""
        self._screen = pyte.Screen(200, 100)
        self._stream = pyte.ByteStream(self._screen)
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", self._on_socket)

    def screen(self) -> str:
        """What the page's terminal was told to show."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    async def until(self, condition: Callable[[str], bool], within_s: float = 60) -> str:
        try:
            async with asyncio.timeout(within_s):
                while not condition(self.screen()):  # noqa: ASYNC110 - frames come at any time
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"the screen stayed:\n{self.screen()}") from None
        return self.screen()

    def _on_socket(self, socket: WebSocket) -> None:
        self.asked.append(socket.url)
        socket.on("framereceived", self._on_frame)

    def _on_frame(self, payload: str | bytes) -> None:
        if isinstance(payload, bytes):
            self._stream.feed(payload)


@asynccontextmanager
async def tab(width: int = 1200, height: int = 800) -> AsyncIterator[Tab]:
    """A page in a browser of its own."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield Tab(await browser.new_page(viewport={"width": width, "height": height}))
        finally:
            await browser.close()
