"""What clients do when they are refused, kept waiting, cut short, or full: one session without an engine."""

from __future__ import annotations

from random import Random

import pytest

from governor.simulate.acts import Answer, Compacted
from governor.simulate.behaviour import RULES, Retries, hermes_compaction, openclaw_compaction
from governor.simulate.generators import draw, turns_of
from governor.simulate.result import CompactionEnd, TurnEnd
from governor.types import PromptShape, TurnKind
from serve.twin.trace import Client, Compaction, Distribution, Echo, Generator, Piece, PieceKind, Trace
from tests.simulation import Heard, script, turn

OK = TurnEnd.STOP


def refused(retry_after_s: int | None = None) -> Answer:
    return Answer(end=TurnEnd.REFUSED, prompt_tokens=0, written=0, retry_after_s=retry_after_s)


def length(written: int) -> Answer:
    return Answer(end=TurnEnd.LENGTH, prompt_tokens=100, written=written)


def history(messages: int, tokens: int = 1000) -> tuple[Piece, ...]:
    return tuple(Piece(kind=PieceKind.TOOL, tokens=tokens) for _ in range(messages))


def full(client: Client = Client.HERMES, compaction: Compaction | None = None) -> Trace:
    """A session that is over its threshold at its second turn."""
    return script(
        turn(0, new=history(64)), turn(100, 40), turn(100, 40), client=client, compaction=compaction or Compaction()
    )


def compactions(heard: Heard) -> list[Compacted]:
    return [act for act in heard.acts if isinstance(act, Compacted)]


def test_hermes_threshold_as_it_was_seen() -> None:
    assert hermes_compaction(65_536, 8192, None).threshold_tokens == 48_742
    assert hermes_compaction(196_608, None, 0.65).threshold_tokens == int(196_608 * 0.65)


def test_openclaw_threshold_as_it_was_seen() -> None:
    assert openclaw_compaction(65_536, None).threshold_tokens == 49_152
    assert openclaw_compaction(196_608, None).threshold_tokens == 176_608


def test_retry_after_is_obeyed_by_who_reads_it() -> None:
    chance = Random(0)  # noqa: S311 - a test
    hermes, openclaw = RULES[Client.HERMES], RULES[Client.OPENCLAW]
    assert hermes.refused.wait_s(1, 7, chance) == 7.0
    assert hermes.broken.wait_s(1, 7, chance) == 3.0
    assert hermes.refused.wait_s(3, 7, chance) is None
    assert openclaw.broken.wait_s(1, 7, chance) == 7.0
    assert Retries(attempts=9, waits_s=(1.0, 2.0)).wait_s(5, None, chance) == 2.0


@pytest.mark.parametrize(("client", "attempts"), [(Client.PLAIN, 3), (Client.HERMES, 3), (Client.OPENCLAW, 10)])
def test_a_refused_request_is_sent_again_until_the_client_gives_up(client: Client, attempts: int) -> None:
    heard = Heard(script(turn(100), client=client))
    heard.play([refused()] * 20)
    assert [request.attempt for request in heard.requests] == list(range(1, attempts + 1))
    assert {request.asked_s for request in heard.requests} == {0.0}


def test_hermes_waits_as_told_and_sends_the_same() -> None:
    heard = Heard(script(turn(100), turn(50), client=Client.HERMES))
    heard.play([refused(30), OK])
    first, second, third = heard.requests
    assert first.prompt == second.prompt
    assert second.attempt == 2
    assert third.asked_s == 30.0
    assert third.prompt.cut(0, 100) == first.prompt


def test_openclaw_sends_its_message_in_other_words() -> None:
    heard = Heard(script(turn(100), turn(50), client=Client.OPENCLAW))
    heard.play([OK, refused(1), refused(1), OK])
    _, first, second, third = heard.requests
    assert [len(each.prompt) for each in (first, second, third)] == [200, 240, 240]
    assert second.prompt.common(first.prompt, 0) == 150
    assert third.prompt.common(second.prompt, 0) == 150


