"""``governor agent`` and ``governor connect`` as a person runs them: without a governor, and beside a running one."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import typer
from typer.testing import CliRunner, Result

from governor import instance
from governor.cli import agents, connect
from governor.clock import SystemClock
from governor.connect import json5text, yamltext
from governor.identity.agents import AgentBook
from governor.names import policy_path
from governor.settings import Home, Secret
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import ADMIN_TOKEN, Governed, governed

DATA = Path(__file__).parent.parent / "data" / "clients"

app = typer.Typer(rich_markup_mode=None)
app.add_typer(agents.app, name="agent")
app.add_typer(connect.app, name="connect")

Command = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def command(home: Home, tmp_path: Path) -> Command:
    """Runs a command with its own home, and with client folders of its own."""
    environment = {
        "GOVERNOR_HOME": str(home.root),
        "HERMES_HOME": str(tmp_path / "hermes"),
        "OPENCLAW_CONFIG_PATH": str(tmp_path / "openclaw" / "openclaw.json"),
        "COLUMNS": "200",
    }

    def run(*arguments: str, **more: str) -> Result:
        return CliRunner().invoke(app, arguments, env=environment | more, catch_exceptions=False)

    return run


@pytest.fixture
def hermes_file(tmp_path: Path) -> Path:
    path = tmp_path / "hermes" / "config.yaml"
    path.parent.mkdir()
    path.write_text((DATA / "hermes-provider.yaml").read_text())
    return path


@pytest.fixture
def openclaw_file(tmp_path: Path) -> Path:
    path = tmp_path / "openclaw" / "openclaw.json"
    path.parent.mkdir()
    path.write_text((DATA / "openclaw-gateway.json").read_text())
    return path


def owner_of(home: Home, key: str) -> str | None:
    return AgentBook(home.agents, SystemClock()).authenticate(key)


def added(command: Command, *arguments: str) -> dict[str, Any]:
    result = command("agent", "add", *arguments, "--json")
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def settings_of(path: Path) -> Any:
    return json5text.read(path.read_text(), str(path))


def model_of(path: Path) -> dict[str, Any]:
    model: dict[str, Any] = yamltext.read(path.read_text(), str(path))["model"]
    return model


class TestAgents:
    def test_an_added_agent_has_a_key_and_a_policy_and_both_are_shown(self, command: Command, home: Home) -> None:
        told = added(command, "ollie", "--base", "hermes")
        assert owner_of(home, told["key"]) == "ollie"
        assert 'base = "hermes"' in (home.policies / "ollie.toml").read_text()
        assert told["model"] is None
        assert yamltext.read(told["hermes_yaml"], "f")["model"]["api_key"] == told["key"]
        providers = json5text.read(told["openclaw_json"], "f")["models"]["providers"]
        assert providers["governor-ollie"]["apiKey"] == told["key"]
        assert told["key"] not in home.agents.read_text()

    def test_a_person_sees_the_key_once_and_what_to_fill_in(self, command: Command) -> None:
        result = command("agent", "add", "ollie")
        assert result.exit_code == 0
        assert "export OPENAI_BASE_URL=http://127.0.0.1:8484/v1" in result.stdout
        assert "OpenClaw" in result.stdout
        assert "NAME-OF-THE-MODEL" in result.stderr
        assert "gov-" not in command("agent", "list").output

    def test_a_policy_of_ones_own_is_checked_and_copied(self, command: Command, home: Home, tmp_path: Path) -> None:
        mine = tmp_path / "My Policy.toml"
        mine.write_text("# mine\n[output]\ntool_step = 1000\n")
        told = added(command, "ollie", "--policy", str(mine))
        assert (home.policies / "ollie.toml").read_text() == mine.read_text()
        assert yamltext.read(told["hermes_yaml"], "f")["model"]["max_tokens"] == 1000
        mine.write_text("[output]\ntool_stp = 1000\n")
        refused = command("agent", "add", "other", "--policy", str(mine))
        assert refused.exit_code == 2
        assert "My Policy.toml:2: output.tool_stp" in refused.stderr
        assert owner_of(home, told["key"]) == "ollie"
        assert [row["name"] for row in json.loads(command("agent", "list", "--json").stdout)] == ["ollie"]

    def test_a_policy_left_by_an_earlier_agent_is_never_lost(
        self, command: Command, home: Home, tmp_path: Path
    ) -> None:
        added(command, "ollie", "--base", "background")
        assert command("agent", "remove", "ollie").exit_code == 0
        other = tmp_path / "other.toml"
        other.write_text("# other\n")
        assert command("agent", "add", "ollie", "--policy", str(other)).exit_code == 2
        again = command("agent", "add", "ollie", "--base", "hermes")
        assert again.exit_code == 0
        assert "stays in force" in again.stderr
        assert 'base = "background"' in (home.policies / "ollie.toml").read_text()

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["add", "ollie"], "already an agent"),
            (["add", "Ollie"], "not an agent's name"),
            (["add", "../x"], "not an agent's name"),
            (["add", "x", "--policy", "nowhere.toml"], "no such file"),
            (["add", "x", "--policy", "p.toml", "--base", "hermes"], "leave --base out"),
            (["rotate", "nobody"], "no agent 'nobody'"),
            (["remove", "nobody"], "no agent 'nobody'"),
        ],
    )
    def test_what_cannot_be_done_is_said_with_exit_code_2(
        self, command: Command, arguments: list[str], says: str
    ) -> None:
        added(command, "ollie")
        result = command("agent", *arguments)
        assert result.exit_code == 2
        assert says in result.stderr

    def test_a_rotated_key_replaces_the_old_one(self, command: Command, home: Home) -> None:
        old = added(command, "ollie")["key"]
        result = command("agent", "rotate", "ollie")
        new = result.stdout.strip()
        assert (owner_of(home, old), owner_of(home, new)) == (None, "ollie")

    def test_a_removed_agent_is_refused_and_its_policy_stays(self, command: Command, home: Home) -> None:
        key = added(command, "ollie")["key"]
        assert command("agent", "remove", "ollie").exit_code == 0
        assert owner_of(home, key) is None
        assert (home.policies / "ollie.toml").exists()

    def test_the_list_shows_a_bad_policy_instead_of_failing(self, command: Command, home: Home) -> None:
        added(command, "ollie", "--base", "openclaw")
        added(command, "zed")
        (home.policies / "zed.toml").write_text("class = 'fast'\n")
        rows = {row["name"]: row for row in json.loads(command("agent", "list", "--json").stdout)}
        assert (rows["ollie"]["client"], rows["ollie"]["base"]) == ("openclaw", "openclaw")
        assert "zed.toml:1" in rows["zed"]["problem"]
        assert "zed.toml:1" in command("agent", "list").stdout


class TestHermes:
    def test_it_is_written_with_a_backup_and_a_second_run_changes_nothing(
        self, command: Command, home: Home, hermes_file: Path
    ) -> None:
        before = hermes_file.read_text()
        hermes_file.chmod(0o640)
        arguments = ("connect", "hermes", "ollie", "--model", "qwen3", "--window", "131072")
        result = command(*arguments)
        assert result.exit_code == 0, result.output
        model = model_of(hermes_file)
        assert owner_of(home, model["api_key"]) == "ollie"
        assert (model["default"], model["context_length"], model["max_tokens"]) == ("qwen3", 131072, 8192)
        assert model["api_key"] not in result.output
        assert "+  api_key: *** (new key)" in result.stdout
        (kept,) = hermes_file.parent.glob("config.yaml.bak-*")
        assert kept.read_text() == before
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(hermes_file.stat().st_mode) == 0o640
        assert "chmod 600" in result.stderr
        after = hermes_file.read_text()
        again = command(*arguments)
        assert (again.exit_code, hermes_file.read_text()) == (0, after)
        assert "nothing to change" in again.stdout
        assert 'base = "hermes"' in (home.policies / "ollie.toml").read_text()

    def test_a_dry_run_changes_nothing_anywhere(self, command: Command, home: Home, hermes_file: Path) -> None:
        added(command, "ollie")
        before = (hermes_file.read_text(), home.agents.read_text(), sorted(home.policies.iterdir()))
        for name, *key in (["ollie", "--new-key"], ["fresh"]):
            result = command("connect", "hermes", name, "--model", "m", "--dry-run", *key)
            assert result.exit_code == 0
            assert "+  base_url: http://127.0.0.1:8484/v1" in result.stdout
            assert (hermes_file.read_text(), home.agents.read_text(), sorted(home.policies.iterdir())) == before
        assert [path.name for path in hermes_file.parent.iterdir()] == ["config.yaml"]

    def test_an_agent_with_a_key_needs_it_or_a_new_one(self, command: Command, home: Home, hermes_file: Path) -> None:
        key = added(command, "ollie")["key"]
        stranger = added(command, "stranger")["key"]
        arguments = ("connect", "hermes", "ollie", "--model", "m")
        refused = command(*arguments)
        assert refused.exit_code == 2
        assert "--key" in refused.stderr
        assert "--new-key" in refused.stderr
        assert command(*arguments, "--key", stranger).exit_code == 2
        assert command(*arguments, "--key", "nonsense").exit_code == 2
        assert command(*arguments, "--key", key, "--new-key").exit_code == 2
        assert "gw" in model_of(hermes_file)["provider"]
        assert command(*arguments, "--key", key).exit_code == 0
        assert model_of(hermes_file)["api_key"] == key
        assert command(*arguments, "--new-key").exit_code == 0
        assert owner_of(home, model_of(hermes_file)["api_key"]) == "ollie"
        assert owner_of(home, key) is None

    def test_a_key_kept_in_a_variable_stays_there(self, command: Command, hermes_file: Path) -> None:
        key = added(command, "ollie")["key"]
        hermes_file.write_text("model:\n  api_key: ${GW_KEY}\n")
        result = command("connect", "hermes", "ollie", "--model", "m", GW_KEY=key)
        assert result.exit_code == 0, result.output
        assert model_of(hermes_file)["api_key"] == "${GW_KEY}"
        assert model_of(hermes_file)["default"] == "m"

    def test_a_bad_file_is_named_with_line_and_column_and_nothing_is_made(
        self, command: Command, home: Home, hermes_file: Path
    ) -> None:
        hermes_file.write_text("model:\n  default: [a\nb: 1\n")
        result = command("connect", "hermes", "ollie", "--model", "m")
        assert result.exit_code == 2
        assert "config.yaml:3: not valid YAML" in result.stderr
        assert "at column" in result.stderr
        assert not home.agents.exists()

    def test_a_file_that_cannot_be_written_costs_no_key(self, command: Command, home: Home, tmp_path: Path) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        result = command("connect", "hermes", "ollie", "--model", "m", "--config", str(blocked / "config.yaml"))
        assert result.exit_code == 2
        assert "config.yaml" in result.stderr
        assert not home.agents.exists()

    def test_without_a_governor_the_model_must_be_named(self, command: Command, home: Home, hermes_file: Path) -> None:
        result = command("connect", "hermes", "ollie")
        assert result.exit_code == 3
        assert "--model" in result.stderr
        assert not home.agents.exists()


class TestOpenClaw:
    def test_it_is_written_for_the_chosen_agent(self, command: Command, home: Home, openclaw_file: Path) -> None:
        arguments = ("connect", "openclaw", "claw", "--model", "qwen3", "--window", "131072")
        assert command(*arguments).exit_code == 2
        assert not home.agents.exists()
        result = command(*arguments, "--agent", "beta")
        assert result.exit_code == 0, result.output
        tree = settings_of(openclaw_file)
        provider = tree["models"]["providers"]["governor-claw"]
        assert owner_of(home, provider["apiKey"]) == "claw"
        assert tree["agents"]["entries"]["beta"]["model"] == "governor-claw/qwen3"
        for secret in (provider["apiKey"], "sk-openclaw-alpha", "sk-openclaw-beta"):
            assert secret not in result.output
        after = openclaw_file.read_text()
        assert "nothing to change" in command(*arguments, "--agent", "beta").stdout
        assert openclaw_file.read_text() == after
        assert len(list(openclaw_file.parent.glob("openclaw.json.bak-*"))) == 1

    def test_a_bad_file_is_named_with_line_and_column(self, command: Command, openclaw_file: Path) -> None:
        openclaw_file.write_text("{\n  a: 1\n  b: 2\n}\n")
        result = command("connect", "openclaw", "claw", "--model", "m")
        assert result.exit_code == 2
        assert "openclaw.json:3: not valid JSON5" in result.stderr
        assert "column 3" in result.stderr

    def test_a_missing_file_is_made_for_its_owner_only(self, command: Command, tmp_path: Path) -> None:
        path = tmp_path / "new" / "openclaw.json"
        assert command("connect", "openclaw", "claw", "--model", "m", "--config", str(path)).exit_code == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [each.name for each in path.parent.iterdir()] == ["openclaw.json"]


def test_the_sdk_lines_hold_a_key_that_works(command: Command, home: Home) -> None:
    result = command("connect", "sdk", "script", "--model", "m")
    key = result.stdout.split("export OPENAI_API_KEY=")[1].split()[0]
    assert owner_of(home, key) == "script"
    assert command("connect", "sdk", "script", "--model", "m", "--key", key).stdout == result.stdout


@pytest.fixture
async def beside(home: Home) -> AsyncIterator[Governed]:
    """A governor that runs from the home, with the note that it leaves for other commands."""
    async with (
        ScriptedEngine(knobs=Knobs(model="served-model")) as engine,
        governed(engine.url, home.root, agents=("owner",)) as gov,
    ):
        with instance.only_instance(home):
            instance.write_note(home, gov.url, time.time(), Secret(ADMIN_TOKEN))
            yield gov


async def test_beside_a_running_governor_address_model_and_window_are_real(
    beside: Governed, command: Command, hermes_file: Path
) -> None:
    told = await asyncio.to_thread(added, command, "ollie")
    assert (told["running"], told["base_url"], told["model"]) == (True, f"{beside.url}/v1", "served-model")
    assert told["window_tokens"] == (await beside.snapshot()).engine.window_tokens
    result = await asyncio.to_thread(command, "connect", "hermes", "hermes-main")
    assert result.exit_code == 0, result.output
    model = model_of(hermes_file)
    async with openai.AsyncOpenAI(base_url=model["base_url"], api_key=model["api_key"], max_retries=0) as client:
        answer = await client.chat.completions.create(
            model=model["default"], messages=[{"role": "user", "content": "hi"}], max_tokens=model["max_tokens"]
        )
    assert answer.choices[0].finish_reason == "stop"
    (end,) = await beside.ends()
    assert end.state == "ok"


async def test_a_policy_decides_which_model_is_written(
    beside: Governed, command: Command, home: Home, openclaw_file: Path
) -> None:
    policy_path(home.policies, "claw").write_text('models = ["its-own"]\n[context]\nceiling_tokens = 30000\n')
    result = await asyncio.to_thread(command, "connect", "openclaw", "claw", "--agent", "alpha")
    assert result.exit_code == 0, result.output
    tree = settings_of(openclaw_file)
    (model,) = tree["models"]["providers"]["governor-claw"]["models"]
    assert (model["id"], model["contextWindow"]) == ("its-own", 30000)
