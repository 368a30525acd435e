"""How long work tells of its progress. The command line draws bars from it; nothing here knows of a terminal."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """One thing at a time: ``started``, then ``moved`` any number of times, then ``finished``, on every path.

    Called from the thread that does the work. Must be quick and raise nothing.
    """

    def started(self, what: str, total_bytes: int | None) -> None:
        """``what`` is for people. ``None``: the size is not known (yet)."""
        ...

    def moved(self, done_bytes: int, total_bytes: int | None) -> None:
        """So much is done in all; a resumed download starts above zero."""
        ...

    def finished(self) -> None: ...


class Silent:
    """Tells nobody."""

    def started(self, what: str, total_bytes: int | None) -> None:
        pass

    def moved(self, done_bytes: int, total_bytes: int | None) -> None:
        pass

    def finished(self) -> None:
        pass
