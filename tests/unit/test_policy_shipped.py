"""The shipped policies say what the model says, and what the clients need."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.errors import ConfigError
from governor.policy.keys import all_keys
from governor.policy.loader import load_shipped, shipped_folder
from governor.policy.model import KeepAlive, Policy
from governor.policy.resolve import BUILT_IN, resolve_agent
from governor.types import AgentClass

SHIPPED = load_shipped(shipped_folder())


def policy(name: str) -> Policy:
    return resolve_agent(SHIPPED[name], SHIPPED).policy


def test_the_default_spells_out_every_built_in_value() -> None:
    it = resolve_agent(None, SHIPPED)
    assert it.policy == Policy()
    silent = {key for key, source in it.sources.items() if source.file == BUILT_IN}
    assert silent == {key.dotted for key in all_keys() if key.default is None}


def test_the_default_mentions_the_keys_that_it_leaves_unset() -> None:
    text = (shipped_folder() / "default.toml").read_text(encoding="utf-8")
    for key in all_keys():
        assert key.default is not None or f"# {key.path[-1]} =" in text


@pytest.mark.parametrize("name", ["hermes", "openclaw"])
def test_clients_with_timers_above_the_parser_get_chunks(name: str) -> None:
    it = policy(name)
    assert it.stream.keepalive is KeepAlive.CHUNK
    assert it.stream.keepalive_every_s <= 15
    assert 10_000 <= it.output.compaction <= 12_000
    assert 500 <= it.output.title <= 512


def test_classes_of_work() -> None:
    assert policy("interactive").agent_class is AgentClass.INTERACTIVE
    assert policy("background").agent_class is AgentClass.BACKGROUND


@pytest.mark.parametrize("path", sorted(shipped_folder().glob("*.toml")), ids=lambda path: path.stem)
def test_each_value_has_its_reason_beside_it(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if " = " in line and not line.startswith("# "):
            assert "  # " in line, line


def test_a_shipped_policy_may_not_stand_on_another(tmp_path: Path) -> None:
    (tmp_path / "default.toml").write_text("# all built-in\n")
    (tmp_path / "odd.toml").write_text('class = "normal"\nbase = "default"\n')
    with pytest.raises(ConfigError, match=r"odd\.toml:2: base:"):
        load_shipped(tmp_path)


def test_a_folder_without_a_default_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"default\.toml"):
        load_shipped(tmp_path)
