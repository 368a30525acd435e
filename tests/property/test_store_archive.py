"""Whatever is kept, in whatever order, whatever commits report: all of it is there, once, for whom it is."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.store.archive import HEADS_PER_SESSION, SqlArchive
from governor.store.archive_model import Compaction, Head
from governor.store.database import sqlite_url
from governor.types import AgentName, SessionId
from tests.archive_records import archive, compaction, head, left
from tests.property.test_store_turnlog import COMMIT_FAILS, COMMITS, OUTCOME_LOST, flaky_connections
from tests.store_records import T0

AGENTS, SESSIONS, TEXTS = ("ada", "bob"), ("s1", "s2"), ("one", "two", "three")
Step = tuple[str, str, str, list[str]]
NO_TEXTS: list[str] = []
KEEP = st.tuples(
    st.just("keep"), st.sampled_from(AGENTS), st.sampled_from(SESSIONS), st.lists(st.sampled_from(TEXTS), max_size=3)
)
NOTE = st.tuples(st.just("note"), st.sampled_from(AGENTS), st.sampled_from(SESSIONS), st.just(NO_TEXTS))
FLUSH = st.tuples(st.sampled_from(["flush", "restart", "look"]), st.just(""), st.just(""), st.just(NO_TEXTS))


@dataclass
class Expected:
    """What the archive should have: the rules of the port, said without a database."""

    heads: dict[tuple[str, str], list[Head]] = field(default_factory=dict)
    left_by: dict[tuple[str, str], str] = field(default_factory=dict)
    """Agent and text: the turn that left it last."""
    compactions: list[Compaction] = field(default_factory=list)

    def check(self, kept: SqlArchive) -> None:
        asyncio.run(self._check(kept))

    async def _check(self, kept: SqlArchive) -> None:
        for agent in AGENTS:
            for session in SESSIONS:
                found = await kept.heads(AgentName(agent), SessionId(session))
                assert list(found) == self.heads.get((agent, session), [])[-HEADS_PER_SESSION:]
            for text in TEXTS:
                recalled = await kept.recall(left(text).handle, AgentName(agent))
                assert (recalled and recalled.turn_id) == self.left_by.get((agent, text))
                assert recalled is None or (recalled.left, recalled.agent) == (left(text), agent)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.one_of(KEEP, KEEP, NOTE, FLUSH), max_size=25),
    commits=st.lists(st.sampled_from([COMMITS, COMMITS, COMMIT_FAILS, OUTCOME_LOST]), max_size=12),
)
def test_all_that_was_kept_is_there_once_and_for_its_agent_alone(steps: list[Step], commits: list[str]) -> None:
    expected = Expected()
    remaining: deque[Step] = deque(steps)
    with tempfile.TemporaryDirectory() as folder, flaky_connections() as script:
        script.extend(commits)
        url = sqlite_url(Path(folder) / "turns.db")
        while True:
            with archive(url) as kept:
                play(remaining, expected, kept)
                assert kept.close(10) == 0
                assert kept.health().dropped == 0
            if not remaining:
                break
        script.clear()
        with archive(url) as kept:
            assert kept.flush(10)
            expected.check(kept)
            assert asyncio.run(kept.compactions()) == tuple(reversed(expected.compactions))


def play(steps: deque[Step], expected: Expected, kept: SqlArchive) -> None:
    """Until a restart, or the end."""
    while steps:
        what, agent, session, names = steps.popleft()
        number = len(expected.compactions)
        at, turn_id = T0 + number, f"t{number}"
        match what:
            case "keep":
                made = head(turn_id, agent=agent, session=session, at=at)
                done = compaction(turn_id, agent=agent, session=session, at=at)
                kept.keep(made, tuple(map(left, names)), done)
                expected.heads.setdefault((agent, session), []).append(made)
                expected.left_by.update({(agent, name): turn_id for name in names})
                expected.compactions.append(done)
            case "note":
                missed = compaction(turn_id, agent=agent, session=session, at=at, outcome="unchanged")
                kept.note(missed)
                expected.compactions.append(missed)
            case "flush":
                assert kept.flush(10)
            case "look":
                expected.check(kept)
            case _:
                return
