"""What ``governor connect`` writes, judged by the real clients."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from governor import instance
from governor.cli import connect
from governor.settings import Secret
from governor.types import TurnState
from serve.scripted import CallKind, Knobs, ScriptedEngine
from tests.e2e.clients import processes
from tests.e2e.clients.hermes import HermesAgent
from tests.e2e.clients.openclaw import OpenClawProgram
from tests.harness import ADMIN_TOKEN, governed

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

COMMENTED = """\
// one OpenClaw, two agents
{
  agents: {
    ownership: "explicit",
    defaults: { workspace: "./workspace", skipBootstrap: true, },
    entries: {
      alpha: {}, // the first
      beta: { model: { primary: 'openai/gpt-5', fallbacks: [] } },
    },
  },
}
"""


def connected(*arguments: str) -> str:
    result = CliRunner().invoke(connect.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


async def test_a_connected_hermes_talks_through_the_governor(hermes_program: Path, tmp_path: Path) -> None:
    knobs = Knobs(model="scripted", window_tokens=65_536)
    async with (
        ScriptedEngine(calls={CallKind.AGENT: ["say:through the governor"]}, knobs=knobs) as engine,
        governed(engine.url, tmp_path / "governor", agents=()) as governor,
    ):
        nowhere = "http://127.0.0.1:9/v1"
        hermes = HermesAgent(hermes_program, tmp_path / "hermes", base_url=nowhere, api_key="sk-old", model="old")
        config = str(tmp_path / "hermes" / "config.yaml")
        home = governor.home
        with instance.only_instance(home):
            instance.write_note(home, governor.url, time.time(), Secret(ADMIN_TOKEN))
            arguments = ("hermes", "main", "--config", config, "--home", str(home.root))
            await asyncio.to_thread(connected, *arguments)
        result = await hermes.run_once("Hello.")
        assert (result.text, result.failed) == ("through the governor", False)
        ends = await governor.ends()
        assert ends
        assert {end.state for end in ends} == {TurnState.OK}


async def test_openclaw_accepts_its_connected_file(openclaw_program: OpenClawProgram, tmp_path: Path) -> None:
    state = tmp_path / "state"
    environment = processes.clean_environment(
        state,
        [openclaw_program.node_folder],
        {"OPENCLAW_STATE_DIR": str(state), "OPENCLAW_CONFIG_PATH": str(state / "openclaw.json")},
    )

    async def validated() -> processes.Finished:
        command = [str(openclaw_program.node_folder / "node"), str(openclaw_program.script), "config", "validate"]
        return await processes.run(command, cwd=state, environment=environment, timeout_s=120)

    config = state / "openclaw.json"
    for text, agent in ((COMMENTED, "alpha"), (COMMENTED, "beta"), ("", None)):
        await asyncio.to_thread(config.write_text, text)
        chosen = ["--agent", agent] if agent else []
        common = ["--config", str(config), "--home", str(tmp_path / "governor"), "--model", "m", "--window", "65536"]
        await asyncio.to_thread(connected, "openclaw", f"claw-{agent or 'only'}", *common, *chosen)
        done = await validated()
        assert done.exit_code == 0, done.stdout + done.stderr

    await asyncio.to_thread(config.write_text, COMMENTED.replace("skipBootstrap", "skipBootstrapp"))
    assert (await validated()).exit_code != 0, "a validation that accepts anything proves nothing"
