"""Reading the turn log, for the command line and the dashboard. Works while a governor writes.

Connections of its own, read-only, opened per call and closed at its end. Every method may block on the database and
raises :class:`~governor.store.errors.StoreUnreadable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import URL

from governor.events import PrefixLost, TurnDecided
from governor.store.model import StoredTurn
from governor.store.reading import ReadOnly
from governor.store.schema import decisions, losses, stored_decision, stored_loss, stored_turn, turns
from governor.types import AgentName, TurnId, TurnState

DAY_S: Final = 86_400
_EPOCH: Final = date(1970, 1, 1).toordinal()


class UsageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent used, over all time asked for or on one day. ``None`` is unknown, which is not zero.

    A sum of reported figures covers the turns where the engine reported them; a sum of estimates covers the others.
    The two are never added up here.
    """

    agent: AgentName | None
    """``None`` collects the turns whose opening was never recorded."""
    day: date | None
    """``None`` unless asked by day."""
    turns: int
    states: dict[TurnState, int]
    """Turns by state; states without a turn are left out."""
    prompt_tokens: int | None
    """Reported."""
    prompt_reported_turns: int
    prompt_tokens_estimated: int | None
    """Our own count, of turns without a report."""
    cached_tokens: int | None
    """Reported; part of the reported prompt tokens."""
    cached_device_tokens: int | None
    cached_host_tokens: int | None
    cached_storage_tokens: int | None
    """Reported split of ``cached_tokens`` over L1, L2, L3."""
    new_tokens: int | None
    """Prompt tokens less cached ones, of the turns where both were reported."""
    hit_share: float | None
    """Cached share, 0 to 1, of the prompt tokens of turns where both were reported."""
    completion_tokens: int | None
    """Reported."""
    completion_tokens_estimated: int | None
    """From the text relayed, of turns without a report."""
    reasoning_tokens: int | None
    ttft_p50_ms: float | None
    """Nearest-rank percentiles of the turns that got a first token."""
    ttft_p95_ms: float | None


