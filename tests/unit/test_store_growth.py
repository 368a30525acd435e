"""Growth and broken prefixes, from rows that the real hash chain related."""

from __future__ import annotations

import msgspec
import pytest

from governor.context import COMPRESSED, FIRST_PROMPT, FRESH, NOT_CACHED, PrefixBreak
from governor.events import PrefixLost
from governor.store.growth import growth_of, newest_session, read_break
from governor.store.model import StoredTurn, TurnClosed
from governor.tokens.breaks import Break, BreakCause
from governor.types import PromptShape, TurnKind, Usage
from tests.logged import Talk

S = "s" * 1000


def closed(row: StoredTurn) -> TurnClosed:
    assert row.closed is not None
    return row.closed


def test_a_line_that_only_grows_has_lost_nothing() -> None:
    talk = Talk()
    talk.ask([S, "u" * 100], at=0, cached=0)
    talk.ask([S, "u" * 100, "a" * 500], at=1, cached=1096)
    talk.ask([S, "u" * 100, "a" * 500, "t" * 50], at=2, cached=1590)
    growth = growth_of(talk.rows, last=10)
    assert [turn.growth_tokens for turn in growth.turns] == [None, 500, 50]
    assert [turn.prompt_tokens for turn in growth.turns] == [1100, 1600, 1650]
    assert [turn.broke for turn in growth.turns] == [None, None, None]
    assert growth.causes == ()
    assert growth.mean_growth_tokens == 275


def test_a_break_has_a_place_and_a_price() -> None:
    talk = Talk()
    talk.ask(["It is 11:42. " + S, "u" * 4000], at=0, cached=0)
    talk.ask(["It is 11:43. " + S, "u" * 4000, "a" * 100], at=1, cached=10)
    talk.ask(["It is 11:44. " + S, "u" * 4000, "a" * 100], at=2, cached=13)
    growth = growth_of(talk.rows, last=10)
    first, second, third = growth.turns
    assert first.broke is None
    assert second.broke is not None
    assert third.broke is not None
    assert (second.broke.cause, second.broke.message) == (BreakCause.VOLATILE, 0)
    assert second.broke.byte is not None
    assert second.broke.lost_tokens == 5113 - 10 - 100
    assert third.broke.lost_tokens == 5113 - 13
    [total] = growth.causes
    assert (total.cause, total.count, total.unknown) == ("volatile", 2, 0)
    assert total.lost_tokens == 5003 + 5100
    assert total.last_turn == talk.rows[2].turn_id
    assert total.last_place.startswith("message 0, byte ")


def test_an_engine_that_does_not_tell_leaves_the_price_open() -> None:
    talk = Talk()
    talk.ask(["It is 11:42. " + S, "u" * 400], at=0)
    talk.ask(["It is 11:43. " + S, "u" * 400], at=1)
    [total] = growth_of(talk.rows, last=10).causes
    assert (total.lost_tokens, total.count, total.unknown) == (0, 1, 1)


def test_a_continuation_that_was_not_cached_is_a_loss_of_its_own() -> None:
    talk = Talk()
    talk.ask([S, "u" * 5000], at=0, cached=0)
    talk.ask([S, "u" * 5000, "a" * 100], at=1, cached=0)
    talk.ask([S, "u" * 5000, "a" * 100, "b" * 100], at=2, cached=6000)
    growth = growth_of(talk.rows, last=10)
    assert [turn.broke.cause if turn.broke else None for turn in growth.turns] == [None, NOT_CACHED, None]
    [total] = growth.causes
    assert (total.lost_tokens, total.last_place) == (6000, "")


def test_a_prompt_of_its_own_in_the_same_session_is_no_eviction() -> None:
    talk = Talk()
    talk.ask([S, "u" * 5000], at=0, cached=0)
    talk.ask(["t" * 3000, "v" * 3000], at=1, cached=0)
    assert talk.shapes[1] is PromptShape.FRESH
    [total] = growth_of(talk.rows, last=10).causes
    assert (total.cause, total.lost_tokens, total.last_place) == (FRESH, 6000, "")


def test_our_own_compression_is_named_as_such() -> None:
    talk = Talk()
    talk.ask([S, "u" * 9000], at=0, cached=0)
    usage = Usage(prompt_tokens=3000, completion_tokens=10, cached_tokens=1000)
    talk.ask([S, "u" * 9000, "a" * 100], at=1, usage=usage, edits=("compressed: 10,100 -> 3,000 tokens (trim)",))
    growth = growth_of(talk.rows, last=10)
    broke = growth.turns[-1].broke
    assert broke is not None
    assert (broke.cause, broke.lost_tokens) == (COMPRESSED, 2000)
    assert growth.turns[-1].growth_tokens == -7000


