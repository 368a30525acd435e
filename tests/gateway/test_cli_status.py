"""``governor status``, ``log`` and ``explain`` beside a governor: for people and for scripts."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from governor import instance
from governor.cli import explain, log, status
from governor.schedule.events import EngineMode
from governor.settings import Home, Secret
from serve.scripted import ScriptedEngine
from tests.harness import ADMIN_TOKEN, Governed, governed
from tests.losing import Talk, losing

app = typer.Typer(rich_markup_mode=None)
for name, command in (("status", status.status), ("log", log.log), ("explain", explain.explain)):
    app.command(name)(command)


@contextmanager
def noted(gov: Governed) -> Iterator[None]:
    """The commands find it."""
    with instance.only_instance(gov.home):
        instance.write_note(gov.home, gov.url, time.time(), Secret(ADMIN_TOKEN))
        yield


async def ran(home: Home, *arguments: str, code: int = 0) -> Result:
    environment = {"GOVERNOR_HOME": str(home.root), "COLUMNS": "220"}

    def run() -> Result:
        return CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)

    result = await asyncio.to_thread(run)
    assert result.exit_code == code, result.output
    return result


async def test_ready_not_ready_not_running(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine:
        async with governed(engine.url, tmp_path) as gov:
            with noted(gov):
                await gov.chat(model="scripted")
                page = (await ran(gov.home, "status")).stdout
                assert "ready" in page
                assert "  alice " in page
                assert json.loads((await ran(gov.home, "status", "--json")).stdout)["engine"]["mode"] == "ready"
                await engine.aclose()
                async with asyncio.timeout(10):
                    while gov.governor.watch.mode is EngineMode.READY:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                assert "it does not answer" in (await ran(gov.home, "status", code=4)).stdout
                await ran(gov.home, "status", "--json", code=4)
        await ran(Home(tmp_path), "status", code=3)


async def test_watching_ends_with_the_governor(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, governed(engine.url, tmp_path) as gov:
        with noted(gov):
            watching = asyncio.create_task(ran(gov.home, "status", "--watch", "0.2", code=3))
            await asyncio.sleep(1.0)
        result = await watching
    assert result.stdout.count("governor ") >= 2
    assert "no governor runs" in result.stderr


async def test_a_loss_is_told_everywhere(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cache-") as folder:
        async with losing(Path(folder), tmp_path) as (engine, gov):
            talk = Talk(gov, "ann", 1)
            await talk.ask(1_000)
            await engine.flush()
            await asyncio.sleep(0.2)
            await talk.ask(40)
            first, second = await gov.rows()
            with noted(gov):
                assert "the engine's cache was flushed" in (await ran(gov.home, "status")).stdout
                lines = (await ran(gov.home, "log")).stdout.splitlines()
                assert [("flushed" in line, first.turn_id in line, second.turn_id in line) for line in lines[1:]] == [
                    (False, True, False),
                    (True, False, True),
                ]
                told = [json.loads(line) for line in (await ran(gov.home, "log", "--json")).stdout.splitlines()]
                assert [[loss["cause"] for loss in turn["losses"]] for turn in told] == [["first_prompt"], ["flushed"]]
                story = (await ran(gov.home, "explain", second.turn_id)).stdout
                assert "tokens computed again" in story
                assert "the engine's cache was flushed" in story
                assert "computed once" in (await ran(gov.home, "explain", first.turn_id)).stdout