class TurnLogReader:
    """Reads the turn log at ``url``; :class:`~governor.store.errors.BadDatabaseUrl` if that cannot work."""

    def __init__(self, url: str | URL) -> None:
        self._database = ReadOnly(url)

    def recent(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        state: TurnState | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 50,
    ) -> list[StoredTurn]:
        """The newest turns that match, newest first. ``since`` and ``until`` are Unix times in seconds, half open."""
        query = sa.select(turns).order_by(turns.c.listed_at.desc()).limit(limit)
        query = query.where(*_where(agent, since, until))
        if session is not None:
            query = query.where(turns.c.session == session)
        if state is not None:
            query = query.where(turns.c.state == state.value)
        with self._database.connect() as connection:
            rows = connection.execute(query).mappings().all()
            lost = _losses(connection, [row["turn_id"] for row in rows])
        return [stored_turn(row, lost.get(row["turn_id"], ())) for row in rows]

    def agents(self) -> list[AgentName]:
        """All that have a turn, by name."""
        query = sa.select(turns.c.agent).where(turns.c.agent.is_not(None)).distinct().order_by(turns.c.agent)
        with self._database.connect() as connection:
            return [AgentName(name) for name in connection.execute(query).scalars()]

    def turn(self, turn_id: TurnId) -> StoredTurn | None:
        """One turn; ``None`` if the log does not know it."""
        with self._database.connect() as connection:
            row = connection.execute(sa.select(turns).where(turns.c.turn_id == turn_id)).mappings().first()
            lost = _losses(connection, [turn_id])
        return None if row is None else stored_turn(row, lost.get(turn_id, ()))

    def with_prefix(self, prefix: str, limit: int) -> list[TurnId]:
        """Turns whose id begins so, in order of their ids, at most ``limit``."""
        begins = turns.c.turn_id.startswith(prefix, autoescape=True)
        query = sa.select(turns.c.turn_id).where(begins).order_by(turns.c.turn_id).limit(limit)
        with self._database.connect() as connection:
            return [TurnId(turn_id) for turn_id in connection.execute(query).scalars()]

    def decisions(self, turn_id: TurnId) -> list[TurnDecided]:
        """What was decided about a turn, in order; nothing where the log is older than this."""
        query = sa.select(decisions).where(decisions.c.turn_id == turn_id).order_by(decisions.c.number)
        with self._database.connect() as connection:
            if not sa.inspect(connection).has_table(decisions.name):
                return []
            return [stored_decision(row) for row in connection.execute(query).mappings()]

    def usage(
        self,
        *,
        agent: str | None = None,
        since: float | None = None,
        until: float | None = None,
        by_day: bool = False,
        utc_offset_s: int = 0,
    ) -> list[UsageSummary]:
        """What each agent used, by name, then by day. A day begins at midnight of the zone ``utc_offset_s`` off UTC."""
        day = _day(utc_offset_s) if by_day else sa.literal(0)
        groups = (turns.c.agent.label("agent"), day.label("day"))
        where = _where(agent, since, until)
        with self._database.connect() as connection:
            sums = connection.execute(_sums(groups, where)).mappings().all()
            states = connection.execute(_states(groups, where)).mappings().all()
            ttfts = connection.execute(_ttft_percentiles(groups, where)).mappings().all()
        by_group: dict[tuple[Any, Any], dict[TurnState, int]] = {}
        for row in states:
            by_group.setdefault((row["agent"], row["day"]), {})[TurnState(row["state"])] = row["turns"]
        ttft = {(row["agent"], row["day"]): row for row in ttfts}
        summaries = [
            _summary(
                row,
                day=date.fromordinal(_EPOCH + row["day"]) if by_day else None,
                states=by_group[row["agent"], row["day"]],
                ttft=ttft.get((row["agent"], row["day"])),
            )
            for row in sums
        ]
        return sorted(summaries, key=lambda one: (one.agent is None, one.agent or "", one.day or date.min))


_AT_ONCE = 5_000
"""Parameters of a query; databases have a limit."""


def _losses(connection: sa.Connection, turn_ids: Sequence[str]) -> dict[str, list[PrefixLost]]:
    """What these turns lost, by turn; nothing where the log is older than this."""
    found: dict[str, list[PrefixLost]] = {}
    if not turn_ids or not sa.inspect(connection).has_table(losses.name):
        return found
    for start in range(0, len(turn_ids), _AT_ONCE):
        query = sa.select(losses).where(losses.c.turn_id.in_(turn_ids[start : start + _AT_ONCE]))
        for row in connection.execute(query).mappings():
            found.setdefault(row["turn_id"], []).append(stored_loss(row))
    return found


Columns = Sequence[sa.ColumnElement[Any]]


def _where(agent: str | None, since: float | None, until: float | None) -> Columns:
    where: list[sa.ColumnElement[bool]] = []
    if agent is not None:
        where.append(turns.c.agent == agent)
    if since is not None:
        where.append(turns.c.listed_at >= since)
    if until is not None:
        where.append(turns.c.listed_at < until)
    return where


def _day(utc_offset_s: int) -> sa.ColumnElement[int]:
    """Days since 1970-01-01 in the zone."""
    return sa.cast(sa.func.floor((turns.c.listed_at + utc_offset_s) / DAY_S), sa.Integer)


