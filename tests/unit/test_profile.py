"""Profiles: the shipped ones are good and say why; a bad one is told with file, line and key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from governor.errors import ConfigError
from governor.policy.lines import key_lines
from serve.profile import Profile, load_profile, shipped_names
from serve.profile.load import shipped_folder
from serve.profile.model import Section, version_key

EXPECTED = (
    "embedded",
    "nvidia-single",
    "nvidia-tp2",
    "rtx4090-48g",
    "rtx5090-32g",
    "rx7900xtx-tp2",
    "sglang-cpu",
    "upstream",
)
SELF_EXPLAINING = ("summary", "engine", "versions", "hardware", "install", "parsers", "parallel")
"""Tables that say what the profile is for; of the others one asks why."""
SWITCHES = ("hicache.enabled", "l3.backend", "model.served_name")
MINIMAL = 'summary = "x"\nengine = "sglang"\nversions = { oldest = "0.5.17", newest = "0.5.23" }\n'


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_shipped_profiles_are_these_and_load() -> None:
    assert shipped_names() == EXPECTED
    for name in EXPECTED:
        assert load_profile(name).name == name


@pytest.mark.parametrize("name", EXPECTED)
def test_every_value_that_somebody_decided_has_its_reason_beside_it(name: str) -> None:
    text = (shipped_folder() / f"{name}.toml").read_text()
    lines = text.splitlines()
    for path, line in key_lines(text).items():
        value: Any = tomllib.loads(text)
        for step in path:
            value = value[step]
        is_table = isinstance(value, dict) and lines[line - 1].startswith("[")
        if is_table or path[0] in SELF_EXPLAINING or ".".join(path) in SWITCHES:
            continue
        assert re.search(r"#\s*\w", lines[line - 1]), f"{name}.toml:{line}: no reason"


@pytest.mark.parametrize(
    ("text", "key", "line", "says"),
    [
        (MINIMAL + "[memory]\npage_sise = 64\n", "memory.page_sise", 5, "did you mean 'page_size'"),
        (MINIMAL + "[memory]\npage_size = 'x'\n", "memory.page_size", 5, "Expected `int"),
        (MINIMAL + "[memory]\npage_size = 0\n", "memory.page_size", 5, ">= 1"),
        (MINIMAL + "[parallel]\nnnodes = 2\n", "parallel.nnodes", 5, "<= 1"),
        (MINIMAL + "[hicache]\nio_backend = 'krnel'\n", "hicache.io_backend", 5, "Invalid enum value 'krnel'"),
        (MINIMAL + "name = 'other'\n", "name", 4, "named after its file"),
        (MINIMAL + "[l3]\nbackend = 'file'\n", "l3.backend", 5, "L3 is filled from L2"),
        (MINIMAL + "[hicache]\nratio = 2.0\nsize_gb = 3\n", "hicache.ratio", 5, "wins over"),
        (MINIMAL + "[memory]\npage_size = 64\nchunked_prefill_size = 100\n", "memory.chunked_prefill_size", 6, "mult"),
        (MINIMAL + "[memory]\npage_size = 64\n[mamba]\ntrack_interval = 96\n", "mamba.track_interval", 7, "multiple"),
        (
            MINIMAL + "[scheduling]\nprefill_decode_interval = 1\nmax_consecutive_prefill_batches = 1\n",
            "scheduling.max_consecutive_prefill_batches",
            6,
            "set one",
        ),
        (MINIMAL.replace("0.5.23", "0.5.16"), "versions.oldest", 3, "does not hold"),
        ("base = 'rtx4090'\n", "base", 1, "did you mean 'rtx4090-48g'"),
        (MINIMAL + "[flags]\n'max-foo' = 3\n", "flags", 4, "regex"),
    ],
)
def test_a_mistake_is_told_with_file_line_and_key(tmp_path: Path, text: str, key: str, line: int, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        load_profile(path)
    assert (caught.value.file, caught.value.key, caught.value.line) == (str(path), key, line)


def test_broken_toml_and_missing_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not valid TOML") as caught:
        load_profile(written(tmp_path, "summary = \n"))
    assert caught.value.line == 1
    with pytest.raises(ConfigError, match="no such file"):
        load_profile(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="did you mean 'sglang-cpu'"):
        load_profile("sglang-cpo")


def test_a_profile_of_mine_stands_on_a_shipped_one_key_by_key(tmp_path: Path) -> None:
    own = load_profile(written(tmp_path, 'base = "rx7900xtx-tp2"\n[model]\npath = "/w"\n[hicache]\nsize_gb = 16\n'))
    shipped = load_profile("rx7900xtx-tp2")
    assert own.model.path == "/w"
    assert own.hicache == msgspec.structs.replace(shipped.hicache, size_gb=16)
    assert own.mamba == shipped.mamba
    assert own.name == "mine"


def test_a_contradiction_between_base_and_mine_is_told_in_my_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'base = "rx7900xtx-tp2"\n[memory]\nchunked_prefill_size = 1000\n')
    with pytest.raises(ConfigError) as caught:
        load_profile(path)
    assert (caught.value.file, caught.value.line) == (str(path), 3)


def test_a_shipped_profile_cannot_stand_on_another(tmp_path: Path) -> None:
    written(tmp_path, MINIMAL, "one.toml")
    written(tmp_path, MINIMAL + 'base = "one"\n', "two.toml")
    with pytest.raises(ConfigError, match="stands alone"):
        load_profile("two", shipped=tmp_path)


def test_every_table_refuses_unknown_keys() -> None:
    tables = [field.type for field in msgspec.structs.fields(Profile) if isinstance(field.default, Section)]
    assert len(tables) > 10
    assert all(table.__struct_config__.forbid_unknown_fields for table in tables)


@pytest.mark.parametrize(
    ("text", "key"), [("0.5.23", (0, 5, 23)), ("0.5.19.dev3+g1", (0, 5, 19)), ("0.5.17.post1", (0, 5, 17)), ("x", ())]
)
def test_versions_compare_by_their_numbers(text: str, key: tuple[int, ...]) -> None:
    assert version_key(text) == key
