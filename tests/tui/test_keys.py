"""Keys of the dashboard against a real governor: what they do is done, its outcome shown, and heard by others."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from governor.events import OwnerActed
from governor.settings import Secret
from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import ADMIN_TOKEN, Governed, governed
from tests.tui.screens import QUICK, lines_of, text_of, until
from tui.app import Dashboard
from tui.client import Address
from tui.screens.dialogs import Confirm, SetKey, Wanted, wanted

COMMENTED = "# caps of alice\noutput.final = 4096 # short answers\n"
SLOW = Knobs(answer_tokens=2_000, decode_tokens_per_s=60)


@pytest.fixture
async def gov(tmp_path: Path) -> AsyncIterator[Governed]:
    policies = {"alice": COMMENTED, "bob": "class = 'normal'\n"}
    async with (
        ScriptedEngine(knobs=SLOW) as engine,
        governed(engine.url, tmp_path, agents=("alice", "bob"), policies=policies) as running,
    ):
        yield running


@asynccontextmanager
async def watched(gov: Governed, size: tuple[int, int] = (120, 40)) -> AsyncIterator[tuple[Dashboard, Pilot[None]]]:
    """A dashboard that has drawn both agents."""
    app = Dashboard(lambda: Address(gov.url, Secret(ADMIN_TOKEN)), client_times=QUICK)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "alice" in text_of(app) and "bob" in text_of(app))
        yield app, pilot


def said(app: Dashboard) -> list[str]:
    """What was shown for a moment."""
    return [told.message for told in app._notifications]


def heard(gov: Governed) -> list[tuple[str, str, str, str]]:
    """What all who follow hear: who, what, of what, with which outcome."""
    events = [each.event for each in gov.governor.events.since(0)]
    return [(e.who, e.action, e.target, e.outcome) for e in events if isinstance(e, OwnerActed)]


async def saying(app: Dashboard, pilot: Pilot[None], *words: str) -> None:
    await until(pilot, lambda: bool(said(app)) and all(word in said(app)[-1] for word in words))


@asynccontextmanager
async def writing(gov: Governed, app: Dashboard, pilot: Pilot[None]) -> AsyncIterator[asyncio.Task[int]]:
    """A turn of alice's that writes for long; the status that its client gets."""
    asking = asyncio.create_task(_asked(gov))
    await until(pilot, lambda: app.picture.snapshot is not None and bool(app.picture.snapshot.queue.leases))
    yield asking
    await asking


async def _asked(gov: Governed) -> int:
    return (await gov.chat(model="scripted", max_tokens=2_000, messages=[{"role": "user", "content": "x"}])).status_code


async def test_an_agent_is_paused_and_resumed(gov: Governed) -> None:
    async with watched(gov) as (app, pilot):
        await pilot.press("p")
        await saying(app, pilot, "alice is paused")
        await until(pilot, lambda: any(line.split()[:3] == ["▸", "alice", "held"] for line in lines_of(app)))
        await pilot.press("3")
        await until(pilot, lambda: "held by the owner (1)" in text_of(app))
        await pilot.press("1", "p")
        await saying(app, pilot, "alice is resumed")
        assert heard(gov) == [
            ("owner via top", "pause", "alice", "done"),
            ("owner via top", "resume", "alice", "done"),
        ]
        await pilot.press("5")
        await until(pilot, lambda: "resume alice" in text_of(app))


async def test_a_paused_agent_s_answers_are_paused_too_and_it_is_not_resumed(gov: Governed) -> None:
    async with watched(gov) as (app, pilot):
        await pilot.press("p")
        await saying(app, pilot, "alice is paused", "what runs goes on")
        await until(pilot, lambda: any(line.split()[:3] == ["▸", "alice", "held"] for line in lines_of(app)))
        await pilot.press("P")
        await saying(app, pilot, "alice is paused", "answers that have begun pause")


async def test_what_one_does_another_sees(gov: Governed) -> None:
    async with watched(gov) as (first, pilot), watched(gov, (80, 24)) as (second, other):
        await pilot.press("down", "p")
        await saying(first, pilot, "bob is paused")
        await until(other, lambda: "pause bob" in text_of(second))
        await until(other, lambda: any(line.split()[:2] == ["bob", "held"] for line in lines_of(second)))


