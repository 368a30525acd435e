"""The table has a place for every fact of a record, and a home keeps its id."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from governor.events import TurnDecided
from governor.store.home_id import ensure_home_id
from governor.store.model import TurnClosed, TurnOpened
from governor.store.schema import closing_row, decision_row, decisions, interrupt_statement, turns
from governor.types import Usage
from tests.store_records import closed, decided, opened


def test_every_field_of_a_record_has_a_column_and_every_column_a_reason() -> None:
    fields = {*TurnOpened.__struct_fields__, *TurnClosed.__struct_fields__, *Usage.__struct_fields__} - {"usage"}
    assert {column.name for column in turns.c} == fields | {"home_id", "run_id", "listed_at"}
    filled = {"home_id", "run_id", *closing_row(closed("t"), None)}
    assert {column.name for column in turns.c} == filled
    assert closing_row(closed("t"), opened("t")).keys() == closing_row(closed("t"), None).keys()


def test_every_fact_of_a_decision_has_a_column() -> None:
    assert {column.name for column in decisions.c} == {*TurnDecided.__struct_fields__, "number"}
    assert decision_row(1, decided("t")).keys() == set(decisions.c.keys())


def test_facts_may_be_unknown_in_every_column_but_the_few_that_place_the_row() -> None:
    required = {column.name for column in turns.c if not column.nullable}
    assert required == {"turn_id", "home_id", "run_id", "state", "listed_at"}


def test_open_rows_are_found_by_the_partial_index() -> None:
    engine = sa.create_engine("sqlite://")
    statement = interrupt_statement(home_id="h", run_id="r")
    with engine.connect() as connection:
        turns.create(connection)
        bound = statement.compile(engine, compile_kwargs={"literal_binds": True})
        plan = connection.execute(sa.text(f"EXPLAIN QUERY PLAN {bound}")).all()
    engine.dispose()
    assert any("ix_turns_open" in str(step) for step in plan)


def test_a_home_keeps_its_id_and_two_homes_differ(tmp_path: Path) -> None:
    first = ensure_home_id(tmp_path / "a")
    assert first
    assert ensure_home_id(tmp_path / "a") == first
    assert ensure_home_id(tmp_path / "b") != first


def test_a_home_id_torn_by_a_kill_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "home-id").touch()
    assert ensure_home_id(tmp_path)
    assert ensure_home_id(tmp_path) == ensure_home_id(tmp_path)
