"""What the archive promises, on each database it supports."""

from __future__ import annotations

import secrets

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL

from governor.store.archive import HEADS_PER_SESSION
from governor.store.archive_model import CompactedBy, LeftText
from governor.store.archive_query import ArchiveReader
from governor.store.database import engine_for
from governor.store.errors import BadDatabaseUrl, StoreUnreadable
from governor.store.query import TurnLogReader
from governor.types import AgentName, TurnId
from tests.archive_records import ADA, BOB, S1, S2, archive, compaction, head, left
from tests.store_records import T0, closed, set_back, turn_log


def count(url: URL, table: str) -> int:
    with engine_for(url).connect() as connection, connection.begin():
        return int(connection.execute(sa.select(sa.func.count()).select_from(sa.table(table))).scalar_one())


WHOLE = compaction(
    "t1",
    at=T0 + 0.125,
    before_tokens=2**40,
    after_tokens=0,
    stages="stub 5, drop 6",
    detail="0 of 1",
    took_ms=1.5,
    summary_turn="t0",
)


async def test_all_that_is_kept_comes_back_as_it_was(url: URL) -> None:
    made, gone = head("a", at=T0 + 0.125, body="x" * 5000), left("ü" * 5000)
    with archive(url) as kept:
        kept.keep(made, (gone, left("b")), WHOLE)
        assert kept.flush(10)
        assert await kept.heads(ADA, S1) == (made,)
        found = await kept.recall(gone.handle, ADA)
        assert found is not None
        assert (found.left, found.agent, found.session, found.turn_id, found.left_at) == (
            gone,
            ADA,
            S1,
            "t1",
            T0 + 0.125,
        )
        assert await kept.compactions() == (WHOLE,)
        assert (kept.health().ok, kept.health().pending, kept.health().dropped) == (True, 0, 0)
    assert ArchiveReader(url).recall(gone.handle) == found
    with archive(url) as again:
        assert await again.heads(ADA, S1) == (made,), "after a restart"
        assert await again.recall(gone.handle) == found


async def test_what_waits_to_be_written_is_there_already(url: URL) -> None:
    older, newer, gone = head("older"), head("newer", at=T0 + 1), left("text")
    with archive(url) as kept:
        kept.keep(older, (), compaction("t0"))
        assert kept.flush(10)
    with archive(url, linger_s=30) as kept:
        assert kept.flush(10)
        kept.keep(newer, (gone,), compaction("t1"))
        assert await kept.heads(ADA, S1) == (older, newer)
        found = await kept.recall(gone.handle, ADA)
        assert found is not None
        assert found.left == gone
        assert kept.health().pending == 1
        assert count(url, "archive_heads") == 1


async def test_heads_are_those_of_the_session_alone(url: URL) -> None:
    mine, elsewhere, anothers = head("a"), head("b", session="s2"), head("c", agent="bob")
    with archive(url) as kept:
        kept.keep(mine, (), compaction("t1"))
        kept.keep(elsewhere, (), compaction("t2", session="s2"))
        kept.keep(anothers, (), compaction("t3", agent="bob"))
        for written in (False, True):
            if written:
                assert kept.flush(10)
            assert await kept.heads(ADA, S1) == (mine,)
            assert await kept.heads(ADA, S2) == (elsewhere,)
            assert await kept.heads(BOB, S1) == (anothers,)
            assert await kept.heads(BOB, S2) == ()


async def test_a_session_keeps_its_newest_heads(url: URL) -> None:
    made = [head(f"h{number}", at=T0 + number) for number in range(HEADS_PER_SESSION + 3)]
    with archive(url) as kept:
        kept.keep(head("other", session="s2"), (), compaction("t"))
        for number, one in enumerate(made):
            kept.keep(one, (), compaction(f"t{number}", at=T0 + number))
        assert await kept.heads(ADA, S1) == tuple(made[-HEADS_PER_SESSION:])
        assert kept.flush(10)
        assert await kept.heads(ADA, S1) == tuple(made[-HEADS_PER_SESSION:])
    assert count(url, "archive_heads") == HEADS_PER_SESSION + 1


