"""What is said where there is no SGLang to ask."""

from __future__ import annotations

import sys

from serve.argcheck import ask_parser


def test_an_interpreter_without_sglang_cannot_be_asked() -> None:
    found = ask_parser(sys.executable, [["--port", "1"], ["--nope"]])
    assert [verdict.imported for verdict in found] == [False, False]
    assert "sglang" in (found[0].problem or "")


def test_no_interpreter_at_all_is_told() -> None:
    (verdict,) = ask_parser("/no/such/python", [["--port", "1"]])
    assert not verdict.imported
    assert "No such file" in (verdict.problem or "")
