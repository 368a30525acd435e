"""One section of a YAML text is changed; every other line stays."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from governor.connect.model import Change
from governor.connect.yamltext import edited, read
from governor.errors import ConfigError

COMMENTED = """\
# my Hermes
terminal:
    - 'a'      # four spaces
    - b
model:         # who answers
  default: "old"   # a name
  # where
  base_url: http://x/v1
  extra: {A: b,   C: d}

# --- the rest ---

folded: this is one plain text that goes on
  over two lines
other: {x: 1,  y: [ 1,2 ]}
"""


def changed(text: str, *changes: tuple[str, object]) -> str:
    wanted: list[Change] = [(("model", name), value) for name, value in changes]
    return edited(text, "model", wanted, "config.yaml")


def test_values_change_in_place_and_new_ones_come_last_in_their_section() -> None:
    after = changed(COMMENTED, ("default", "new"), ("max_tokens", 8192))
    assert after == COMMENTED.replace('"old"', '"new"').replace(
        "  extra: {A: b,   C: d}\n", "  extra: {A: b, C: d}\n  max_tokens: 8192\n"
    )


def test_a_missing_section_is_added_at_the_end() -> None:
    for text in ("", "# only a comment\n", "a: 1", "a: 1\n\n# end\n"):
        after = changed(text, ("default", "new"))
        assert after.startswith(text)
        assert read(after, "f") == read(text, "f") | {"model": {"default": "new"}}


@pytest.mark.parametrize("text", ["model: old # name\nb: 1\n", "model:\nb: 1\n", "model: # none\n\nb: 1\n"])
def test_a_section_that_is_no_table_becomes_one(text: str) -> None:
    after = changed(text, ("default", "new"))
    assert read(after, "f") == {"model": {"default": "new"}, "b": 1}
    assert after.endswith("b: 1\n")


def test_a_whole_text_in_braces_is_changed_too() -> None:
    after = changed('{"model": {"default": "old"}, "b": [1]}\n', ("default", "new"))
    assert read(after, "f") == {"model": {"default": "new"}, "b": [1]}


def test_line_ends_stay() -> None:
    after = changed("a: 1\r\nmodel:\r\n  default: old\r\nb: 2\r\n", ("default", "new"))
    assert after == "a: 1\r\nmodel:\r\n  default: new\r\nb: 2\r\n"


@pytest.mark.parametrize(
    "name", ["on", "No", "null", "qwen3:8b", "123", "1e3", "12:30:00", "~", "a #b", "- x", "", "ü"]
)
def test_what_an_older_reader_would_not_take_for_text_is_quoted(name: str) -> None:
    older = YAML(typ="safe", pure=True)
    older.version = (1, 1)
    assert older.load(changed("", ("default", name))) == {"model": {"default": name}}


def test_an_alias_to_another_section_is_refused_and_not_lost() -> None:
    with pytest.raises(ConfigError, match="alias"):
        changed("a: &x\n  k: 1\nmodel:\n  extra: *x\n", ("default", "new"))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\nmodel: {b: 1\n", 3, "column 1"),
        ("a: 1\n\tb: 2\n", 2, "column 1"),
        ("a: 1\na: 2\n", 2, "duplicate key"),
        ("- a\n", None, "not a table"),
        ("just text\n", None, "not a table"),
    ],
)
def test_a_bad_text_is_refused_with_line_and_column(text: str, line: int | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read(text, "config.yaml")
    assert (caught.value.file, caught.value.line) == ("config.yaml", line)
