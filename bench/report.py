"""Tables for people (rich), for the documentation (Markdown) and for scripts (JSON), and the machine they came from."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

_PACKAGES = ("uvloop", "uvicorn", "httptools", "httpx", "aiohttp", "msgspec")


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """One table. The first ``labels`` columns name a row, the others are figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    packages: dict[str, str]
    started_at: str
    load_before: float
    """Load average of the last minute when the run began: whose work the figures had to share the cores with."""
    command: str


def machine(module: str) -> Machine:
    """This machine, now. ``module`` is the program that measures."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={name: version(name) for name in _PACKAGES},
        started_at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        load_before=round(os.getloadavg()[0], 2),
        command=f"python -m {module} {shlex.join(sys.argv[1:])}".strip(),
    )


def described(where: Machine | str) -> str:
    """A text stands for itself: figures that do not depend on the machine that they were made on."""
    if isinstance(where, str):
        return where
    packages = ", ".join(f"{name} {number}" for name, number in where.packages.items())
    return (
        f"{where.started_at}, {where.cores} cores of {where.processor}, {where.memory_gib:g} GiB, {where.system}, "
        f"Python {where.python}, {packages}; load average before the run {where.load_before:g}. `{where.command}`"
    )


def print_sheets(sheets: Sequence[Sheet], where: Machine | str, console: Console) -> None:
    for sheet in sheets:
        table = Table(title=sheet.title, title_justify="left", caption=sheet.note or None, caption_justify="left")
        for column in sheet.columns:
            table.add_column(column, justify="right", no_wrap=True)
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    console.print(described(where), soft_wrap=True, highlight=False)


def markdown(sheets: Sequence[Sheet], where: Machine | str) -> str:
    """The tables as the documentation keeps them."""
    parts = [described(where)]
    for sheet in sheets:
        lines = [f"**{sheet.title}**", "", _line(_one_line(sheet.columns)), _line(["---:"] * len(sheet.columns))]
        lines += [_line(row) for row in sheet.rows]
        parts.append("\n".join(lines))
        if sheet.note:
            parts.append(sheet.note)
    return "\n\n".join(parts) + "\n"


def write_json(path: Path, result: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def figure(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _one_line(columns: Sequence[str]) -> list[str]:
    return [column.replace("\n", " ") for column in columns]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
