"""The dashboard without a terminal: its kept pictures, hostile text, a governor that dies, keys, sizes."""

from __future__ import annotations

import logging

import msgspec
import pytest
from textual.widgets import Input

from governor.snapshot import AgentView
from tests.tui import pictures
from tests.tui.hostile import hostile_picture
from tests.tui.pages import serving
from tests.tui.screens import NAMES, QUICK, SIZES, drawn, kept, lines_of, shown, text_of, until
from tui.app import Dashboard
from tui.cells import Cell, Column, Table, external
from tui.client import ClientTimes, Find
from tui.screens.dialogs import SetKey
from tui.screens.help import HelpScreen
from tui.screens.main import MainScreen
from tui.screens.view import put
from tui.widgets.table import CellTable


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", NAMES)
async def test_pictures_are_as_kept(name: str, size: tuple[int, int]) -> None:
    assert (await drawn(name, size)).splitlines() == kept(name, size).read_text().splitlines()


async def test_hostile_text_is_literal_everywhere() -> None:
    """Case W68. Markup in a name neither styles, links, nor ends the dashboard; what does not print is spelled out."""
    away = ClientTimes(first_retry_s=600, longest_retry_s=600)
    app = Dashboard(lambda: None, now=lambda: pictures.NOW, client_times=away)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.picture.gone is not None)
        main = app.screen
        assert isinstance(main, MainScreen)
        for text in pictures.HOSTILE:
            app.picture = picture = hostile_picture(text)
            start = external(text).text[:8].strip()
            main.post_message(CellTable.Opened(main.query_one("#agents", CellTable), text))
            for number in (None, 0, 1, 2, 3, 4):
                if number is not None:
                    main.action_tab(number)
                main.draw(picture, pictures.NOW)
                await pilot.pause()
                assert start in text_of(app)
                assert all(line == "" or line.isprintable() for line in lines_of(app))
        await pilot.press("1")
        await pilot.click(offset=(4, 15))
        assert app.is_running
        assert app.query_one("#agents", CellTable).has_focus


async def test_hostile_text_in_dialogs_and_messages_is_literal() -> None:
    """Case W68: where it is asked and answered."""
    texts = pictures.HOSTILE[:-1]
    agents = tuple(AgentView(name=text, policy_problem=text) for text in texts)
    async with shown(pictures.snapshot(agents=agents), (80, 24)) as (app, pilot, pages):
        pages.policy = pictures.spoiled(pictures.scenes()["normal"].policy, texts[0])
        for text in texts:
            start = external(text).text[:8].strip()
            await pilot.press("c")
            assert "compact" in text_of(app)
            assert start in text_of(app)
            await pilot.press("n", "s")
            await until(pilot, lambda: isinstance(app.screen, SetKey))
            assert start in text_of(app)
            assert all(line == "" or line.isprintable() for line in lines_of(app))
            await pilot.press("escape", "down")
            app.say(text)
            await pilot.pause()
            assert all(line == "" or line.isprintable() for line in lines_of(app))
        await pilot.press("c", "y")
        await until(pilot, lambda: any("answered 404" in told.message for told in app._notifications))
        assert app.is_running