def test_side_turns_are_no_part_of_the_line() -> None:
    talk = Talk()
    talk.ask([S, "u" * 100], at=0, cached=0)
    talk.ask([S, "u" * 100, "review"], at=1, cached=1000, kind=TurnKind.BACKGROUND)
    talk.ask(["summarise"], at=2, kind=TurnKind.COMPACTION)
    talk.ask([S, "u" * 100, "a" * 10], at=3, cached=1100)
    growth = growth_of(talk.rows, last=10)
    assert [turn.growth_tokens for turn in growth.turns] == [None, 10]
    assert growth.side_turns == 2


def test_turns_without_an_end_or_a_report_are_shown_for_what_they_are() -> None:
    talk = Talk()
    talk.ask([S, "u" * 100], at=0, cached=0, window_tokens=8192)
    talk.ask([S, "u" * 100, "a"], at=1, output=None)
    running = msgspec.structs.replace(talk.ask([S, "u" * 100, "a", "b"], at=2), closed=None)
    growth = growth_of([*talk.rows[:2], running], last=10)
    assert [turn.estimated for turn in growth.turns] == [False, True]
    assert growth.turns[1].growth_tokens == 1
    assert growth.window_tokens == 8192
    assert growth_of([], last=5).turns == ()


def test_only_the_last_turns_are_told_and_counted() -> None:
    talk = Talk()
    for number in range(6):
        talk.ask([f"It is 1{number}:00. " + S, "u" * 500], at=number, cached=0)
    growth = growth_of(talk.rows, last=2)
    assert len(growth.turns) == 2
    assert growth.turns[0].growth_tokens == 0
    assert growth.causes[0].count == 2


def test_losses_that_were_named_at_the_turns_end_are_told_as_they_were() -> None:
    talk = Talk()
    talk.ask([S, "u" * 5000], at=0, cached=0)
    talk.ask([S, "u" * 5000, "a" * 100], at=1, cached=0)
    first, second = talk.rows
    lost = [
        PrefixLost(
            at=0.0, turn_id=second.turn_id, agent="ada", cause="evicted", tokens=4000, seconds=2.0, margin_s=0.5
        ),
        PrefixLost(at=0.0, turn_id=second.turn_id, agent="ada", cause="edited", tokens=2000, message=1, byte=7),
    ]
    cost = PrefixLost(at=0.0, turn_id=first.turn_id, agent="ada", cause=FIRST_PROMPT, tokens=6000)
    rows = [
        msgspec.structs.replace(first, losses=(cost,)),
        msgspec.structs.replace(second, losses=tuple(lost)),
    ]
    growth = growth_of(rows, last=10)
    assert growth.turns[0].broke is None
    assert growth.turns[1].broke == PrefixBreak(cause="evicted", lost_tokens=4000, lost_s=2.0)
    assert [(total.cause, total.lost_tokens, total.lost_s, total.last_place) for total in growth.causes] == [
        ("evicted", 4000, 2.0, ""),
        ("edited", 2000, None, "message 1, byte 7"),
    ]


def test_the_newest_session_is_that_of_a_main_line() -> None:
    talk = Talk(session=None)
    talk.ask([S, "one"], at=0)
    talk.ask(["Generate a title", "for this"], at=1, kind=TurnKind.TITLE)
    main, title = talk.rows
    assert closed(main).session != closed(title).session
    assert newest_session([title, main]) == closed(main).session
    assert newest_session([title]) == closed(title).session
    assert newest_session([]) is None


@pytest.mark.parametrize(
    "broke",
    [
        Break(cause=BreakCause.VOLATILE, message=0, byte=1234),
        Break(cause=BreakCause.UNKNOWN, message=7),
        Break(cause=BreakCause.TOOLS_CHANGED, byte=9, detail="without a (b); with c"),
        Break(cause=BreakCause.MODEL_CHANGED),
    ],
)
def test_a_break_is_read_as_it_was_written(broke: Break) -> None:
    read = read_break(str(broke))
    assert (read.cause, read.message, read.byte, read.detail) == (broke.cause, broke.message, broke.byte, broke.detail)


def test_a_break_of_another_kind_is_no_lie() -> None:
    read = read_break("\x1b[2Jsomewhere\nelse")
    assert (read.cause, read.message, read.byte, read.detail) == ("unknown", None, None, "\\x1b[2Jsomewhere\\nelse")
    assert read_break(str(Break(cause=BreakCause.TOOLS_CHANGED, detail="with \x1b[31m"))).detail == "with \\x1b[31m"
