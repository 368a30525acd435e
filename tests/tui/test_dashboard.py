"""The dashboard without a terminal: its kept pictures, hostile text, a governor that dies, keys, sizes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from governor.events import EventLog
from governor.snapshot import AgentView
from tests.tui import pictures
from tests.tui.pages import serving
from tests.tui.screens import NAMES, QUICK, SIZES, drawn, kept, lines_of, shown, until
from tui.app import Dashboard
from tui.cells import external
from tui.client import Find
from tui.screens.help import HelpScreen
from tui.widgets.table import CellTable


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", NAMES)
async def test_pictures_are_as_kept(name: str, size: tuple[int, int]) -> None:
    assert (await drawn(name, size)).splitlines() == kept(name, size).read_text().splitlines()


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_hostile_text_is_literal_everywhere(size: tuple[int, int]) -> None:
    """Case W68. Markup in a name neither styles, links, nor ends the dashboard; what does not print is spelled out."""
    async with shown(pictures.snapshot(), size) as (app, pilot, pages):
        for text in pictures.HOSTILE:
            for event in pictures.hostile_events(text):
                pages.events.publish(event)
            pages.snapshot = pictures.hostile(text)
            start = external(text).text[:10]
            await until(pilot, lambda start=start: start in lines_of(app)[1])  # type: ignore[misc]
            for line in lines_of(app):
                assert line == "" or line.isprintable()
        await pilot.click(offset=(2, 6))
        assert app.is_running
        assert app.query_one("#agents", CellTable).has_focus


async def test_all_agents_can_be_scrolled_to() -> None:
    many = pictures.snapshot(agents=tuple(AgentView(name=f"agent-{number:02}") for number in range(64)))
    async with shown(many, (80, 24)) as (app, pilot, _):
        assert "agents (64)" in "\n".join(lines_of(app))
        assert "agent-63" not in "\n".join(lines_of(app))
        await pilot.press("end")
        await until(pilot, lambda: any(line.startswith("agent-63") for line in lines_of(app)))
        assert any(line.startswith("agent ") for line in lines_of(app)), "the header stays"


async def test_a_scrolled_table_keeps_its_place_when_figures_change() -> None:
    many = pictures.snapshot(agents=tuple(AgentView(name=f"agent-{number:02}") for number in range(64)))
    async with shown(many, (80, 24)) as (app, pilot, pages):
        await pilot.press("end")
        await until(pilot, lambda: any(line.startswith("agent-63") for line in lines_of(app)))
        pages.snapshot = pictures.snapshot(agents=(*many.agents[:-1], AgentView(name="agent-63", running=7)))
        await until(pilot, lambda: any(line.split()[:3] == ["agent-63", "unseen", "7"] for line in lines_of(app)))


async def test_the_governor_dies_and_comes_back() -> None:
    find: list[Find] = []
    app = Dashboard(lambda: find[0]() if find else None, now=lambda: pictures.NOW + 9, client_times=QUICK)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "no governor runs from this home" in lines_of(app)[0])
        for _ in range(2):
            async with serving(pictures.busy()) as pages:
                find[:] = [pages.find]
                await until(pilot, lambda: "  connected" in lines_of(app)[0])
                await until(pilot, lambda: any(line.startswith("hermes   decode") for line in lines_of(app)))
            await until(pilot, lambda: "not connected, retrying  figures are 9s old" in lines_of(app)[0])
            assert any(line.startswith("hermes   decode  5m20") for line in lines_of(app)), "the last figures stay"


async def test_keys() -> None:
    async with shown(pictures.busy(), (80, 24)) as (app, pilot, _):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert any("unknown" in line for line in lines_of(app))
        await pilot.press("q")
        await until(pilot, lambda: not isinstance(app.screen, HelpScreen))
        assert app.is_running, "q closes help first"
        await pilot.press("tab")
        assert app.query_one("#turns", CellTable).has_focus
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running


async def test_figures_go_on_under_the_help_page() -> None:
    async with shown(pictures.snapshot(), (80, 24)) as (app, pilot, pages):
        await pilot.press("question_mark")
        pages.snapshot = pictures.busy()
        await until(pilot, lambda: app.picture.snapshot is not None and len(app.picture.snapshot.agents) == 3)
        await pilot.press("escape")
        await until(pilot, lambda: any(line.startswith("hermes   decode") for line in lines_of(app)))


async def test_resizing_shows_what_fits() -> None:
    event_log = EventLog()
    for event in pictures.happened():
        event_log.publish(event)
    async with shown(pictures.busy(), (160, 50), event_log) as (app, pilot, _):
        await until(pilot, lambda: any("t-0123456789abcdef" in line for line in lines_of(app)))
        for width, height in ((80, 24), (40, 10), (20, 5), (8, 2), (300, 90)):
            await pilot.resize_terminal(width, height)
            await pilot.pause(0.3)
            assert all(len(line) <= width for line in lines_of(app))
        assert any("the engine closed the connection in the middle of its answer" in line for line in lines_of(app))


async def test_without_colour_no_style_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with shown(pictures.busy(), (80, 24)) as (app, _, _):
        assert app.native_ansi_color
        assert app.no_color
        for widget in app.query(CellTable):
            for strip in widget.render_lines(widget.size.region):
                for segment in strip.apply_filter(app._filters[-1], app.background_colors[1]):
                    assert segment.style is None or segment.style.color is None or segment.style.color.is_default