def test_openclaw_asks_for_no_more_than_is_left() -> None:
    heard = Heard(script(turn(65_000, cap=8192), client=Client.OPENCLAW))
    heard.play([OK])
    assert heard.requests[0].cap == 65_536 - 65_000 - 1


def test_hermes_goes_on_after_a_truncated_answer() -> None:
    heard = Heard(script(turn(100, 5000, cap=1000), client=Client.HERMES))
    heard.play([length(1000), length(2000), OK])
    first, second, third = heard.requests
    assert [len(each.output) for each in heard.requests] == [5000, 4000, 2000]
    assert [each.cap for each in heard.requests] == [1000, 2000, 4000]
    assert len(second.prompt) == 100 + 1000 + 60
    assert third.prompt.cut(0, len(second.prompt)) == second.prompt
    assert first.attempt == second.attempt == 1


def test_hermes_asks_to_go_on_four_times_and_no_more() -> None:
    heard = Heard(script(turn(100, 50_000), client=Client.HERMES))
    heard.play([length(1000)] * 10)
    assert len(heard.requests) == 5


def test_hermes_keeps_what_it_heard_of_an_answer_that_broke_off() -> None:
    heard = Heard(script(turn(100, 5000), client=Client.HERMES))
    heard.play([Answer(end=TurnEnd.GAVE_UP, prompt_tokens=100, written=700), OK])
    first, second = heard.requests
    assert (second.attempt, len(second.prompt), len(second.output)) == (1, 100 + 700 + 60, 4300)
    assert second.prompt.cut(100, 800) == first.output.cut(0, 700)


def test_a_plain_client_asks_again_for_an_answer_that_broke_off() -> None:
    heard = Heard(script(turn(100, 5000)))
    heard.play([Answer(end=TurnEnd.GAVE_UP, prompt_tokens=100, written=700), OK])
    first, second = heard.requests
    assert (second.attempt, second.prompt) == (2, first.prompt)


def test_others_take_a_truncated_answer_as_it_is() -> None:
    heard = Heard(script(turn(100, 5000), client=Client.OPENCLAW))
    heard.play([length(1000)] * 3)
    assert len(heard.requests) == 1


def test_hermes_cuts_its_history_when_it_has_a_summary() -> None:
    heard = Heard(full())
    heard.play([OK] * 4)
    first, summary, second, _ = heard.requests
    assert (summary.kind, summary.streams, summary.patience_s) == (TurnKind.COMPACTION, False, 120.0)
    assert summary.cap is None
    (row,) = compactions(heard)
    assert row.end is CompactionEnd.SUMMARY
    assert row.after_tokens < row.threshold_tokens <= row.before_tokens
    assert len(second.prompt) == row.after_tokens + 100
    assert second.prompt.common(first.prompt, 0) == 3000


def test_a_summary_that_is_late_changes_nothing_and_is_asked_for_again() -> None:
    heard = Heard(full())
    late = TurnEnd.GAVE_UP
    heard.play([OK, late, OK, late, OK])
    assert [each.kind is TurnKind.COMPACTION for each in heard.requests] == [False, True, False, True, False]
    rows = compactions(heard)
    assert [row.end for row in rows] == [CompactionEnd.ABANDONED] * 2
    assert all(row.after_tokens == row.before_tokens >= row.threshold_tokens for row in rows)
    one, two = heard.requests[1].prompt, heard.requests[3].prompt
    assert two.common(one, 0) == len(one)


def test_a_summary_that_is_refused_costs_hermes_its_history() -> None:
    heard = Heard(full())
    heard.play([OK, refused(1), refused(1), OK, OK])
    (row,) = compactions(heard)
    assert row.end is CompactionEnd.FALLBACK
    assert row.after_tokens < row.before_tokens


def test_reasoning_is_no_part_of_a_summary() -> None:
    heard = Heard(full(compaction=Compaction(summary_output=9000)))
    heard.play([OK] * 4)
    (row,) = compactions(heard)
    plain = Heard(full())
    plain.play([OK] * 4)
    assert len(heard.requests[1].output) == 9000
    assert row.after_tokens == compactions(plain)[0].after_tokens


