"""What is written into the configuration files of Hermes and OpenClaw, on files that worked with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from governor.connect import json5text, sdk, yamltext
from governor.connect.difference import unified
from governor.connect.hermes import HermesConfig
from governor.connect.model import Connection, at
from governor.connect.openclaw import OpenClawConfig
from governor.errors import ConfigError
from governor.settings import Secret

DATA = Path(__file__).parent.parent / "data" / "clients"
KEY = "gov-" + "k" * 43
CONNECTION = Connection(
    agent="main",
    base_url="http://127.0.0.1:8484/v1",
    key=Secret(KEY),
    model="qwen3",
    window_tokens=131072,
    output_tokens=8192,
)
MODEL = {
    "provider": "custom",
    "default": "qwen3",
    "base_url": "http://127.0.0.1:8484/v1",
    "api_key": KEY,
    "context_length": 131072,
    "max_tokens": 8192,
}


def connection(**changes: Any) -> Connection:
    return msgspec.structs.replace(CONNECTION, **changes)


def added_and_removed(before: str, after: str) -> list[str]:
    return [line for line in unified(before, after, "f").splitlines()[2:] if line[0] in "+-"]


class TestHermes:
    config = HermesConfig("config.yaml")

    @pytest.mark.parametrize("name", ["hermes-headers", "hermes-compress", "hermes-provider"])
    def test_only_the_connection_changes(self, name: str) -> None:
        before = (DATA / f"{name}.yaml").read_text()
        after = self.config.connected(before, CONNECTION).text
        tree = yamltext.read(before, "f")
        assert yamltext.read(after, "f") == tree | {"model": tree["model"] | MODEL}
        touched = {line[1:].split(":")[0].strip() for line in added_and_removed(before, after)}
        assert touched <= MODEL.keys()
        for comment in (line.split("#")[1] for line in before.splitlines() if "#" in line):
            assert comment in after
        assert self.config.connected(after, CONNECTION).text == after

    def test_from_nothing(self) -> None:
        assert yamltext.read(self.config.connected("", CONNECTION).text, "f") == {"model": MODEL}

    def test_a_small_window_is_never_told(self) -> None:
        told = self.config.connected("", connection(window_tokens=8192))
        assert yamltext.read(told.text, "f")["model"]["context_length"] == 64000
        assert "8,192" in told.notes[0]

    def test_an_unknown_window_is_left_as_it_is(self) -> None:
        unknown = connection(window_tokens=None)
        assert "context_length" not in yamltext.read(self.config.connected("", unknown).text, "f")["model"]
        assert self.config.connected("", unknown).notes
        kept = self.config.connected("model:\n  context_length: 98304\n", unknown)
        assert yamltext.read(kept.text, "f")["model"]["context_length"] == 98304
        assert not kept.notes

    def test_another_protocol_than_chat_is_taken_back(self) -> None:
        after = self.config.connected("model:\n  api_mode: anthropic_messages\n", CONNECTION).text
        assert yamltext.read(after, "f")["model"] == MODEL | {"api_mode": "chat_completions"}

    def test_the_key_that_is_there(self) -> None:
        assert self.config.present_key((DATA / "hermes-headers.yaml").read_text(), "main") == "${GW_KEY}"
        assert self.config.present_key("model: text\n", "main") is None


class TestOpenClaw:
    config = OpenClawConfig("openclaw.json")

    def test_from_nothing(self) -> None:
        tree = json5text.read(self.config.connected("", CONNECTION).text, "f")
        assert tree["agents"] == {"defaults": {"model": {"primary": "governor-main/qwen3"}}}
        (provider,) = tree["models"]["providers"].items()
        assert provider[0] == "governor-main"
        assert provider[1] | {"models": []} == {
            "baseUrl": "http://127.0.0.1:8484/v1",
            "apiKey": KEY,
            "api": "openai-completions",
            "timeoutSeconds": 900,
            "models": [],
        }
        (model,) = provider[1]["models"]
        assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("qwen3", 131072, 8192)
        assert model["compat"]["supportsPromptCacheKey"] is True
        assert model["compat"]["sendSessionAffinityHeaders"] is True
        assert model["compat"]["maxTokensField"] == "max_tokens"

    def test_nothing_else_changes_in_a_file_with_several_agents(self) -> None:
        before = (DATA / "openclaw-gateway.json").read_text()
        after = OpenClawConfig("f", "beta").connected(before, CONNECTION).text
        old, new = json5text.read(before, "f"), json5text.read(after, "f")
        assert new["agents"]["entries"]["beta"].pop("model") == "governor-main/qwen3"
        assert new["models"]["providers"].pop("governor-main")["apiKey"] == KEY
        old["agents"]["entries"]["beta"].pop("model")
        assert new == old
        assert len([line for line in added_and_removed(before, after) if line[0] == "-"]) == 1
        assert OpenClawConfig("f", "beta").connected(after, CONNECTION).text == after

    def test_a_second_run_changes_only_what_is_new(self) -> None:
        first = self.config.connected((DATA / "openclaw-basic.json").read_text(), CONNECTION).text
        assert self.config.connected(first, CONNECTION).text == first
        assert self.config.present_key(first, "main") == KEY
        wider = self.config.connected(first, connection(window_tokens=262144)).text
        assert [line.strip("+- ") for line in added_and_removed(first, wider)] == [
            '"contextWindow": 131072,',
            '"contextWindow": 262144,',
        ]
        other = json5text.read(self.config.connected(first, connection(model="other")).text, "f")
        models = other["models"]["providers"]["governor-main"]["models"]
        assert [model["id"] for model in models] == ["qwen3", "other"]

    @pytest.mark.parametrize(
        ("agents", "agent_id", "path"),
        [
            ("{}", None, ("defaults", "model", "primary")),
            ("{}", "main", ("defaults", "model", "primary")),
            ("{defaults: {model: 'a/b'}}", None, ("defaults", "model")),
            ("{defaults: {model: {primary: 'a/b', fallbacks: []}}}", None, ("defaults", "model", "primary")),
            ("{entries: {only: {}}}", None, ("entries", "only", "model")),
            ("{entries: {main: {}, x: {}}}", None, ("entries", "main", "model")),
            ("{entries: {main: {}, x: {model: {primary: 'a/b'}}}}", "x", ("entries", "x", "model", "primary")),
        ],
    )
    def test_whose_model_is_set(self, agents: str, agent_id: str | None, path: tuple[str, ...]) -> None:
        after = OpenClawConfig("f", agent_id).connected(f"{{agents: {agents}}}", CONNECTION).text
        assert at(json5text.read(after, "f"), ("agents", *path)) == "governor-main/qwen3"
        assert after.count("governor-main/qwen3") == 1

    @pytest.mark.parametrize(
        ("text", "agent_id", "says"),
        [
            ("{agents: {entries: {a: {}, b: {}}}}", None, "choose one with --agent .there are: a, b"),
            ("{agents: {entries: {a: {}}}}", "b", "'openclaw agents add b' makes one"),
            ("{}", "b", "'openclaw agents add b' makes one"),
            ("{agents: {list: [{id: 'a'}]}}", None, "openclaw doctor --fix"),
            ("{models: {$include: './m.json5'}}", None, "comes from another file .*m.json5"),
            ("{agents: {defaults: {$include: './d.json5'}}}", None, "agents.defaults: comes from another file"),
            ("[]", None, "not a table"),
        ],
    )
    def test_what_is_left_to_the_person(self, text: str, agent_id: str | None, says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            OpenClawConfig("openclaw.json", agent_id).connected(text, CONNECTION)

    def test_an_unknown_window_is_said_unless_the_file_has_one(self) -> None:
        unknown = connection(window_tokens=None)
        assert self.config.connected("", unknown).notes
        with_window = self.config.connected("", CONNECTION).text
        assert self.config.connected(with_window, unknown) == self.config.connected(with_window, CONNECTION)


def test_the_sdk_lines_survive_a_shell_and_python() -> None:
    odd = connection(model='a"b\\c', base_url="http://h/v1?x='1'")
    compile(sdk.snippet(odd), "snippet", "exec")
    assert "OPENAI_BASE_URL='http://h/v1?x='\"'\"'1'\"'\"''" in sdk.environment(odd)
