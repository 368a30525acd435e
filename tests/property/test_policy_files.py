"""Properties of reading and editing policy files, over texts in every layout that tomlkit can write."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.errors import ConfigError
from governor.policy.edit import Value, set_key, unset_key
from governor.policy.lines import key_lines
from governor.policy.loader import load_shipped, shipped_folder
from governor.policy.resolve import Resolved, parse, resolve_agent

SHIPPED = load_shipped(shipped_folder())

NAMES = st.sampled_from(["output", "final", "limits", "a b", "a.b", "é", '"', "'", "#", "[x]", "-", "1"])
STRINGS = st.text(alphabet="ab\"'\\\n\t#[]{}=,. é", max_size=8)
SCALARS = st.one_of(st.integers(-5, 10**6), st.booleans(), st.floats(allow_nan=False), STRINGS, st.datetimes())
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
TREES = st.recursive(
    st.dictionaries(NAMES, VALUES, max_size=3),
    lambda inner: st.dictionaries(NAMES, st.one_of(VALUES, inner, st.lists(inner, min_size=1, max_size=2)), max_size=4),
    max_leaves=8,
)


def paths(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for name, value in tree.items():
        found.add((*above, name))
        if isinstance(value, dict):
            found |= paths(value, (*above, name))
    return found


def holds_tables(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) or holds_tables(item) for item in value)


@given(TREES, st.booleans())
def test_every_key_has_a_line_that_names_it(tree: dict[str, Any], comments: bool) -> None:
    text = tomlkit.dumps(tree)
    if comments:
        text = f"# {{[=\n\n{text}"
    reread = tomllib.loads(text)
    lines = key_lines(text)
    in_lists = {path for path in paths(reread) if holds_tables(_at(reread, path))}
    for path in paths(reread):
        named = text.split("\n")[lines[path] - 1]
        plain = path[-1].isascii() and path[-1].isalnum()
        assert not plain or path[-1] in named
    # What stands inside a list of tables may be listed too; nothing else may.
    for extra in lines.keys() - paths(reread):
        assert any(extra[: len(path)] == path for path in in_lists)


def _at(tree: Mapping[str, Any], path: tuple[str, ...]) -> object:
    value: Any = tree
    for name in path:
        value = value[name]
    return value


FRAGMENTS = st.sampled_from(
    ["[output]\n", "final", "=", " = ", "-1", "8", '"', "'''", "{", "}", "[", "]", "\n", "#", ".", "base", "hermes",
     "[[x]]\n", "request.sampling", "top_p", "nan", "inf", "1e999", "\\u", "\r", "\0", "é", "class", "models", ","]
)  # fmt: skip


def outcome(text: str) -> Resolved | ConfigError:
    try:
        return resolve_agent(parse(text, "a.toml"), SHIPPED)
    except ConfigError as error:
        return error


@given(st.lists(FRAGMENTS, max_size=14).map("".join))
def test_any_text_gives_a_policy_or_an_error_that_names_the_file(text: str) -> None:
    it = outcome(text)
    if isinstance(it, ConfigError):
        assert it.file == "a.toml"
        assert it.line is None or 1 <= it.line <= text.count("\n") + 1


@given(TREES)
def test_any_tree_gives_a_policy_or_an_error_on_a_keys_own_line(tree: dict[str, Any]) -> None:
    text = tomlkit.dumps(tree) or "# empty"
    it = outcome(text)
    if isinstance(it, ConfigError):
        assert it.key is not None
        assert it.line in key_lines(text).values()


LAYOUTS = st.sampled_from(
    [
        "# empty\n",
        "class = 'normal' # mine\n",
        "[limits] # mine\nqueue = 3\n\n[output]\nfinal = 99 # mine\n",
        "limits.queue = 3 # mine\noutput.final = 99\n",
        "limits = { queue = 3 } # mine\n",
        "[output]\nfinal = 99\n[limits]\n# mine\n",
        "[request.sampling]\ntop_p = 0.5 # mine\n[limits]\nqueue = 3",
        "request.sampling.top_p = 0.5\n[limits]\nqueue = 3 # mine\r\n",
    ]
)
EDITS = st.one_of(
    st.tuples(st.sampled_from(["output.final", "output.tool_step", "limits.queue"]), st.integers(50, 90)),
    st.tuples(st.sampled_from(["request.sampling.top_p", "request.sampling.min_p"]), st.floats(0, 1)),
    st.tuples(st.just("class"), st.sampled_from(["interactive", "background"])),
    st.tuples(st.just("models"), st.lists(st.sampled_from(["m", "n"]), max_size=2)),
    st.tuples(st.sampled_from(["output.final", "class", "limits.queue", "request.sampling.top_p"]), st.none()),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policies") / "ollie.toml"


@settings(max_examples=60)
@given(text=LAYOUTS, edits=st.lists(EDITS, min_size=1, max_size=5))
def test_edits_do_what_they_say_and_lose_no_comment(
    file: Path, text: str, edits: list[tuple[str, Value | None]]
) -> None:
    file.write_bytes(text.encode())
    expected: dict[str, Value | None] = {}
    for key, value in edits:
        resolved = unset_key(file, key, SHIPPED) if value is None else set_key(file, key, value, SHIPPED)
        expected[key] = value
    for key, value in expected.items():
        source = resolved.sources.get(key)
        if value is None:
            assert source is None or source.file != str(file)
        else:
            assert source is not None
            assert source.file == str(file)
            got = _at(tomllib.loads(file.read_text()), tuple(key.split(".")))
            assert got == value
    if all(value is not None for _, value in edits):
        assert ("# mine" in text) == ("# mine" in file.read_text())
