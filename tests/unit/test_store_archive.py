"""What waits for the archive is bounded, and its tables have a place for every fact."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from governor.store.archive_backlog import ArchiveBacklog, Kept
from governor.store.archive_model import Compaction, Head
from governor.store.archive_schema import (
    compaction_row,
    compactions,
    entries,
    entry_row,
    head_row,
    heads,
    text_row,
    texts,
)
from tests.archive_records import compaction, head, left


def kept(name: str, size_bytes: int = 0) -> Kept:
    """With a text of this many bytes; of none, a note."""
    texts = (left("x" * (size_bytes - 2)),) if size_bytes else ()
    return Kept(number=0, compaction=compaction(name), left=texts)


def names(records: list[Kept] | tuple[Kept, ...]) -> list[str]:
    return [record.compaction.turn_id for record in records]


def backlog(**limits: int) -> ArchiveBacklog:
    return ArchiveBacklog(**{"most_records": 10, "most_bytes": 1_000, "take_bytes": 500, **limits})


def test_records_are_taken_oldest_first_and_numbered_in_the_order_given() -> None:
    waiting = backlog()
    for name in "abc":
        waiting.add(kept(name, 100))
    assert names(waiting.waiting()) == ["a", "b", "c"]
    taken = waiting.take(2)
    assert [(record.compaction.turn_id, record.number) for record in taken] == [("a", 1), ("b", 2)]
    assert names(waiting.take(2)) == ["c"]
    assert len(waiting) == waiting.dropped == 0


def test_what_finds_no_room_is_dropped_and_counted_and_the_older_stay() -> None:
    waiting = backlog(most_records=2)
    for name in "abc":
        waiting.add(kept(name))
    assert (names(waiting.waiting()), waiting.dropped) == (["a", "b"], 1)


def test_bytes_are_bounded_as_records_are_and_come_back_when_taken() -> None:
    waiting = backlog()
    waiting.add(kept("a", 600))
    waiting.add(kept("too much", 401))
    waiting.add(kept("fits", 400))
    assert (names(waiting.waiting()), waiting.dropped) == (["a", "fits"], 1)
    waiting.take(1)
    waiting.add(kept("b", 600))
    assert (names(waiting.waiting()), waiting.dropped) == (["fits", "b"], 1)


def test_the_bytes_of_a_head_count() -> None:
    record = Kept(number=0, compaction=compaction("a"), head=head("a", body="x" * 900))
    assert record.size_bytes() == sum(map(len, head("a", body="x" * 900).messages))
    waiting = backlog(most_bytes=900)
    waiting.add(record)
    assert waiting.dropped == 1


def test_one_take_is_bounded_in_bytes_but_takes_one_at_least() -> None:
    waiting = backlog()
    for name, size_bytes in (("a", 600), ("b", 200), ("c", 200)):
        waiting.add(kept(name, size_bytes))
    assert names(waiting.take(10)) == ["a"]
    assert names(waiting.take(10)) == ["b", "c"]


@pytest.mark.parametrize(
    ("table", "filled"),
    [
        (texts, {*text_row(left("x")), "home_id"}),
        (entries, {*entry_row(left("x"), b"digest", compaction("t")), "home_id"}),
        (heads, {*head_row(head("a")), "home_id"}),
        (compactions, {*compaction_row(1, compaction("t")), "home_id"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_column_is_filled(table: sa.Table, filled: set[str]) -> None:
    assert {column.name for column in table.c} == filled


def test_every_fact_has_a_column() -> None:
    assert set(Head.__struct_fields__) <= set(heads.c.keys())
    assert {*Compaction.__struct_fields__, "home_id", "number"} == set(compactions.c.keys())


def test_a_head_that_differs_in_anything_is_another_row() -> None:
    digests = {head_row(one)["digest"] for one in (head("a"), head("b"), head("a", at=1.0), head("a", body="x"))}
    assert len(digests) == 4
    assert head_row(head("a"))["digest"] == head_row(head("a"))["digest"]
