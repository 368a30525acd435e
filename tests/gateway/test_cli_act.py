"""The commands by which the owner acts, as a person runs them: beside a running governor, and without one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from governor import instance
from governor.cli import act
from governor.clock import SystemClock
from governor.events import OwnerActed
from governor.identity.agents import AgentBook
from governor.settings import Home, Secret
from governor.types import TurnState
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import ADMIN_TOKEN, Governed, governed

TEXT = "# mine\noutput.final = 4096 # short\n"

app = typer.Typer(rich_markup_mode=None)
for name, command in (
    ("pause", act.pause),
    ("resume", act.resume),
    ("cancel", act.cancel),
    ("slice", act.slice_turn),
    ("compact", act.compact),
    ("set", act.set_value),
    ("reload", act.reload),
):
    app.command(name)(command)


@contextmanager
def noted(gov: Governed) -> Iterator[None]:
    """The commands find it."""
    with instance.only_instance(gov.home):
        instance.write_note(gov.home, gov.url, time.time(), Secret(ADMIN_TOKEN))
        yield


def run(home: Home, *arguments: str) -> Result:
    environment = {"GOVERNOR_HOME": str(home.root), "COLUMNS": "220"}
    return CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)


async def ran(home: Home, *arguments: str, code: int = 0) -> Result:
    result = await asyncio.to_thread(run, home, *arguments)
    assert result.exit_code == code, result.output
    return result


async def test_an_agent_is_paused_and_a_turn_cancelled(tmp_path: Path) -> None:
    async with ScriptedEngine(knobs=Knobs(decode_tokens_per_s=30)) as engine, governed(engine.url, tmp_path) as gov:
        with noted(gov):
            assert "alice is paused: its turns wait" in (await ran(gov.home, "pause", "alice")).stdout
            acted = json.loads((await ran(gov.home, "pause", "alice", "--running", "--json")).stdout)
            assert (acted["action"], acted["target"], acted["changed"]) == ("pause", "alice", True)
            asked = [asyncio.create_task(gov.chat(model="scripted")) for _ in range(2)]
            async with asyncio.timeout(10):
                while gov.governor.admission.waiting < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            first, second = (turn.turn_id for turn in (await gov.snapshot()).turns)
            error = (await ran(gov.home, "cancel", "t-", code=2)).stderr
            assert f"several open turns begin with 't-': {first}, {second}" in error
            error = (await ran(gov.home, "cancel", "[red]x\x1b", code=2)).stderr
            assert f"no turn '[red]x\\x1b' is open; open are {first} (alice)" in error
            await ran(gov.home, "cancel", first[:14])
            assert "no turn 't-never' is open" in (await ran(gov.home, "slice", "t-never", code=2)).stderr
            assert "waits already" in (await ran(gov.home, "slice", second)).stdout
            assert "alice is resumed" in (await ran(gov.home, "resume", "alice")).stdout
            assert {answer.status_code for answer in await asyncio.gather(*asked)} == {410, 200}
            assert "no turn" in (await ran(gov.home, "cancel", first, code=2)).stderr
        heard = [each.event for each in gov.governor.events.since(0)]
        assert {event.who for event in heard if isinstance(event, OwnerActed)} == {"owner via cli"}
        assert [end.state for end in await gov.ends()] == [TurnState.REFUSED, TurnState.OK]


async def test_a_key_is_set_through_the_running_governor(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, governed(engine.url, tmp_path, policies={"alice": TEXT}) as gov:
        with noted(gov):
            out = (await ran(gov.home, "set", "alice", "output.final", "2048")).stdout
            assert out.strip() == "output.final of alice is 2048 (was 4096)"
            assert (gov.home.policies / "alice.toml").read_text() == TEXT.replace("4096", "2048")
            error = (await ran(gov.home, "set", "alice", "output.finl", "9", code=2)).stderr
            assert "did you mean 'final'?" in error
            await ran(gov.home, "set", "alice", "output.final", "--unset")
            assert "nothing has changed" in (await ran(gov.home, "reload")).stdout
            assert "compression.mode of alice is off" in (await ran(gov.home, "compact", "alice", code=1)).stderr
            await ran(gov.home, "set", "alice", "compression.mode", "enforce")
            assert "is made shorter" in (await ran(gov.home, "compact", "alice")).stdout
            assert "no agent 'eve'" in (await ran(gov.home, "pause", "eve", code=2)).stderr


def test_without_a_governor_a_key_is_set_on_file(tmp_path: Path) -> None:
    home = Home(tmp_path)
    AgentBook(home.agents, SystemClock()).add("alice")
    acted = json.loads(run(home, "set", "alice", "output.final", "2048", "--json").stdout)
    assert acted["changed"] is True
    assert "output" in (home.policies / "alice.toml").read_text()
    assert "says so already" in run(home, "set", "alice", "output.final", "2048").stdout
    bad = run(home, "set", "alice", "class", "king")
    assert (bad.exit_code, "interactive" in bad.stderr or "king" in bad.stderr) == (2, True)
    assert run(home, "set", "alice", "output.final", "--unset").exit_code == 0
    assert "2048" not in (home.policies / "alice.toml").read_text()
    for arguments in (("alice", "output.final"), ("alice", "output.final", "9", "--unset"), ("eve", "class", "normal")):
        assert run(home, "set", *arguments).exit_code == 2
    assert not (home.policies / "eve.toml").exists()
    assert run(home, "set", "../eve", "class", "normal").exit_code == 2


def test_without_a_governor_nothing_else_can_be_done(tmp_path: Path) -> None:
    for arguments in (("pause", "a"), ("resume", "a"), ("cancel", "t"), ("slice", "t"), ("compact", "a"), ("reload",)):
        result = run(Home(tmp_path), *arguments)
        assert (result.exit_code, "start one with 'governor up'" in result.stderr) == (3, True)