async def test_an_error_in_one_panel_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Case W68."""

    def broken() -> Table:
        raise ZeroDivisionError

    async with shown(pictures.busy(), (80, 24)) as (app, pilot, pages):
        with caplog.at_level(logging.ERROR):
            put(app.query_one("#tiers", CellTable), broken)
            odd = Cell("a", "no tone")  # type: ignore[arg-type]
            app.query_one("#news", CellTable).show(Table(title="x", columns=(Column(title="a"),), rows=((odd,),)))
            await pilot.pause(0.1)
        assert "a bug of ours" in text_of(app)
        assert "ZeroDivisionError" in caplog.text
        await until(pilot, lambda: any(line.startswith("L1 GPU") for line in lines_of(app)), 10)
        assert pages.snapshot is not None


async def test_all_agents_can_be_scrolled_to() -> None:
    async with shown(pictures.many(64), (80, 24)) as (app, pilot, _):
        await pilot.press("2")
        assert "agents (64)" in text_of(app)
        assert "agent-63" not in "\n".join(lines_of(app)[:14])
        await pilot.press("end")
        await until(pilot, lambda: any(line.startswith("▸ agent-63") for line in lines_of(app)))
        assert any(line.startswith("  agent ") for line in lines_of(app)), "the header stays"
        await pilot.press("home")
        await until(pilot, lambda: any(line.startswith("▸ agent-00") for line in lines_of(app)))


async def test_the_chosen_row_stays_when_rows_come_and_figures_change() -> None:
    many = pictures.many(64)
    async with shown(many, (80, 24)) as (app, pilot, pages):
        await pilot.press("2", "end")
        await until(pilot, lambda: any(line.startswith("▸ agent-63") for line in lines_of(app)))
        first = AgentView(name="a-new-one")
        last = msgspec.structs.replace(many.agents[-1], held=True)
        pages.snapshot = msgspec.structs.replace(many, agents=(first, *many.agents[1:-1], last))
        await until(pilot, lambda: any(line.split()[:3] == ["▸", "agent-63", "held"] for line in lines_of(app)))
        pages.snapshot = msgspec.structs.replace(many, agents=many.agents[:3])
        await until(pilot, lambda: any(line.startswith("▸ agent-02") for line in lines_of(app)))


async def test_the_governor_dies_and_comes_back() -> None:
    find: list[Find] = []
    app = Dashboard(lambda: find[0]() if find else None, now=lambda: pictures.NOW + 9, client_times=QUICK)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "no governor runs from this home" in lines_of(app)[1])
        for _ in range(2):
            async with serving(pictures.busy()) as pages:
                find[:] = [pages.find]
                await until(pilot, lambda: "● connected" in lines_of(app)[0])
                await until(pilot, lambda: any(line.startswith("▸ hermes") for line in lines_of(app)))
            await until(pilot, lambda: "not connected, retrying" in lines_of(app)[0])
            assert any(line.startswith("▸ hermes") for line in lines_of(app)), "the last figures stay"
            await until(pilot, lambda: "figures are 9s old" in lines_of(app)[1])


async def test_keys_turn_to_screens() -> None:
    async with shown(pictures.scenes()["normal"], (100, 30)) as (app, pilot, _):
        titles = ("─ tiers", "─ open turns", "─ L1 as booked", "─ tiers in bytes", "━ log")
        for number, title in enumerate(titles, 1):
            await pilot.press(str(number))
            assert title in text_of(app)
        await pilot.press("tab")
        assert titles[0] in text_of(app), "after the last comes the first"
        await pilot.press("shift+tab")
        assert titles[4] in text_of(app)
        await pilot.click(offset=(16, 0))
        await pilot.pause()
        assert titles[1] in text_of(app)
        await pilot.press("down", "enter")
        await until(pilot, lambda: lines_of(app)[1].startswith("nightly"))
        await pilot.press("escape")
        assert titles[1] in text_of(app)


async def test_arrows_go_from_table_to_table() -> None:
    async with shown(pictures.busy(), (100, 30)) as (app, pilot, _):
        await pilot.press("3")
        assert app.query_one("#leases", CellTable).has_focus
        await pilot.press("down")
        assert app.query_one("#waiting", CellTable).has_focus
        await pilot.press("down")
        assert app.query_one("#waiting", CellTable).chosen == "t-00000000000000aa"
        await pilot.press("down")
        assert app.query_one("#held", CellTable).has_focus
        await pilot.press("up", "up", "up")
        assert app.query_one("#leases", CellTable).has_focus


async def test_help_and_quit() -> None:
    async with shown(pictures.busy(), (80, 24)) as (app, pilot, _):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert "overview, agents, queue, engine, log" in text_of(app)
        await pilot.press("q")
        await until(pilot, lambda: not isinstance(app.screen, HelpScreen))
        assert app.is_running, "q closes help first"
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running


async def test_the_log_is_filtered_as_one_types() -> None:
    async with shown(pictures.scenes()["normal"], (120, 40)) as (app, pilot, _):
        await pilot.press("5", "slash", *"closed the")
        await pilot.pause()
        assert "the engine closed the conn" in text_of(app)
        assert "in force" not in text_of(app)
        await pilot.press("q")
        assert app.is_running, "a key is a letter here"
        assert app.query_one("#filter", Input).value == "closed theq"
        await pilot.press("escape")
        await pilot.pause()
        assert "in force" in text_of(app)


async def test_figures_go_on_under_the_help_page() -> None:
    async with shown(pictures.snapshot(), (80, 24)) as (app, pilot, pages):
        await pilot.press("question_mark")
        pages.snapshot = pictures.busy()
        await until(pilot, lambda: app.picture.snapshot is not None and len(app.picture.snapshot.agents) == 5)
        await pilot.press("escape")
        await until(pilot, lambda: any(line.startswith("▸ hermes") for line in lines_of(app)))


async def test_resizing_shows_what_fits() -> None:
    async with shown(pictures.scenes()["normal"], (160, 50)) as (app, pilot, _):
        for key in ("1", "2", "enter", "3", "4", "5"):
            await pilot.press(key)
            for width, height in ((80, 24), (40, 10), (20, 5), (8, 2), (300, 90)):
                await pilot.resize_terminal(width, height)
                await pilot.pause()
                assert all(len(line) <= width for line in lines_of(app))
        assert "the engine closed the connection in the middle of its answer" in text_of(app)


async def test_many_events_are_drawn_at_once() -> None:
    """A flood of events is one picture every 250 ms, and the newest is in it."""
    async with shown(pictures.busy(), (120, 40)) as (app, pilot, pages):
        for number in range(2_000):
            pages.events.publish(pictures.ended("hermes", number, pictures.usage(number + 1, 0, 0, 0)))
        await until(pilot, lambda: bool(app.picture.log) and app.picture.log[0].at == pictures.NOW - 400 + 1_999)
        assert len(app.picture.log) == 500


@pytest.mark.parametrize("scene", ["normal", "hostile"])
async def test_without_colour_no_style_has_one(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with shown(pictures.scenes()[scene], (80, 24)) as (app, pilot, _):
        assert app.native_ansi_color
        assert app.no_color
        for key in ("1", "2", "3", "4", "5"):
            await pilot.press(key)
            for widget in app.query(CellTable):
                for strip in widget.render_lines(widget.size.region):
                    for segment in strip.apply_filter(app._filters[-1], app.background_colors[1]):
                        style = segment.style
                        assert style is None or style.color is None or style.color.is_default
                        assert style is None or style.bgcolor is None or style.bgcolor.is_default
