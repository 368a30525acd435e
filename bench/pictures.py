"""The README's pictures, from the demo itself: ``python -m bench.pictures``.

Stills (SVG, and PNG by Chromium), a GIF of both runs, and a recording of the terminal (asciinema's cast, version 2).
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image
from playwright.async_api import async_playwright

from governor.cli.demo_screen import demo_dashboard
from governor.demo.figures import Mode
from governor.demo.show import Show, running_show

WIDTH, HEIGHT = 112, 30
_SPEED = 30.0
"""Slower than the demo: what the gateway takes counts less, be the machine as busy as it may."""
_FRAME_EVERY_S = 540
"""Of the twin's."""
_FRAME_MS = 1400
_LAST_FRAME_MS = 4000
_GIF_COLOURS = 64
_GIF_WIDTH = 760
_CAST_WIDTH, _CAST_HEIGHT, _CAST_SPEED = 80, 24, 60
_CAST_S = (26.0, 19.0)
"""Without, and with the governor."""

_FONTS = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)
"""Of another server: a picture loads nothing."""

app = typer.Typer(add_completion=False)


class Shot:
    """Screens as SVG, in the order in which they were seen."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.stills: dict[str, str] = {}


async def shot(ungoverned_s: int, governed_s: int) -> Shot:
    """Run both modes for so much of the twin's time, and look now and then."""
    seen = Shot()
    async with running_show(Mode.UNGOVERNED, speed=_SPEED) as show:
        following = asyncio.create_task(show.follow())
        dashboard = demo_dashboard(show, Mode.UNGOVERNED)
        async with dashboard.run_test(size=(WIDTH, HEIGHT)) as pilot:
            for mode, seconds in ((Mode.UNGOVERNED, ungoverned_s), (Mode.GOVERNED, governed_s)):
                if mode is Mode.GOVERNED:
                    await pilot.press("g")
                for at_s in (*range(_FRAME_EVERY_S, seconds, _FRAME_EVERY_S), seconds):
                    await _reached(show, mode, at_s)
                    seen.frames.append(dashboard.export_screenshot(title="governor demo"))
                seen.stills[mode.value] = seen.frames[-1]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return seen


async def _reached(show: Show, mode: Mode, at_s: float) -> None:
    while (run := show.board.now) is None or run.mode is not mode or run.at_s is None or run.at_s < at_s:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def pngs(pictures: list[str]) -> list[bytes]:
    """SVGs as a browser draws them."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1500, "height": 900})
        drawn = []
        for picture in pictures:
            await page.set_content(f"<body style='margin:0;width:1400px'>{picture}</body>")
            drawn.append(await page.locator("svg").screenshot())
        await browser.close()
    return drawn


def gif(frames: list[bytes]) -> bytes:
    """Small: few colours, and only what changes."""
    images = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
    scaled = [
        each.resize((_GIF_WIDTH, each.height * _GIF_WIDTH // each.width), Image.Resampling.LANCZOS) for each in images
    ]
    palette = scaled[-1].quantize(_GIF_COLOURS, method=Image.Quantize.FASTOCTREE)
    first, *rest = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in scaled]
    times = [_FRAME_MS] * len(rest) + [_LAST_FRAME_MS]
    out = io.BytesIO()
    first.save(out, "GIF", save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
    return out.getvalue()


def cast(ungoverned_s: float, governed_s: float) -> bytes:
    """What ``governor demo`` writes to a terminal, while somebody presses g once and q at the end."""
    header = {
        "version": 2,
        "width": _CAST_WIDTH,
        "height": _CAST_HEIGHT,
        "title": "governor demo",
        "env": {"TERM": "xterm-256color"},
    }
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _CAST_HEIGHT, _CAST_WIDTH, 0, 0))
    program = subprocess.Popen(
        [sys.executable, "-m", "governor", "demo", "--speed", f"{_CAST_SPEED}"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "TEXTUAL_FPS": "1"},
        start_new_session=True,
    )
    os.close(slave)
    keys = [(ungoverned_s, b"g"), (ungoverned_s + governed_s, b"q")]
    began, lines = time.monotonic(), [json.dumps(header)]
    os.set_blocking(master, False)
    ended = False
    while not ended:
        ended = program.poll() is not None  # what it said at last is read after that
        at = time.monotonic() - began
        while keys and at >= keys[0][0]:
            os.write(master, keys.pop(0)[1])
        if at > ungoverned_s + governed_s + 20:
            program.send_signal(signal.SIGTERM)
        try:
            said = os.read(master, 1 << 20)
        except OSError:
            said = b""
        if said:
            lines.append(json.dumps([round(at, 2), "o", said.decode(errors="ignore")], ensure_ascii=False))
        time.sleep(0.25)
    os.close(master)
    return ("\n".join(lines) + "\n").encode()


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="Folder.")] = Path("docs/img"),
    ungoverned_s: Annotated[int, typer.Option(help="Of the twin's, of the first run.")] = 3540,
    governed_s: Annotated[int, typer.Option(help="Of the second.")] = 2700,
) -> None:
    """Make them. Takes five minutes."""
    seen = asyncio.run(shot(ungoverned_s, governed_s))
    names = {Mode.UNGOVERNED.value: "dashboard-ungoverned", Mode.GOVERNED.value: "dashboard"}
    drawn = asyncio.run(pngs([*seen.frames, *seen.stills.values()]))
    frames, stills = drawn[: len(seen.frames)], drawn[len(seen.frames) :]
    made = {"demo.gif": gif(frames), "demo.cast": cast(*_CAST_S)}
    for (mode, picture), still in zip(seen.stills.items(), stills, strict=True):
        made[f"{names[mode]}.svg"], made[f"{names[mode]}.png"] = _FONTS.sub("", picture).encode(), still
    for name, content in made.items():
        (out / name).write_bytes(content)
        print(f"{out / name}: {len(content):,} bytes")


if __name__ == "__main__":
    app()
