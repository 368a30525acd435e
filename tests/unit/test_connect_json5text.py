"""Single settings of a JSON5 text are changed; every other byte stays."""

from __future__ import annotations

import json
from typing import Any

import json5
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.connect.json5text import edited, read
from governor.connect.model import Path, put
from governor.errors import ConfigError

COMMENTED = """\
// my OpenClaw
{
  gateway: { port: 18789, bind: 'loopback' }, // local only
  /* the models */
  models: {
    mode: "merge",
    providers: {
      // the first one
      'gw': { apiKey: 'it\\'s "mine"', }, // keep
    },
  },
  agents: {}, // none yet
  list: [1, 2],
}
"""


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        (("gateway", "port"), 1, "18789", "1"),
        (("gateway", "auth"), "x", "bind: 'loopback' }", 'bind: \'loopback\', "auth": "x" }'),
        (("models", "mode"), "replace", '"merge"', '"replace"'),
        (("models", "new"), 1, "    },\n  },\n  agents", '    },\n    "new": 1,\n  },\n  agents'),
        (("models", "providers", "b"), 1, ", }, // keep\n", ', }, // keep\n      "b": 1,\n'),
        (("models", "providers", "gw", "b"), 1, "mine\"', }", 'mine"\', "b": 1 }'),
        (("agents", "a"), {"b": 1}, "agents: {},", 'agents: {\n    "a": {\n      "b": 1\n    }\n  },'),
        (("list", 2), 3, "[1, 2]", "[1, 2, 3]"),
        (("list", 0), {"a": 1}, "[1, 2]", '[{\n    "a": 1\n  }, 2]'),
        (("end",), None, "  list: [1, 2],\n", '  list: [1, 2],\n  "end": null,\n'),
    ],
)
def test_one_change_leaves_all_else(path: Path, value: object, old: str, new: str) -> None:
    assert COMMENTED.count(old) == 1
    assert edited(COMMENTED, [(path, value)], "f") == COMMENTED.replace(old, new)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("{}", '{\n  "a": {\n    "b": 1\n  }\n}'),
        ("{ // nothing\n}", '{ // nothing\n  "a": {\n    "b": 1\n  }\n}'),
        ('{"c": 2}', '{"c": 2, "a": {\n  "b": 1\n}}'),
        ('{\n\t"c": 2\n}', '{\n\t"c": 2,\n\t"a": {\n\t\t"b": 1\n\t}\n}'),
        ('{\r\n    "c": 2\r\n}\r\n', '{\r\n    "c": 2,\r\n    "a": {\r\n        "b": 1\r\n    }\r\n}\r\n'),
        ("{\n  c: 2 // no comma\n}", '{\n  c: 2, // no comma\n  "a": {\n    "b": 1\n  }\n}'),
        ("{\n  c: 2 }", '{\n  c: 2,\n  "a": {\n    "b": 1\n  }\n}'),
        ("{\n  a: null, // soon\n}", '{\n  a: {\n    "b": 1\n  }, // soon\n}'),
        ("{\n  c: 2\n  // the end\n}", '{\n  c: 2,\n  "a": {\n    "b": 1\n  }\n  // the end\n}'),
        ("{\n  c: 2\n  , // late\n}", '{\n  c: 2\n  , // late\n  "a": {\n    "b": 1\n  },\n}'),
    ],
)
def test_a_new_entry_is_laid_out_like_its_neighbours(before: str, after: str) -> None:
    assert edited(before, [(("a", "b"), 1)], "f") == after


def test_of_two_entries_with_one_name_the_one_that_counts_is_changed() -> None:
    assert edited("{a: 1, a: 2}", [(("a",), 3)], "f") == "{a: 1, a: 3}"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', 3, "column 3"),
        ("{a: 1", 1, "column 6"),
        ("{\n a: [1,\n}", 3, "column 1"),
        ("{a: 1} x", 1, "column 8"),
    ],
)
def test_a_bad_text_is_refused_with_line_and_column(text: str, line: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read(text, "openclaw.json")
    assert (caught.value.file, caught.value.line) == ("openclaw.json", line)


def test_a_text_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        read("[" * 100_000, "f")


NAMES = st.sampled_from(["a", "b", "model", "x-y", "ü", 'q"t', "1"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "it's \"", "/*", "//", "{,}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
TABLES = st.dictionaries(NAMES, VALUES, max_size=4)


@settings(max_examples=150, deadline=None)
@given(tree=TABLES, path=st.lists(NAMES, min_size=1, max_size=4), value=VALUES, style=st.integers(0, 3))
def test_any_change_of_any_text_reads_back_as_that_change(
    tree: dict[str, Any], path: list[str], value: object, style: int
) -> None:
    text = [
        json.dumps(tree),
        json.dumps(tree, indent=2),
        json5.dumps(tree, indent=4, trailing_commas=True),
        "// c\n" + json.dumps(tree, indent=1).replace(",\n", ", /* c */ // c\n") + "\n// c",
    ][style]
    assert read(edited(text, [(tuple(path), value)], "f"), "f") == put(tree, tuple(path), value)
