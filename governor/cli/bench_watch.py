"""A bench while it runs: a table that fills, how far it is, and when it will be done."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from governor.measure.layout import Sheet, sheets
from governor.measure.result import Case, Left, Measure, Metric
from governor.measure.session import Step


class BenchScreen:
    """A :class:`~governor.measure.session.Watcher` on a console. Where that is no terminal, it says a line a step."""

    def __init__(self, console: Console, suite: str) -> None:
        self._console = console
        self._suite = suite
        self._measures: dict[tuple[Case, Metric], Measure] = {}
        self._left: list[Left] = []
        self._total, self._done, self._began = 0.0, 0.0, time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[left]}")
        )
        self._task = self._progress.add_task("warming up", total=None, left="")
        self._live = Live(get_renderable=self._shown, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def on_steps(self, total_weight: float) -> None:
        self._total, self._began = total_weight, time.monotonic()

    def on_step(self, step: Step) -> None:
        self._update(step.name)
        if not self._console.is_terminal:
            self._console.print(f"[{self._share():3.0%}] {escape(step.name)}", markup=False)

    def on_step_done(self, step: Step) -> None:
        self._done += step.weight
        self._update(step.name)

    def on_measure(self, measure: Measure) -> None:
        self._measures[measure.case, measure.metric] = measure

    def on_left(self, left: Left) -> None:
        self._left.append(left)
        if not self._console.is_terminal:
            self._console.print(f"{left.what}: {left.reason}", markup=False)

    def _share(self) -> float:
        return self._done / self._total if self._total else 0.0

    def _update(self, doing: str) -> None:
        left = ""
        if self._done and self._total:
            left = f"about {_duration((time.monotonic() - self._began) * (self._total / self._done - 1))} left"
        self._progress.update(
            self._task, description=escape(doing), total=self._total or None, completed=self._done, left=left
        )

    def _shown(self) -> RenderableType:
        tables = [rich_table(sheet) for sheet in sheets(self._suite, list(self._measures.values()))]
        lines = [f"[yellow]{escape(each.what)}:[/] {escape(each.reason)}" for each in self._left[-3:]]
        return Group(*tables, *lines, self._progress)


def rich_table(sheet: Sheet) -> Group:
    """With its title above: as the table's own it would be broken to the table's width."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(sheet.columns):
        table.add_column(escape(column), justify="left" if number == 0 else "right", no_wrap=True, overflow="ellipsis")
    for row in sheet.rows:
        table.add_row(*(escape(cell) for cell in row))
    return Group(f"[bold]{escape(sheet.title)}[/]", table)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