def _sums(groups: Columns, where: Columns) -> sa.Select[Any]:
    """Sums over nothing known are NULL, which is what unknown means here."""
    c = turns.c
    both_reported = sa.and_(c.prompt_tokens.is_not(None), c.cached_tokens.is_not(None))
    fresh = sa.case((c.prompt_tokens > c.cached_tokens, c.prompt_tokens - c.cached_tokens), else_=0)

    def total(value: sa.ColumnElement[Any], of: sa.ColumnElement[bool] | None = None) -> sa.ColumnElement[Any]:
        # PostgreSQL sums big integers as decimals.
        summed = sa.func.sum(value) if of is None else sa.func.sum(value).filter(of)
        return sa.cast(summed, sa.BigInteger)

    return (
        sa.select(
            *groups,
            sa.func.count().label("turns"),
            total(c.prompt_tokens).label("prompt_tokens"),
            sa.func.count(c.prompt_tokens).label("prompt_reported_turns"),
            total(c.prompt_tokens_counted, c.prompt_tokens.is_(None)).label("prompt_tokens_estimated"),
            total(c.cached_tokens).label("cached_tokens"),
            total(c.cached_device_tokens).label("cached_device_tokens"),
            total(c.cached_host_tokens).label("cached_host_tokens"),
            total(c.cached_storage_tokens).label("cached_storage_tokens"),
            total(fresh, both_reported).label("new_tokens"),
            total(c.cached_tokens, both_reported).label("cached_of_both"),
            total(c.prompt_tokens, both_reported).label("prompt_of_both"),
            total(c.completion_tokens).label("completion_tokens"),
            total(c.completion_tokens_estimated, c.completion_tokens.is_(None)).label("completion_tokens_estimated"),
            total(c.reasoning_tokens).label("reasoning_tokens"),
        )
        .where(*where)
        .group_by("agent", "day")
    )


def _states(groups: Columns, where: Columns) -> sa.Select[Any]:
    count = sa.func.count().label("turns")
    return sa.select(*groups, turns.c.state, count).where(*where).group_by("agent", "day", turns.c.state)


def _ttft_percentiles(groups: Columns, where: Columns) -> sa.Select[Any]:
    """Nearest rank: the smallest value that at least p percent of the values do not exceed."""
    known = sa.select(*groups, turns.c.ttft_ms.label("ttft_ms")).where(*where, turns.c.ttft_ms.is_not(None)).subquery()
    group = (known.c.agent, known.c.day)
    ranked = sa.select(
        *group,
        known.c.ttft_ms,
        sa.func.row_number().over(partition_by=group, order_by=known.c.ttft_ms).label("rank"),
        sa.func.count().over(partition_by=group).label("size"),
    ).subquery()

    def percentile(p: int) -> sa.ColumnElement[Any]:
        # "At or above the rank" and min() together pick the value at the rank, in one pass.
        return sa.func.min(ranked.c.ttft_ms).filter(ranked.c.rank * 100 >= ranked.c.size * p)

    return sa.select(ranked.c.agent, ranked.c.day, percentile(50).label("p50"), percentile(95).label("p95")).group_by(
        ranked.c.agent, ranked.c.day
    )


def _summary(
    sums: sa.RowMapping, *, day: date | None, states: dict[TurnState, int], ttft: sa.RowMapping | None
) -> UsageSummary:
    prompt, cached = sums["prompt_of_both"], sums["cached_of_both"]
    return UsageSummary(
        agent=sums["agent"],
        day=day,
        turns=sums["turns"],
        states=states,
        prompt_tokens=sums["prompt_tokens"],
        prompt_reported_turns=sums["prompt_reported_turns"],
        prompt_tokens_estimated=sums["prompt_tokens_estimated"],
        cached_tokens=sums["cached_tokens"],
        cached_device_tokens=sums["cached_device_tokens"],
        cached_host_tokens=sums["cached_host_tokens"],
        cached_storage_tokens=sums["cached_storage_tokens"],
        new_tokens=sums["new_tokens"],
        hit_share=min(1.0, cached / prompt) if prompt else None,
        completion_tokens=sums["completion_tokens"],
        completion_tokens_estimated=sums["completion_tokens_estimated"],
        reasoning_tokens=sums["reasoning_tokens"],
        ttft_p50_ms=None if ttft is None else ttft["p50"],
        ttft_p95_ms=None if ttft is None else ttft["p95"],
    )
