"""How commands speak: tables and colours for people, JSON for scripts, one exit code for each kind of trouble."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NoReturn

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from governor.errors import GovernorError
from governor.store.errors import StoreError
from serve.errors import ServeError

_WIDE = None if sys.stdout.isatty() else 240
out = Console(highlight=False, soft_wrap=False, width=_WIDE)
"""What was asked for. Wide where it is not a terminal: a script's columns are not cut."""
err = Console(stderr=True, highlight=False, soft_wrap=True)
"""What a person should know besides."""


class Exit(IntEnum):
    """Exit codes, so that a script need not read the text."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """A wrong argument, or a file of yours that is wrong."""
    NOT_RUNNING = 3
    NOT_READY = 4
    """The governor runs, its engine does not answer yet."""
    ALREADY_RUNNING = 5
    ENGINE = 6
    """The engine or its weights cannot be had."""


def fail(message: str, code: Exit = Exit.FAILED) -> NoReturn:
    """Say why and end."""
    err.print(f"[bold red]error:[/] {escape(message)}")
    raise SystemExit(int(code))


@contextlib.contextmanager
def told_errors() -> Iterator[None]:
    """Our own errors become one line and an exit code; anything else keeps its traceback."""
    try:
        yield
    except ServeError as error:
        fail(error.message, Exit.ENGINE)
    except StoreError as error:
        fail(str(error), Exit.USAGE)
    except GovernorError as error:
        fail(str(error), Exit.USAGE)


def print_json(value: Any) -> None:
    """One JSON value on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def plain_table(*headers: str) -> Table:
    """A table without lines whose cells are cut at the edge, never broken over lines."""
    table = Table(box=None, pad_edge=False)
    for header in headers:
        table.add_column(header, no_wrap=True, overflow="ellipsis")
    return table


def shown(value: object) -> str:
    """A figure, or ``-`` where it is unknown. Unknown is not zero."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.1f} s"
