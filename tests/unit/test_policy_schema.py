"""Generated files are up to date and say something about every key."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from governor.policy import model
from governor.policy.keys import all_keys
from governor.policy.schema import PAGE, SCHEMA_FILE, TABLE_BEGIN, TABLE_END, explain, page_text, schema, schema_text


def test_the_schema_file_is_current() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run python -m governor.policy.schema --write"


def test_the_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_text(page), "run python -m governor.policy.schema --write"


def test_a_stale_page_is_noticed_and_mended() -> None:
    page = PAGE.read_text(encoding="utf-8")
    stale = page.replace("`output.final`", "`output.fnal`")
    assert stale != page
    assert page_text(stale) == page
    with pytest.raises(ValueError, match="marks"):
        page_text(page.replace(TABLE_END, ""))


def test_the_page_lists_every_key() -> None:
    table = PAGE.read_text(encoding="utf-8").partition(TABLE_BEGIN)[2].partition(TABLE_END)[0]
    for key in all_keys():
        assert f"| `{key.dotted}` | {key.type_text} |" in table
        assert "typing." not in key.type_text


def test_every_key_is_explained_in_the_schema() -> None:
    tree = schema()
    for key in all_keys():
        properties = tree["$defs"][key.owner.__name__]["properties"]
        assert properties[key.path[-1]]["description"] == explain(key)
        assert len(explain(key)) >= len("What to send.")


def test_choices_are_explained_too() -> None:
    keepalive = next(key for key in all_keys() if key.dotted == "stream.keepalive")
    assert "`chunk`: A chunk with `choices: []`" in explain(keepalive)


def test_the_keys_are_the_models_own() -> None:
    flat: dict[str, Any] = {}
    for name, value in model.as_tree(model.Policy()).items():
        flat |= {f"{name}.{inner}": it for inner, it in value.items()} if isinstance(value, dict) else {name: value}
    assert [key.dotted for key in all_keys()] == list(flat)
    assert json.dumps([key.default for key in all_keys()]) == json.dumps(list(flat.values()))


def test_the_command_checks_without_writing() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "governor.policy.schema"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (0, "")
    json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
