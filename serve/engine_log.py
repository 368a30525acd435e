"""An engine's output: drained always, kept in a size-rotated file, its last lines in memory.

Engines write progress bars, ANSI colours, broken UTF-8 and lines of a megabyte. What comes out here is plain text in
short lines; what is kept is bounded, on disk and in memory, whatever comes in. Independent of any viewer.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections import deque
from logging.handlers import RotatingFileHandler
from pathlib import Path

_logger = logging.getLogger(__name__)

# CSI sequences, OSC strings (window titles, links), two-byte escapes.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class LineAssembler:
    """Bytes in, clean lines out. Holds at most ``max_line_chars`` of an unfinished line.

    A carriage return ends a line as a line feed does, so a progress bar becomes a few lines instead of one endless
    one. The rest of a line that is too long is dropped and its length noted.
    """

    def __init__(self, max_line_chars: int = 4096) -> None:
        self._max = max_line_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open = ""
        self._dropped_chars = 0

    def feed(self, data: bytes, *, final: bool = False) -> list[str]:
        """Lines completed by ``data``; with ``final`` the unfinished one, too. Blank lines are left out."""
        pieces = re.split(r"[\r\n]+", self._decoder.decode(data, final))
        lines = []
        for piece in pieces[:-1]:
            self._append(piece)
            lines.append(self._close())
        self._append(pieces[-1])
        if final:
            lines.append(self._close())
        return [line for line in lines if line]

    def _append(self, text: str) -> None:
        room = self._max - len(self._open)
        self._open += text[:room]
        self._dropped_chars += max(0, len(text) - room)

    def _close(self) -> str:
        line = _CONTROL.sub("", _ANSI.sub("", self._open)).rstrip()
        if self._dropped_chars:
            line += f" ... [{self._dropped_chars} characters more]"
        self._open = ""
        self._dropped_chars = 0
        return line


class EngineLog:
    """The log of one engine. Written from one thread; a full disk costs lines of the file, nothing else."""

    def __init__(
        self,
        path: Path,
        *,
        max_file_bytes: int = 4 * 1024 * 1024,
        files: int = 3,
        tail_lines: int = 200,
        tail_line_chars: int = 500,
    ) -> None:
        """The file and its predecessors hold at most about ``max_file_bytes * files``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._handler = _QuietRotatingHandler(
            path, maxBytes=max_file_bytes, backupCount=files - 1, encoding="utf-8", errors="replace", delay=True
        )
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._assembler = LineAssembler()
        self._tail: deque[str] = deque(maxlen=tail_lines)
        self._tail_line_chars = tail_line_chars
        self._last_words: deque[str] = deque(maxlen=tail_lines)

    def write(self, data: bytes) -> None:
        self._hear(self._assembler.feed(data))

    def note(self, line: str) -> None:
        """A line of our own, such as a start or an exit."""
        self._finish_line()
        self._keep([f"--- {line}"])

    def begin(self) -> None:
        """A new process will write: what the one before said is none of its words."""
        self._finish_line()
        self._last_words.clear()

    def last_words(self) -> tuple[str, ...]:
        """The last lines of the current process, oldest first, without our notes."""
        self._finish_line()
        return tuple(self._last_words)

    def tail(self, lines: int = 20) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(self._tail)[-lines:]

    def close(self) -> None:
        self._finish_line()
        self._handler.close()

    def _finish_line(self) -> None:
        self._hear(self._assembler.feed(b"", final=True))

    def _hear(self, lines: list[str]) -> None:
        self._last_words.extend(line[: self._tail_line_chars] for line in lines)
        self._keep(lines)

    def _keep(self, lines: list[str]) -> None:
        if not lines:
            return
        self._tail.extend(line[: self._tail_line_chars] for line in lines)
        for line in lines:
            record = logging.LogRecord("engine", logging.INFO, "", 0, line, None, None)
            self._handler.handle(record)


class _QuietRotatingHandler(RotatingFileHandler):
    """Reports a write failure once to our own log instead of a traceback a line on stderr."""

    _reported = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - name given by logging
        if not self._reported:
            self._reported = True
            _logger.warning("cannot write the engine's log %s", self.baseFilename, exc_info=True)
