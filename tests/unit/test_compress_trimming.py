"""Cutting texts down: by kind, never inside a character, JSON staying JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from bench.histories import code, diff, listing, log, seeded, table
from governor.compress.cuts import Note, head, is_own, middle_out, shortened, tail
from governor.compress.kinds import Kind, kind_of
from governor.compress.lines import trim_lines
from governor.compress.trimming import trim_text

NOTE = Note("gov-0123456789abcdef")
FAMILY, FLAG, THUMB, ACCENT = "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "e\u0301"


@pytest.mark.parametrize("sign", [FAMILY, FLAG, THUMB, ACCENT, "कि", "\r\n", "字", "\U0001f469\ufe0f"])
def test_no_cut_inside_a_character(sign: str) -> None:
    text = sign * 20
    for most in range(len(text) + 2):
        for part in (head(text, most), tail(text, most)):
            assert len(part) <= most
            assert part == sign * (len(part) // len(sign))


def test_middle_out_keeps_both_ends_and_counts_the_rest() -> None:
    cut = middle_out("a" * 500 + "b" * 500, 100, NOTE)
    assert cut.startswith("a" * 66 + " [900 characters left out: gov-0123456789abcdef] ")
    assert cut.endswith(" " + "b" * 34)
    assert middle_out("short", 100, NOTE) == "short"
    assert shortened("a\n b" * 100, 10) == "a ba ba b…"


def test_own_lines_are_known() -> None:
    assert is_own(NOTE.about("12 lines"))
    assert not is_own("[12 lines left out: gov-0123]")
    assert not is_own(NOTE.about("x" * 600))


@pytest.mark.parametrize(
    ("make", "kind"), [(log, Kind.LOG), (listing, Kind.JSON), (code, Kind.CODE), (diff, Kind.DIFF), (table, Kind.TABLE)]
)
def test_kinds(make: Callable[[random.Random, int], str], kind: Kind) -> None:
    assert kind_of(make(seeded(1), 50)) is kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n", Kind.TABLE),
        ("     1\timport os\n     2\t\n     3\tdef f():\n     4\t    return 1\n", Kind.CODE),
        ("One sentence.\nAnother, with a comma, and one more.\nThe end of it.\nReally.\n", Kind.LOG),
        ("", Kind.LOG),
    ],
)
def test_kinds_of_small_texts(text: str, kind: Kind) -> None:
    assert kind_of(text) is kind


def test_a_log_keeps_its_ends_and_its_errors() -> None:
    lines = [f"{n} ok {seeded(n).getrandbits(64):x}" for n in range(2000)]
    lines[700], lines[1300] = "E   AssertionError: 7 != 8", "FAILED tests/test_x.py::test_y"
    cut = trim_text("\n".join(lines), 3000, NOTE)
    assert len(cut) <= 3200
    assert cut.startswith(lines[0])
    assert cut.endswith(lines[-1])
    assert lines[700] in cut
    assert lines[1300] in cut
    assert cut.count("gov-0123456789abcdef") == 1


def test_more_errors_than_fit_are_taken_from_both_ends() -> None:
    lines = [f"error {n} {'x' * (n % 9)}" for n in range(3000)]
    cut = trim_text("\n".join(lines), 2000, NOTE)
    assert len(cut) <= 2200
    assert lines[0] in cut
    assert lines[-1] in cut


def test_lines_alike_but_for_their_digits_collapse() -> None:
    text = "start\n" + "\n".join(f"line {n} of the output" for n in range(1, 151)) + "\nend"
    assert trim_text(text, 2000, NOTE).splitlines() == [
        "start",
        "line 1 of the output",
        "[148 similar lines]",
        "line 150 of the output",
        "end",
        "[similar lines left out: gov-0123456789abcdef]",
    ]


def test_a_diff_keeps_its_changes_before_its_context() -> None:
    text = diff(seeded(1), 30)
    cut = trim_text(text, len(text) // 3, NOTE)
    assert sum(f"+new_{n} = 2" in cut for n in range(30)) >= 25
    assert cut.count("\n ") < 60 < text.count("\n ") / 3
    assert "diff --git a/x.py b/x.py" in cut


def test_code_keeps_its_signatures() -> None:
    text = code(seeded(1), 40)
    cut = trim_text(text, len(text) // 4, NOTE)
    names = [line for line in text.splitlines() if line.startswith("def ")]
    assert sum(name in cut for name in names) >= 0.9 * len(names)


def test_a_table_keeps_its_header() -> None:
    text = table(seeded(1), 500)
    cut = trim_text(text, 1000, NOTE)
    assert cut.startswith("id,name,value,note\n0,")
    assert cut.endswith(text.splitlines()[-1])


def test_one_endless_line_is_cut_in_its_middle() -> None:
    cut = trim_text("x" * 100_000, 1000, NOTE)
    assert 1000 <= len(cut) <= 1100
    among = trim_lines("a\n" + "y" * 50_000 + "\nb\nc", 1000, Kind.LOG, NOTE)
    assert len(among) <= 1000


@pytest.mark.parametrize("keep", [60, 200, 1000, 5000])
@pytest.mark.parametrize(
    "value",
    [
        [{"id": n, "name": f"file {n}", "tags": ["a", "b"]} for n in range(500)],
        {"output": "\n".join(f"line {n} {n * 7919}" for n in range(900)), "exit_code": 0, "error": None},
        {f"key {n}": n for n in range(600)},
        {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": ["x" * 9000] * 3}}}}}}}}},
        ["字" * 3000, FAMILY * 2000],
        {"…": "y" * 9000, "inner": json.dumps({"list": list(range(3000))})},
        [[["z" * 40] * 50] * 50],
    ],
)
def test_json_stays_json(value: Any, keep: int) -> None:
    text = json.dumps(value, ensure_ascii=False)
    cut = trim_text(text, keep, NOTE)
    assert isinstance(json.loads(cut), type(value))
    assert NOTE.handle in cut
    assert len(cut) <= max(keep, 80) + 120
    assert trim_text(text, len(text), NOTE) == text


def test_json_keeps_numbers_as_written_and_errors_among_the_items() -> None:
    items = [{"n": n, "status": "ok", "ratio": 1.0} for n in range(400)]
    text = json.dumps(items).replace('"n": 0,', '"n": 12345678901234567890.100,')
    text = text.replace('{"n": 200, "status": "ok"', '{"n": 200, "status": "FAILED"')
    cut = trim_text(text, 1500, NOTE)
    assert "12345678901234567890.100" in cut
    assert '"FAILED"' in cut
    assert json.loads(cut)[-2] == items[-1]


def test_json_inside_json_stays_json() -> None:
    inner = json.dumps([{"n": n} for n in range(2000)])
    cut = json.loads(trim_text(json.dumps({"stdout": inner}), 1500, NOTE))
    assert json.loads(cut["stdout"])[0] == {"n": 0}


def test_json_lines_stay_json_lines() -> None:
    text = "\n".join(json.dumps({"n": n, "text": "word " * 400}) for n in range(40))
    cut = trim_text(text, 4000, NOTE)
    kept = [line for line in cut.splitlines() if not line.startswith("[")]
    assert json.loads(kept[0])["n"] == 0
    assert len(kept) >= 2
    assert len(cut) <= 4400


def test_json_with_half_a_surrogate_pair_stays_json() -> None:
    text = '{"a": "' + "\\ud800" * 2000 + '", "b": [' + ",".join(map(str, range(3000))) + "]}"
    assert json.loads(trim_text(text, 1000, NOTE))["…"].endswith(f"{NOTE.handle}]")


def test_what_only_begins_like_json_is_cut_as_lines() -> None:
    text = "[12:00] started\n" + "\n".join(f"[12:01] {seeded(n).getrandbits(60):x}" for n in range(500))
    assert trim_text(text, 1000, NOTE).startswith("[12:00] started\n")
