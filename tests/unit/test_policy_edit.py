"""Editing one key keeps all else: comments, order, layout, links, modes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from governor.errors import ConfigError
from governor.policy.edit import Value, set_key, starter, unset_key, value_of
from governor.policy.loader import load_shipped, shipped_folder
from governor.policy.resolve import Resolved, parse, resolve_agent

SHIPPED = load_shipped(shipped_folder())

TEXT = """\
# my agent
base = "hermes"      # it is one

[output]             # tokens
final = 4096         # short answers
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ollie.toml"
    path.write_text(TEXT)
    return path


def test_a_value_is_changed_and_the_comment_beside_it_stays(file: Path) -> None:
    resolved = set_key(file, "output.final", 2048, SHIPPED)
    assert file.read_text() == TEXT.replace("final = 4096  ", "final = 2048  ")
    assert resolved.policy.output.final == 2048
    assert resolved.sources["output.final"].line == 5


def test_a_new_key_of_the_file_does_not_fall_into_its_last_table(file: Path) -> None:
    assert set_key(file, "class", "interactive", SHIPPED).policy.agent_class == "interactive"
    assert "final = 4096         # short answers" in file.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "# nothing\n",
        "[limits]\nqueue = 3 # few\n",
        "limits.queue = 3 # few\n",
        "limits = { queue = 3 } # few\n",
        "[limits]\nqueue = 3 # few\n[output]\nfinal = 99\n",
        "[stream]\nkeepalive = 'chunk'",
    ],
)
def test_every_layout_can_be_added_to_and_taken_from(file: Path, text: str) -> None:
    file.write_text(text)
    before = resolve_agent(parse(text, "x"), SHIPPED).policy
    assert set_key(file, "limits.concurrency", 9, SHIPPED).policy.limits.concurrency == 9
    for comment in ("# few", "# nothing"):
        assert (comment in file.read_text()) == (comment in text)
    assert unset_key(file, "limits.concurrency", SHIPPED).policy == before
    assert unset_key(file, "limits.concurrency", SHIPPED).policy == before


def test_a_list_and_a_sampling_field(file: Path) -> None:
    assert set_key(file, "models", ["a", "b"], SHIPPED).policy.models == ("a", "b")
    assert set_key(file, "request.sampling.temperature", 0.2, SHIPPED).policy.request.sampling == {"temperature": 0.2}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("output.finl", 3, "did you mean 'final'"),
        ("output.final", -1, ">= 1"),
        ("output.floor", 5000, "below output.floor"),
        ("base", "hermse", "did you mean 'hermes'"),
        ("base.x", 1, "base"),
        ("output", 1, "output"),
        ("", 1, "unknown key"),
    ],
)
def test_what_would_be_bad_is_not_written(file: Path, key: str, value: Value, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        set_key(file, key, value, SHIPPED)
    assert file.read_text() == TEXT


def test_a_file_that_is_bad_already_is_left_alone(file: Path) -> None:
    file.write_text("{{{")
    with pytest.raises(ConfigError, match="not valid TOML"):
        set_key(file, "output.final", 3, SHIPPED)
    assert file.read_text() == "{{{"


def test_a_missing_file_is_made_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "policies" / "ada.toml"
    set_key(path, "output.final", 300, SHIPPED)
    assert path.read_text() == starter(None) + "\n[output]\nfinal = 300\n"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("base", [None, "hermes"])
def test_the_starter_is_a_good_policy(base: str | None) -> None:
    assert resolve_agent(parse(starter(base), "x"), SHIPPED).policy.base == base


def test_link_and_mode_are_kept(file: Path, tmp_path: Path) -> None:
    file.chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    set_key(link, "output.final", 77, SHIPPED)
    assert link.is_symlink()
    assert "final = 77" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640


def test_editors_take_turns(file: Path) -> None:
    """Each adds its own key; without the lock some would write over others."""
    names = [f"field_{number}" for number in range(12)]
    threads = [threading.Thread(target=set_key, args=(file, f"request.sampling.{name}", 1, SHIPPED)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    policy = resolve_agent(parse(file.read_text(), "x"), SHIPPED).policy
    assert policy.request.sampling == dict.fromkeys(names, 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("0.5", 0.5),
        ("true", True),
        ('"true"', "true"),
        ("chunk", "chunk"),
        ('["a", "b"]', ["a", "b"]),
        ("1\nother = 2", "1\nother = 2"),
        ("", ""),
        ("nan", "nan"),
        ("-inf", "-inf"),
    ],
)
def test_what_a_person_types(text: str, value: Value) -> None:
    assert value_of(text) == value


def test_a_last_check_comes_before_the_file_is_written(file: Path) -> None:
    def too_much(resolved: Resolved) -> None:
        if resolved.policy.share.floor_tokens > 10:
            raise ConfigError("is more than there is", file=str(file), key="share.floor_tokens")

    assert set_key(file, "share.floor_tokens", 10, SHIPPED, too_much).policy.share.floor_tokens == 10
    before = file.read_text()
    with pytest.raises(ConfigError, match="is more than there is"):
        set_key(file, "share.floor_tokens", 11, SHIPPED, too_much)
    assert file.read_text() == before
