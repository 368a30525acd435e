"""A block that can be ended from outside by an error, as ``asyncio.timeout`` ends one by time."""

from __future__ import annotations

import asyncio
from types import TracebackType

from governor.errors import GovernorError


class Breakable:
    """A context manager, entered by the task that is to be broken off. Lives on one event loop."""

    def __init__(self) -> None:
        self._error: GovernorError | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    def __enter__(self) -> Breakable:
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        return self

    def break_off(self, error: GovernorError) -> bool:
        """What the block waits for is cancelled, and the block raises ``error``. False if it is broken off already."""
        if self._error is not None or self._task is None:
            return False
        self._error = error
        self._task.cancel()
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        task, self._task = self._task, None
        if self._error is None or task is None:
            return
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._error from error
