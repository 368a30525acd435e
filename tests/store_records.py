"""Records and logs for the tests of the turn log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import URL

from governor.store.model import TurnClosed, TurnOpened
from governor.store.turnlog import SqlTurnLog
from governor.types import AgentName, TurnId, TurnState

T0 = 1_700_000_000.0
HOME = "home-a"


def opened(turn_id: str, *, agent: str = "ada", at: float = T0) -> TurnOpened:
    return TurnOpened(turn_id=TurnId(turn_id), agent=AgentName(agent), route="/v1/chat/completions", opened_at=at)


def closed(turn_id: str, state: TurnState = TurnState.OK, *, at: float = T0 + 1, **facts: Any) -> TurnClosed:
    return TurnClosed(turn_id=TurnId(turn_id), state=state, closed_at=at, **facts)


@contextmanager
def turn_log(url: str | URL, **options: Any) -> Iterator[SqlTurnLog]:
    """A log with quick retries that ends with the test, whatever the test does."""
    log = SqlTurnLog(url, **{"home_id": HOME, "linger_s": 0.001, "retry_s": 0.01, **options})
    try:
        yield log
    finally:
        log.close(5)