async def test_a_key_is_set_in_the_policy_file_with_its_comments_kept(gov: Governed) -> None:
    path = gov.home.policies / "alice.toml"
    async with watched(gov) as (app, pilot):
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, SetKey) and "output.final" in text_of(app))
        await pilot.press(*"output.final", "tab")
        assert app.screen.query_one("#wanted", Input).value == "output.final = 4096"
        await pilot.press(*["backspace"] * 4, *"2048", "enter")
        await saying(app, pilot, "output.final")
        assert tomllib.loads(path.read_text())["output"]["final"] == 2048
        assert "# caps of alice" in path.read_text()
        assert "# short answers" in path.read_text()
        await pilot.press("enter")
        await until(pilot, lambda: any(line.split()[:2] == ["output.final", "2048"] for line in lines_of(app)))


async def test_a_bad_value_is_refused_with_its_reason(gov: Governed) -> None:
    path = gov.home.policies / "alice.toml"
    async with watched(gov) as (app, pilot):
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, SetKey))
        await pilot.press(*"output.final", "enter")
        await until(pilot, lambda: "type a key, = and a value" in text_of(app))
        await pilot.press(*" = -1", "enter")
        await saying(app, pilot, "set:", "output.final")
        assert path.read_text() == COMMENTED
        assert heard(gov) == [("owner via top", "set", "alice", "refused")]


async def test_a_turn_is_cancelled_after_a_yes(gov: Governed) -> None:
    async with watched(gov) as (app, pilot), writing(gov, app, pilot) as asking:
        await pilot.press("3")
        await until(pilot, lambda: "running (1)" in text_of(app))
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        assert "its client gets an error" in text_of(app).lower()
        await pilot.press("n")
        assert heard(gov) == []
        await pilot.press("x", "y")
        await saying(app, pilot, "is cancelled")
        assert await asking == 410
        ends = await gov.ends()
        assert [end.state for end in ends] == [TurnState.REFUSED]


async def test_what_cannot_be_done_says_why(gov: Governed) -> None:
    async with watched(gov) as (app, pilot), writing(gov, app, pilot):
        await pilot.press("c", "y")
        await saying(app, pilot, "compact:", "compression.mode of alice is off")
        await pilot.press("3")
        await until(pilot, lambda: "running (1)" in text_of(app))
        await pilot.press("z")
        await saying(app, pilot, "slice:", "cannot be paused")
        await pilot.press("x", "y")
        await saying(app, pilot, "is cancelled")


async def test_policies_are_read_again(gov: Governed) -> None:
    async with watched(gov) as (app, pilot):
        await pilot.press("r")
        await until(pilot, lambda: bool(said(app)))
        await until(pilot, lambda: any(line[1:] == ("reload", "policies", "unchanged") for line in heard(gov)))


async def test_keys_without_a_turn_or_a_governor(gov: Governed) -> None:
    async with watched(gov) as (app, pilot):
        await pilot.press("3", "x")
        await saying(app, pilot, "no turn is chosen")
        await pilot.press("1")
        gov.stop()
        await until(pilot, lambda: "not connected" in text_of(app))
        await pilot.press("p")
        await saying(app, pilot, "pause:", "no connection")
        assert app.is_running


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("output.final = 4096", Wanted("output.final", 4096)),
        ("compression.mode=enforce", Wanted("compression.mode", "enforce")),
        ('models = ["a", "b"]', Wanted("models", ["a", "b"])),
        ("share.weight = 1.5", Wanted("share.weight", 1.5)),
        ("stream.x = true", Wanted("stream.x", True)),
        ("output.final =", Wanted("output.final", None)),
        ("output.final = null", Wanted("output.final", "null")),
    ],
)
def test_what_is_typed(text: str, answer: Wanted) -> None:
    assert wanted(text) == answer


@pytest.mark.parametrize("text", ["", "output.final", "= 3", "   "])
def test_what_is_typed_wrongly(text: str) -> None:
    assert isinstance(wanted(text), str)
