"""``governor plan``, and what it finds out about weights."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from governor.cli.plan import plan
from serve.errors import BadModelSource
from serve.model_files import model_facts
from serve.profile import load_profile
from tests.unit.test_plan import HYBRID_CONFIG

app = typer.Typer()
app.command()(plan)


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def test_the_incident_in_words_and_as_json() -> None:
    told = run("-p", "rx7900xtx-tp2", "--agents", "4", "--context", "65%")
    assert told.exit_code == 0
    assert "511,180" in told.stdout
    assert "231,914" in told.stdout
    assert "two can be active" in told.stdout
    made = msgspec.json.decode(run("-p", "rx7900xtx-tp2", "--agents", "4", "--context", "127795", "--json").stdout)
    assert made["fit"]["active"] == 2
    assert made["l1"]["kv_tokens"] == 231_914
    assert made["verdict"]


def test_figures_of_the_own_engine_win() -> None:
    figures = ("--kv-tokens", "600000", "--state-slots", "99", "--host-kv-tokens", "1000000")
    made = msgspec.json.decode(
        run("-p", "rx7900xtx-tp2", *figures, "--agents", "4", "--context", "65%", "--json").stdout
    )
    assert made["l1"] == {"kv_tokens": 600_000, "state_slots": 99}
    assert made["l2"]["kv_tokens"] == 1_000_000
    assert "all fit" in made["verdict"]
    assert "measured on your engine" in made["verdict"]


def test_policies_are_agents(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text("[context]\nceiling_tokens = 70000\n[limits]\nconcurrency = 2\n")
    (tmp_path / "large.toml").write_text("# the whole window\n")
    made = msgspec.json.decode(run("-p", "rx7900xtx-tp2", "--policies", str(tmp_path), "--json").stdout)
    assert made["demands"] == [
        {"name": "large", "ceiling_tokens": 196_608, "concurrency": 4},
        {"name": "small", "ceiling_tokens": 70_000, "concurrency": 2},
    ]
    assert made["fit"]["peak_tokens"] == 4 * 196_608 + 2 * 70_000
    table = run("-p", "rx7900xtx-tp2", "--policies", str(tmp_path)).stdout
    assert "small" in table
    assert "30%" in table


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-p", "upstream"), "not ours"),
        (("-p", "rx7900xtx-tp2", "--agents", "2", "--context", "many"), "give tokens"),
        (("-p", "rx7900xtx-tp2", "--agents", "2", "--policies", "."), "or --agents"),
        (("-p", "rx7900xtx-tp2", "--gpu-memory", "8"), "does not fit"),
        (("-p", "nosuch"), "no shipped profile"),
    ],
)
def test_what_cannot_be_planned_is_refused(args: tuple[str, ...], said: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_an_empty_folder_of_policies_is_refused(tmp_path: Path) -> None:
    assert run("-p", "rx7900xtx-tp2", "--policies", str(tmp_path)).exit_code == 2


def test_a_folder_of_weights_is_weighed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HYBRID_CONFIG))
    profile = load_profile("nvidia-single")
    assert model_facts(profile, str(tmp_path)).weights_assumed
    (tmp_path / "model-1.safetensors").write_bytes(b"x" * 1000)
    found = model_facts(profile, str(tmp_path))
    assert (found.weight_bytes, found.weights_assumed, found.shape.linear_layers) == (1000, False, 6)


def test_the_hubs_cache_is_looked_at(tmp_path: Path) -> None:
    repository = tmp_path / "models--me--mine"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text(json.dumps(HYBRID_CONFIG))
    found = model_facts(load_profile("nvidia-single"), "me/mine", hub_cache=tmp_path)
    assert found.shape.linear_layers == 6


def test_the_weights_of_the_shipped_profiles_are_guessed_by_their_names(tmp_path: Path) -> None:
    sizes = {
        name: model_facts(load_profile(name), hub_cache=tmp_path).weight_bytes / 1e9
        for name in ("rx7900xtx-tp2", "rtx4090-48g", "rtx5090-32g")
    }
    assert sizes == {
        "rx7900xtx-tp2": pytest.approx(19.5, abs=0.2),
        "rtx4090-48g": pytest.approx(30.8, abs=0.2),
        "rtx5090-32g": pytest.approx(20.6, abs=0.3),
    }


@pytest.mark.parametrize("text", ["[1]", "{", '{"text_config": [1]}', ""])
def test_a_configuration_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    done = run("-p", "rx7900xtx-tp2", "--model", str(tmp_path))
    assert done.exit_code == 6
    assert "config.json" in done.stderr


@pytest.mark.parametrize(
    ("model", "said"), [("/no/such", "no folder"), ("who/what", "nothing is known"), (".", "config.json")]
)
def test_weights_nothing_is_known_of(tmp_path: Path, model: str, said: str) -> None:
    at = str(tmp_path) if model == "." else model
    with pytest.raises(BadModelSource, match=said):
        model_facts(load_profile("nvidia-single"), at, hub_cache=tmp_path)
