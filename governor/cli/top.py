"""``governor top``."""

from __future__ import annotations

import logging
import sys

from governor import instance
from governor.cli.console import Exit, fail
from governor.cli.options import HomeOption
from governor.settings import Home


def top(home: HomeOption) -> None:
    """Watch the agents, live: who runs, who waits and for what, what ended how. Waits for a governor if none runs."""
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        fail("this is for a terminal; for scripts there is 'governor status --json'", Exit.USAGE)
    from tui.app import Dashboard  # noqa: PLC0415 - only this command needs Textual
    from tui.client import Address  # noqa: PLC0415

    def find() -> Address | None:
        note = instance.running_instance(home)
        return None if note is None else Address(note.url, note.token)

    _log_to_file(home)
    Dashboard(find).run()


def _log_to_file(home: Home) -> None:
    """Warnings go to a file, which is made by the first one: the screen is the dashboard's."""
    if home.logs.is_dir():
        logging.basicConfig(filename=home.logs / "top.log", level=logging.WARNING)