async def test_an_agent_is_shown_only_what_its_own_turns_left(url: URL) -> None:
    shared, of_ada = left("both read this file"), left("ada alone")
    with archive(url) as kept:
        kept.keep(head("a"), (shared, of_ada), compaction("t1"))
        kept.keep(
            head("b", agent="bob", session="s2"), (shared,), compaction("t2", agent="bob", session="s2", at=T0 + 1)
        )
        for written in (False, True):
            if written:
                assert kept.flush(10)
            for agent, session, turn_id in ((ADA, S1, "t1"), (BOB, S2, "t2")):
                found = await kept.recall(shared.handle, agent)
                assert found is not None
                assert (found.left, found.agent, found.session, found.turn_id) == (shared, agent, session, turn_id)
            assert await kept.recall(of_ada.handle, BOB) is None
            anybodys = await kept.recall(of_ada.handle)
            assert anybodys is not None
            assert anybodys.agent == ADA
    assert count(url, "archive_texts") == 2, "the shared one is stored once"


async def test_two_texts_that_share_a_handle_are_not_mistaken_for_each_other(url: URL) -> None:
    of_ada, of_bob = left("mine"), msgspec.structs.replace(left("made to collide"), handle=left("mine").handle)
    with archive(url) as kept:
        kept.keep(head("b", agent="bob"), (of_bob,), compaction("t1", agent="bob"))
        assert kept.flush(10)
        kept.keep(head("a"), (of_ada,), compaction("t2"))
        assert kept.flush(10)
        for agent, own in ((ADA, of_ada), (BOB, of_bob)):
            found = await kept.recall(own.handle, agent)
            assert found is not None
            assert found.left == own


async def test_a_home_sees_nothing_of_another_in_the_same_database(url: URL) -> None:
    gone = left("text")
    with archive(url, home_id="home-b") as elsewhere:
        elsewhere.keep(head("a"), (gone,), compaction("t1"))
        assert elsewhere.flush(10)
        with archive(url) as here:
            assert here.flush(10)
            assert await here.heads(ADA, S1) == ()
            assert await here.recall(gone.handle) is None
            assert await here.compactions() == ()
        assert await elsewhere.recall(gone.handle, ADA) is not None


async def test_what_leaves_again_is_stored_once_and_has_its_newest_turn(url: URL) -> None:
    gone = left("text")
    with archive(url) as kept:
        kept.keep(head("a"), (gone, gone), compaction("t1"))
        assert kept.flush(10)
        kept.keep(head("b", at=T0 + 1), (gone,), compaction("t2", at=T0 + 1))
        assert kept.flush(10)
        found = await kept.recall(gone.handle, ADA)
        assert found is not None
        assert found.turn_id == "t2"
    assert (count(url, "archive_texts"), count(url, "archive_entries")) == (1, 1)


async def test_compactions_are_listed_newest_first_with_what_missed(url: URL) -> None:
    missed = compaction("t2", agent="bob", at=T0 + 1, outcome="gain too small", after_tokens=None, detail="1 < 2")
    by_client = compaction("t3", at=T0 + 2, by=CompactedBy.CLIENT, before_tokens=None)
    with archive(url) as kept:
        kept.keep(head("a"), (), WHOLE)
        kept.note(missed)
        kept.note(by_client)
        assert await kept.compactions() == (by_client, missed, WHOLE), "also those that wait"
        assert await kept.compactions(ADA) == (by_client, WHOLE)
        assert await kept.compactions(most=1) == (by_client,)
        assert await kept.compactions(AgentName("nobody")) == ()


async def test_several_compactions_of_one_turn_are_all_kept_and_each_once(url: URL) -> None:
    tries = [compaction("t1", at=T0 + number, outcome="no result") for number in range(3)]
    with archive(url) as kept:
        for one in tries:
            kept.note(one)
            assert kept.flush(10)
        assert await kept.compactions() == tuple(reversed(tries))


async def test_compressible_bodies_are_stored_compressed_and_others_as_they_are(url: URL) -> None:
    noise = secrets.token_bytes(5_000)
    plain, dense = left("x" * 100_000), LeftText(handle="gov-0123456789abcdef", body=noise, what="noise")
    with archive(url) as kept:
        kept.keep(head("a"), (plain, dense), WHOLE)
        assert kept.flush(10)
        for one in (plain, dense):
            found = await kept.recall(one.handle)
            assert found is not None
            assert found.left == one
    with engine_for(url).connect() as connection, connection.begin():
        sizes = connection.execute(sa.text("SELECT stored_bytes FROM archive_texts ORDER BY 1")).scalars().all()
    assert sizes[0] < 1_000
    assert sizes[1] == 5_000