def test_openclaw_saves_its_memory_and_asks_for_summaries_in_parts() -> None:
    heard = Heard(full(Client.OPENCLAW))
    heard.play([OK] * 6)
    assert [each.kind is TurnKind.COMPACTION for each in heard.requests] == [False, True, True, True, False, False]
    flush = heard.requests[1]
    assert len(flush.prompt) > 60_000
    assert flush.prompt.common(heard.requests[0].prompt, 0) == 0
    assert all(each.cap == 4096 for each in heard.requests[2:4])


def test_openclaw_keeps_its_history_when_a_summary_is_refused() -> None:
    heard = Heard(full(Client.OPENCLAW))
    heard.play([OK, OK, *[refused()] * 3, OK])
    (row,) = compactions(heard)
    assert row.end is CompactionEnd.ABANDONED


def test_openclaw_does_not_compact_between_tool_steps() -> None:
    trace = script(
        turn(0, new=history(64)), turn(100, part=PieceKind.TOOL), client=Client.OPENCLAW, compaction=Compaction()
    )
    heard = Heard(trace)
    heard.play([OK] * 3)
    assert not compactions(heard)


def test_an_overflow_makes_hermes_compact_and_ask_again() -> None:
    trace = script(turn(0, new=history(30)), client=Client.HERMES, compaction=Compaction())
    heard = Heard(trace)
    heard.play([TurnEnd.OVERFLOW, OK, OK])
    assert [each.kind is TurnKind.COMPACTION for each in heard.requests] == [False, True, False]
    assert len(heard.requests[2].prompt) < len(heard.requests[0].prompt)


def test_an_overflow_that_stays_ends_the_conversation() -> None:
    trace = script(turn(0, new=history(30)), turn(77), client=Client.HERMES, compaction=Compaction())
    heard = Heard(trace)
    heard.play([TurnEnd.OVERFLOW, TurnEnd.GAVE_UP, OK])
    assert len(heard.requests[-1].prompt) == 77


def test_a_plain_client_does_not_compact() -> None:
    heard = Heard(script(turn(100), turn(50), client=Client.PLAIN, compaction=Compaction()))
    heard.play([TurnEnd.TOO_LONG, OK])
    assert len(heard.requests) == 2


def test_turns_begin_after_the_answer_and_not_before_their_time() -> None:
    heard = Heard(script(turn(10, after_s=5.0), turn(10, after_s=5.0), turn(10, after_s=5.0, at_s=100.0)))
    heard.play([OK] * 3)
    assert [each.asked_s for each in heard.requests] == [5.0, 10.0, 100.0]


def test_a_draw_keeps_its_bounds() -> None:
    chance = Random(1)  # noqa: S311 - a test
    wide = Distribution(median=100, sigma=2.0, low=50, high=200)
    values = [draw(wide, chance) for _ in range(200)]
    assert (min(values), max(values)) == (50, 200)
    assert draw(Distribution(median=7), chance) == 7


def test_a_generator_begins_anew_after_its_rounds() -> None:
    spec = Generator(
        agent="a",
        session="s",
        until_s=1.0,
        rounds=Distribution(median=2),
        steps=Distribution(median=1),
        carrier_tokens=30,
        cap=99,
    )
    turns = turns_of(spec, Random(0))  # noqa: S311 - a test
    drawn = [next(turns) for _ in range(8)]
    assert [each.shape is PromptShape.FRESH for each in drawn] == [True, False, False, False] * 2
    assert [each.new[0].kind for each in drawn[:3]] == [PieceKind.USER, PieceKind.TOOL, PieceKind.USER]
    assert {(each.cap, each.echo, each.new[-1].tokens) for each in drawn} == {(99, Echo.REWRITTEN, 30)}
    again = turns_of(spec, Random(0))  # noqa: S311 - a test
    assert [next(again) for _ in range(8)] == drawn
