"""Records and logs for the tests of the turn log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy.engine import URL

from governor.events import TurnDecided
from governor.store.database import engine_for
from governor.store.model import TurnClosed, TurnOpened
from governor.store.turnlog import SqlTurnLog
from governor.types import AgentName, TurnId, TurnState, Verdict

T0 = 1_700_000_000.0
HOME = "home-a"


def opened(turn_id: str, *, agent: str = "ada", at: float = T0) -> TurnOpened:
    return TurnOpened(turn_id=TurnId(turn_id), agent=AgentName(agent), route="/v1/chat/completions", opened_at=at)


def closed(turn_id: str, state: TurnState = TurnState.OK, *, at: float = T0 + 1, **facts: Any) -> TurnClosed:
    return TurnClosed(turn_id=TurnId(turn_id), state=state, closed_at=at, **facts)


def decided(turn_id: str, verdict: Verdict = Verdict.GRANTED, *, at: float = T0, **facts: Any) -> TurnDecided:
    chosen = {"agent": "ada", "why": "runs", "waiting": 0, "running": 1, "booked_tokens": 0, **facts}
    return TurnDecided(turn_id=turn_id, verdict=verdict, at=at, **chosen)


def set_back(url: URL, revision: str) -> None:
    """The database as an older program left it."""
    config = Config()
    config.set_main_option("script_location", "governor.store:migrations")
    with engine_for(url).connect() as connection, connection.begin():
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


@contextmanager
def turn_log(url: str | URL, **options: Any) -> Iterator[SqlTurnLog]:
    """A log with quick retries that ends with the test, whatever the test does."""
    log = SqlTurnLog(url, **{"home_id": HOME, "linger_s": 0.001, "retry_s": 0.01, **options})
    try:
        yield log
    finally:
        log.close(5)
