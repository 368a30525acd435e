"""An engine's output, whatever it is, becomes short clean lines in bounded space."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from serve.engine_log import EngineLog, LineAssembler


def test_lines_are_cleaned_of_colours_controls_and_titles() -> None:
    raw = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07text\x00\x08\ttab\n\n  \nnext\r\n"
    assert LineAssembler().feed(raw) == ["red text\ttab", "next"]


def test_progress_bars_become_lines() -> None:
    assert LineAssembler().feed(b"10%\r20%\r100%\n") == ["10%", "20%", "100%"]


def test_a_character_split_between_reads_is_whole_and_a_broken_one_is_marked() -> None:
    lines = LineAssembler()
    snowman = "\N{SNOWMAN}".encode()
    assert lines.feed(snowman[:1]) == []
    assert lines.feed(snowman[1:] + b"\xff\n") == ["\N{SNOWMAN}\N{REPLACEMENT CHARACTER}"]


def test_an_unfinished_line_comes_out_at_the_end() -> None:
    lines = LineAssembler()
    assert lines.feed(b"last words") == []
    assert lines.feed(b"", final=True) == ["last words"]


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 50))
def test_lines_are_bounded_and_printable_whatever_comes(chunks: list[bytes], max_chars: int) -> None:
    lines = LineAssembler(max_chars)
    out = [line for chunk in chunks for line in lines.feed(chunk)] + lines.feed(b"", final=True)
    for line in out:
        assert len(line) <= max_chars + len(" ... [999999 characters more]")
        assert not set(line) & set("\r\n\x00\x1b")


def test_the_log_is_bounded_on_disk_and_in_memory(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "logs" / "engine.log", max_file_bytes=10_000, files=3, tail_lines=50, tail_line_chars=80)
    for number in range(2000):
        log.write(f"line {number} {'x' * 100}\n".encode())
    log.write(b"y" * 1_000_000)
    log.note("exited with status 1")
    log.close()
    files = sorted((tmp_path / "logs").iterdir())
    assert [file.name for file in files] == ["engine.log", "engine.log.1", "engine.log.2"]
    assert sum(file.stat().st_size for file in files) <= 3 * 10_000
    tail = log.tail(200)
    assert len(tail) == 50
    assert max(map(len, tail)) <= 80
    assert tail[-1] == "--- exited with status 1"
    assert tail[-2].startswith("yyy")
    assert "characters more]" in (tmp_path / "logs" / "engine.log").read_text()


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "gone" / "engine.log")
    (tmp_path / "gone").rmdir()
    log.write(b"first\nsecond\n")
    log.close()
    assert log.tail() == ("first", "second")