async def test_text_that_databases_refuse_is_stored_with_replacement_marks(url: URL) -> None:
    odd = LeftText(handle="gov-0123456789abcdef", body=b"\xff\0any bytes", what="a\0b \ud800 ü")
    with archive(url) as kept:
        kept.keep(head("a"), (odd,), compaction("t1", detail="\0", stages="\ud800"))
        assert kept.flush(10)
        assert kept.health().dropped == 0
        found = await kept.recall(odd.handle)
        [listed] = await kept.compactions()
    assert found is not None
    assert (found.left.body, found.left.what) == (odd.body, "a\ufffdb ? ü")
    assert (listed.detail, listed.stages) == ("\ufffd", "?")


async def test_a_record_that_no_database_takes_is_dropped_alone_and_whole(url: URL) -> None:
    with archive(url) as kept:
        for number in range(10):
            bad = msgspec.structs.replace(head(f"h{number}", at=T0 + number), covered=2**70 if number == 7 else 1)
            kept.keep(bad, (left(f"x{number}"),), compaction(f"t{number}"))
        assert kept.flush(10)
        health = kept.health()
        assert (health.ok, health.dropped) == (True, 1)
        assert "t7" in str(health.last_error)
        assert await kept.recall(left("x7").handle) is None, "nothing of it is kept by halves"
        assert await kept.recall(left("x8").handle) is not None
        assert len(await kept.compactions()) == 9


async def test_a_database_of_before_the_archive_has_nothing_and_is_brought_up_to_date(url: URL) -> None:
    with turn_log(url) as log:
        log.closed(closed("t1"))
        assert log.flush(10)
    set_back(url, "0003")
    reader = ArchiveReader(url)
    assert (reader.recall("gov-0123456789abcdef"), reader.compactions(), reader.heads(ADA, S1, 8)) == (None, [], [])
    with archive(url) as kept, turn_log(url) as log:
        kept.keep(head("a"), (left("text"),), WHOLE)
        log.closed(closed("t2"))
        assert kept.flush(10)
        assert log.flush(10)
    assert reader.compactions() == [WHOLE]
    assert TurnLogReader(url).turn(TurnId("t1")) is not None


async def test_a_damaged_body_is_told_by_name_to_a_person_and_is_nothing_to_the_gateway(url: URL) -> None:
    with archive(url) as kept:
        kept.keep(head("a"), (left("x" * 500),), WHOLE)
        assert kept.flush(10)
        with engine_for(url).connect() as connection, connection.begin():
            connection.execute(sa.text("UPDATE archive_texts SET body = :body"), {"body": b"torn"})
            connection.execute(sa.text("UPDATE archive_heads SET messages = :body"), {"body": b"torn"})
        assert await kept.recall(left("x" * 500).handle, ADA) is None
        assert await kept.heads(ADA, S1) == ()
    with pytest.raises(StoreUnreadable, match="damaged"):
        ArchiveReader(url).recall(left("x" * 500).handle)


async def test_close_writes_what_waits_and_later_records_are_counted_as_dropped(url: URL) -> None:
    with archive(url, linger_s=30) as kept:
        kept.keep(head("a"), (left("text"),), WHOLE)
        assert kept.close(10) == 0
        assert kept.close(10) == 0
        kept.keep(head("b"), (left("late"),), compaction("t2"))
        kept.note(compaction("t3"))
        assert kept.health().dropped == 2
        assert await kept.heads(ADA, S1) == ()
        assert await kept.recall(left("text").handle) is None
        assert await kept.compactions() == ()
    assert ArchiveReader(url).recall(left("text").handle) is not None


@pytest.mark.parametrize("bad", ["nonsense", "mysql://h/db", "sqlite:///:memory:"])
def test_a_url_that_cannot_work_stops_the_start(bad: str) -> None:
    with pytest.raises(BadDatabaseUrl):
        archive(bad).__enter__()
