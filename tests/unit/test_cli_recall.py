"""``governor recall`` and ``governor compactions``: what a person and a script are told of the archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from governor.cli.compactions import compactions
from governor.cli.console import Exit
from governor.cli.readable import readable
from governor.cli.recall import recall
from governor.settings import Home
from governor.store.archive_model import CompactedBy, LeftText
from governor.store.database import sqlite_url
from tests.archive_records import archive, compaction, head, left
from tests.store_records import T0

HANDLE = "gov-0123456789abcdef"
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "why does it fail?"},
    {
        "role": "assistant",
        "reasoning_content": "look first",
        "content": None,
        "tool_calls": [{"id": "c1", "function": {"name": "read_file", "arguments": '{"path":"a.py"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "line 1\nline 2"}]},
]
app = typer.Typer()
app.command()(recall)
app.command()(compactions)


def run(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [arguments[0], "--home", str(home), *arguments[1:]], catch_exceptions=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of two agents: ada with a list of messages under HANDLE, bob with a text."""
    messages = LeftText(handle=HANDLE, body=msgspec.json.encode(MESSAGES), what="3 [bold]messages[/] \x1b[31m")
    missed = compaction(
        "t2", agent="bob", at=T0 + 1, outcome="gain too small", after_tokens=None, detail="[red]1[/] \x1b]0;x"
    )
    by_client = compaction("t3", at=T0 + 2, by=CompactedBy.CLIENT, before_tokens=None, stages="a, b")
    with archive(sqlite_url(Home(tmp_path).database)) as kept:
        kept.keep(head("a"), (messages,), compaction("t1"))
        kept.keep(head("b", agent="bob"), (left("of bob"),), compaction("t0", agent="bob", at=T0 - 1))
        kept.note(missed)
        kept.note(by_client)
        assert kept.flush(10)
    return tmp_path


def test_messages_are_told_role_by_role_and_where_they_left_beside_them(home: Path) -> None:
    told = run(home, "recall", HANDLE)
    assert told.exit_code == Exit.OK
    assert told.stdout == (
        "--- user\nwhy does it fail?\n\n"
        '--- assistant\n(reasoning) look first\n-> read_file({"path":"a.py"})\n\n'
        "--- tool c1\nline 1\nline 2\n"
    )
    for fact in ("ada", "s1", "t1", "3 [bold]messages[/] \\x1b[31m"):
        assert fact in told.stderr.replace("\n", " ")


def test_raw_is_byte_for_byte_and_json_has_the_facts(home: Path) -> None:
    assert run(home, "recall", HANDLE, "--raw").stdout_bytes == msgspec.json.encode(MESSAGES)
    told = json.loads(run(home, "recall", HANDLE, "--json").stdout)
    assert told == {
        "handle": HANDLE,
        "agent": "ada",
        "session": "s1",
        "turn_id": "t1",
        "left_at": T0,
        "what": "3 [bold]messages[/] \x1b[31m",
        "body": MESSAGES,
    }
    assert run(home, "recall", HANDLE, "--json", "--raw").exit_code == Exit.USAGE


def test_a_handle_of_another_agent_is_named_as_such(home: Path) -> None:
    assert run(home, "recall", left("of bob").handle, "--agent", "bob").stdout == "of bob\n"
    told = run(home, "recall", HANDLE, "--agent", "bob")
    assert told.exit_code == Exit.FAILED
    assert "of agent ada, not of 'bob'" in told.stderr.replace("\n", " ")


def test_an_unknown_handle_says_what_may_have_happened(home: Path) -> None:
    told = run(home, "recall", "gov-ffffffffffffffff")
    assert told.exit_code == Exit.FAILED
    assert told.stdout == ""
    assert "nothing under gov-ffffffffffffffff" in told.stderr
    assert "archive_days" in told.stderr


@pytest.mark.parametrize("handle", ["gov-xyz", "0123456789abcdef", "gov-0123456789ABCDEF", "t-1", "\x1b[31m", ""])
def test_a_malformed_handle_says_what_a_handle_is(home: Path, handle: str) -> None:
    told = run(home, "recall", handle)
    assert told.exit_code == Exit.USAGE
    assert "16 hexadecimal digits" in told.stderr
    assert "\x1b" not in told.stderr


def test_an_agents_key_is_not_repeated(home: Path) -> None:
    key = "gov-" + "A" * 43
    told = run(home, "recall", key)
    assert told.exit_code == Exit.USAGE
    assert key not in told.stderr


def test_without_a_log_it_says_so(tmp_path: Path) -> None:
    for arguments in (("recall", HANDLE), ("compactions",)):
        told = run(tmp_path, *arguments)
        assert told.exit_code == Exit.NOT_RUNNING
        assert "no turn log" in told.stderr


def test_compactions_are_a_table_oldest_first(home: Path) -> None:
    told = run(home, "compactions")
    assert told.exit_code == Exit.OK
    lines = told.stdout.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["bob", "ada", "bob", "ada"]
    assert "140,000  60,000  -57%" in lines[2]
    assert "gain too small" in lines[3]
    assert "140,000  -       -" in lines[3]
    assert "[red]1[/] \\x1b]0;x" in lines[3]
    assert "\x1b" not in told.stdout
    assert "client" in lines[4]


def test_compactions_of_one_agent_and_as_json(home: Path) -> None:
    told = run(home, "compactions", "bob", "--json")
    found = [json.loads(line) for line in told.stdout.splitlines()]
    assert [one["turn_id"] for one in found] == ["t0", "t2"]
    assert found[1]["after_tokens"] is None
    assert found[1]["detail"] == "[red]1[/] \x1b]0;x"
    assert len(run(home, "compactions", "-n", "1", "--json").stdout.splitlines()) == 1


def test_where_there_is_none_it_says_so(home: Path) -> None:
    told = run(home, "compactions", "nobody[red]\x1b")
    assert told.exit_code == Exit.OK
    assert "no compaction of nobody[red]\\x1b" in told.stderr
    assert not told.stdout
    assert not run(home, "compactions", "nobody", "--json").output


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'"a\\nb\\tc"', "a\nb\tc"),
        (b'["thought 1", "thought 2"]', "thought 1\nthought 2"),
        (b'[{"type":"text","text":"a"},{"type":"text","text":"b"}]', "a\nb"),
        (b'[{"type":"image_url","image_url":{"url":"data:x"}}]', "[image_url, 53 characters: --raw prints it]"),
        (b'{"role":"user","content":"x"}', "--- user\nx"),
        (b'{"role":"user","name":"bob","content":""}', "--- user bob"),
        (b'{"role":"user","content":"x"}\n{"role":"user","content":"y"}', "--- user\nx\n\n--- user\ny"),
        (b'{"role":"assistant","tool_calls":["odd"]}', '--- assistant\n"odd"'),
        (b'{"a": 1}', '{\n  "a": 1\n}'),
        (b"[1]", "1"),
        (b"[]", ""),
        (b"", ""),
        (b"not JSON \xff", "not JSON \ufffd"),
        (b"[" * 100_000, "[" * 100_000),
        ('"文\u3000字 👩\u200d💻"'.encode(), "文\u3000字 👩\u200d💻"),
        (b'"\\u001b[2J\\u202eevil\\r\\n\\ud800\\u009b"', "\\x1b[2J\\u202eevil\n\\ud800\\x9b"),
    ],
)
def test_a_body_is_readable_and_cannot_steer_the_terminal(body: bytes, text: str) -> None:
    assert readable(body) == text
