"""From options to a profile, and whether answers flow."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from governor.cli.choices import EngineOptions
from governor.cli.engine import chosen_profile, chosen_twin
from governor.cli.engine_care import Flow
from governor.errors import ConfigError
from governor.snapshot import TurnView
from serve.errors import ProfileRefused
from serve.profile.model import EngineKind
from serve.profile.tiers import LowerTier
from serve.twin_launcher import TwinOptions, twin_argv

URL = "http://127.0.0.1:1"


def test_without_a_profile_it_is_the_embedded_engine_or_the_upstream() -> None:
    assert chosen_profile(EngineOptions()).name == "embedded"
    assert chosen_profile(EngineOptions(upstream=URL)).name == "upstream"


def test_options_stand_over_the_profile(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "embedded"\n[model]\ncontext_length = 8192\n[llamacpp]\nslots = 3\n')
    mine = chosen_profile(EngineOptions(profile=str(file)))
    assert (mine.model.context_length, mine.llamacpp.slots) == (8192, 3)
    mine = chosen_profile(EngineOptions(profile=str(file), context_tokens=4096, slots=1))
    assert (mine.model.context_length, mine.llamacpp.slots) == (4096, 1)
    sglang = chosen_profile(EngineOptions(profile="sglang-cpu", context_tokens=65536))
    assert (sglang.engine, sglang.model.context_length) == (EngineKind.SGLANG, 65536)


def test_a_tier_may_be_left_out() -> None:
    assert chosen_profile(EngineOptions(profile="sglang-cpu", without=(LowerTier.L3,))).l3.backend is None
    assert chosen_profile(EngineOptions(without=(LowerTier.L2,))).llamacpp.cache_ram_mib == 0
    with pytest.raises(ProfileRefused, match="not ours"):
        chosen_profile(EngineOptions(upstream=URL, without=(LowerTier.L2,)))


@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(profile="upstream"),
        EngineOptions(profile="sglang-cpu", upstream=URL),
        EngineOptions(upstream=URL, model="x"),
        EngineOptions(upstream=URL, context_tokens=4096),
        EngineOptions(profile="sglang-cpu", slots=3),
        EngineOptions(profile="embedded", python=Path("python")),
    ],
)
def test_what_does_not_fit_ends_the_command(options: EngineOptions, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        chosen_profile(options)
    assert ended.value.code == 2
    assert "profile " in capsys.readouterr().err


def test_a_twin_is_chosen_by_its_machine() -> None:
    assert chosen_twin(EngineOptions(profile="sglang-cpu", speed=2)) is None
    assert chosen_twin(EngineOptions(profile="twin:sglang-cpu")) == TwinOptions(machine="sglang-cpu")
    chosen = chosen_twin(EngineOptions(profile="twin:mine.toml", speed=60, script=Path("s.toml"), seed=7))
    assert chosen == TwinOptions(machine="mine.toml", speed=60, script=Path("s.toml"), seed=7)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (EngineOptions(upstream=URL), "--upstream"),
        (EngineOptions(model="x"), "--model"),
        (EngineOptions(context_tokens=4096), "--context"),
        (EngineOptions(slots=3), "--slots"),
        (EngineOptions(python=Path("python")), "--python"),
        (EngineOptions(without=(LowerTier.L3,)), "--without"),
    ],
)
def test_a_twin_takes_nothing_of_other_engines(
    options: EngineOptions, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        chosen_twin(replace(options, profile="twin:sglang-cpu"))
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("options", [EngineOptions(speed=60), EngineOptions(seed=0), EngineOptions(script=Path("x"))])
def test_only_a_twin_has_a_speed(options: EngineOptions, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        chosen_profile(options)
    assert ended.value.code == 2
    assert "--profile twin:MACHINE" in capsys.readouterr().err


def test_a_twin_is_started_from_anywhere(tmp_path: Path) -> None:
    options = TwinOptions(machine="mine.toml", speed=0.5, script=Path("answers.toml"), seed=3)
    argv = twin_argv(options, port=1, kv_events="ipc://a", kv_replay="ipc://b", plugin_socket=tmp_path)
    told = dict(zip(argv[5::2], argv[6::2], strict=True))
    assert told == {
        "--machine": str(Path("mine.toml").absolute()),
        "--port": "1",
        "--speed": "0.5",
        "--seed": "3",
        "--kv-events-endpoint": "ipc://a",
        "--kv-replay-endpoint": "ipc://b",
        "--plugin-socket": str(tmp_path),
        "--script": str(Path("answers.toml").absolute()),
    }


def test_an_unknown_profile_is_named() -> None:
    with pytest.raises(ConfigError, match="sglang-cpu"):
        chosen_profile(EngineOptions(profile="sglang-cqu"))


def turn(turn_id: str, generated_bytes: int) -> TurnView:
    return TurnView(turn_id=turn_id, agent="a", route="/", phase="decode", since=0, generated_bytes=generated_bytes)


def test_only_answers_that_grow_are_a_sign_of_life() -> None:
    flow = Flow()
    assert not flow.has_grown([])
    assert not flow.has_grown([turn("1", 0)])  # it waits
    assert flow.has_grown([turn("1", 10)])
    assert not flow.has_grown([turn("1", 10)])
    assert not flow.has_grown([turn("2", 0)])  # given up, and a new one that waits
    assert flow.has_grown([turn("2", 0), turn("3", 5)])
    assert not flow.has_grown([])
