"""The turn scheduler with sizes: leases, order, waiting budgets, pauses."""

from __future__ import annotations

import msgspec
import pytest

from governor.budget.claim import Capacity, Claim, Segment, Sight
from governor.budget.ledger import GRACE_S
from governor.policy.model import LimitPolicy, SharePolicy, SlicePolicy
from governor.schedule.effects import Refusal
from governor.schedule.events import (
    EngineChanged,
    EngineMode,
    EngineSeen,
    FloorsChanged,
    TimePassed,
    TurnArrived,
    TurnEnded,
    TurnPaused,
    TurnStarted,
    TurnWrote,
)
from governor.schedule.turns import TurnScheduler
from governor.types import AgentClass, AgentName, TurnId, TurnKind
from tests.scheduling import RecordedEffects

SLICES = SlicePolicy(quantum_s=10.0, yield_after_s=4.0, lookahead=1000)


class Table:
    """A scheduler before an engine of ``tokens`` KV tokens; ``now`` is moved by hand."""

    def __init__(self, tokens: int | None = 100_000, *, slots: int | None = None, pauses: bool = True) -> None:
        self.effects = RecordedEffects()
        self.scheduler = TurnScheduler(self.effects)
        self.now = 0.0
        self.turns: dict[str, TurnArrived] = {}
        ready = EngineChanged(EngineMode.READY, slots, capacity=Capacity(tokens=tokens), pauses=pauses)
        self.scheduler.on_event(0.0, ready)

    def arrive(
        self,
        name: str,
        prompt: int,
        output: int = 1_000,
        *,
        agent: str = "",
        agent_class: AgentClass = AgentClass.NORMAL,
        share: SharePolicy = SharePolicy(),  # noqa: B008 - a frozen value
        resident: int = 0,
        session: str | None = None,
        new: int | None = None,
        prompt_name: bytes = b"",
        most_output: int | None = None,
        choices: int = 1,
    ) -> None:
        turn_id, owner = TurnId(name), AgentName(agent or name)
        segments = (Segment(name.encode(), prompt),)
        self.turns[name] = TurnArrived(
            turn_id=turn_id,
            agent=owner,
            agent_class=agent_class,
            kind=TurnKind.FINAL,
            limits=LimitPolicy(),
            share=share,
            slices=SLICES,
            claim=Claim(
                turn_id=turn_id,
                agent=owner,
                segments=segments,
                output_tokens=output,
                choices=choices,
                most_output_tokens=most_output,
            ),
            new_tokens=new,
            resident_tokens=resident,
            session=session,
            prompt=prompt_name,
        )
        self.post(self.turns[name])

    def post(self, event: object) -> None:
        self.scheduler.on_event(self.now, event)  # type: ignore[arg-type]
        self.scheduler.check_integrity()

    def start(self, *names: str) -> None:
        for name in names:
            self.post(TurnStarted(TurnId(name)))

    def at(self, now: float) -> None:
        """Let time pass as the owner task does: from deadline to deadline."""
        while (due := self.scheduler.next_deadline(self.now)) is not None and due < now:
            self.now = max(due, self.now)
            self.post(TimePassed())
        self.now = now
        self.post(TimePassed())

    def end(self, name: str, *, confirmed: bool = True) -> None:
        self.post(TurnEnded(TurnId(name), confirmed))

    def paused(self, name: str, wrote: int) -> None:
        claim = self.turns[name].claim
        assert claim is not None
        prompt = Segment(name.encode() + b"+", claim.prompt_tokens + wrote)
        grown = msgspec.structs.replace(claim, segments=(prompt,))
        self.post(TurnPaused(turn_id=TurnId(name), claim=grown))

    @property
    def granted(self) -> str:
        return "".join(self.effects.granted)


def test_the_most_that_fits_runs_and_no_more() -> None:
    table = Table()
    for name in "abcd":
        table.arrive(name, 30_000, 2_000)
    assert table.granted == "abc"
    assert table.effects.queued == {"d": "needs 32,000 KV tokens, 28,000 more than are free"}
    table.end("b")
    assert table.granted == "abcd"


def test_one_that_never_fits_is_refused_at_once_with_the_numbers() -> None:
    table = Table()
    table.arrive("a", 120_000)
    refusal, reason, _ = table.effects.rejected[TurnId("a")]
    assert refusal is Refusal.TOO_LARGE
    assert "120,000 prompt tokens and 1,000 for the answer never fit the engine's 100,000 KV tokens" in reason


def test_small_ones_pass_a_large_one_that_does_not_fit() -> None:
    table = Table(pauses=False)
    table.arrive("a", 60_000)
    table.arrive("b", 60_000)
    table.arrive("c", 10_000)
    assert table.granted == "ac"


def test_nobody_passes_one_that_has_waited_beyond_its_budget() -> None:
    table = Table(pauses=False)
    table.arrive("a", 60_000)
    table.arrive("b", 60_000, share=SharePolicy(waiting_s=20.0))
    table.at(20.0)
    table.arrive("c", 10_000)
    assert table.granted == "a"
    assert "goes first" in table.effects.queued[TurnId("c")]
    table.end("a")
    assert table.granted == "abc"


def test_in_a_class_the_agent_with_the_least_service_of_late_goes_first() -> None:
    table = Table(slots=1, pauses=False)
    table.arrive("a", 50_000, agent="hog")
    table.at(30.0)
    table.arrive("b", 1_000, agent="hog")
    table.arrive("c", 1_000, agent="calm")
    table.end("a")
    assert table.granted == "ac"


def test_a_weight_divides_the_service() -> None:
    table = Table(slots=2, pauses=False)
    table.arrive("a", 40_000, agent="heavy", share=SharePolicy(weight=4.0))
    table.arrive("b", 20_000, agent="light")
    table.at(10.0)
    table.arrive("c", 100, agent="light")
    table.arrive("d", 100, agent="heavy", share=SharePolicy(weight=4.0))
    table.end("a")
    assert table.granted == "abd"


def test_among_equals_the_deepest_cached_prefix_goes_first() -> None:
    table = Table(slots=1, pauses=False)
    table.arrive("x", 1_000)
    table.arrive("a", 50_000, resident=0)
    table.arrive("b", 50_000, resident=40_000)
    table.end("x")
    assert table.granted == "xb"


def test_a_running_answer_is_paused_after_its_quantum_for_one_that_has_waited() -> None:
    table = Table()
    table.arrive("a", 80_000)
    table.start("a")
    table.at(8.0)
    table.arrive("b", 40_000)
    table.at(9.9)
    assert not table.effects.paused
    table.at(12.0)  # b has waited 4 s, a has run 12 s
    assert "b has waited 4 s" in table.effects.paused[TurnId("a")]
    assert table.granted == "a"  # its room is not free before it has stopped
    table.paused("a", 500)
    assert table.granted == "ab"
    table.start("b")
    table.end("b")
    assert table.granted == "aba"
    assert table.effects.why[TurnId("a")].startswith("goes on after")


def test_a_paused_answer_comes_back_in_its_turn() -> None:
    """Two that do not fit together share the time; none of them is idle beyond its waiting budget."""
    table = Table()
    table.arrive("a", 80_000)
    table.arrive("b", 80_000)
    ran, since, idle = {"a": 0.0, "b": 0.0}, 0.0, {"a": 0.0, "b": 0.0}
    running = "a"
    for second in range(1, 601):
        table.at(float(second))
        table.start(running)
        if TurnId(running) in table.effects.paused:
            ran[running] += second - since
            idle[running], other = float(second), "b" if running == "a" else "a"
            table.paused(running, 10)
            assert table.granted.endswith(other)
            assert second - idle[other] <= 40.0
            running, since = other, float(second)
    assert min(ran.values()) > 0.4 * sum(ran.values())


def test_nobody_is_paused_when_that_does_not_help() -> None:
    table = Table()
    table.arrive("a", 30_000)
    table.arrive("b", 60_000, agent="b", agent_class=AgentClass.INTERACTIVE)
    table.start("a", "b")
    table.at(60.0)
    table.arrive("c", 50_000)  # needs b's room, and b is of a better class
    table.at(80.0)
    assert not table.effects.paused


def test_an_answer_of_a_worse_class_is_paused_whatever_its_service() -> None:
    table = Table()
    table.arrive("a", 70_000, agent_class=AgentClass.BACKGROUND)
    table.start("a")
    table.at(10.0)
    table.arrive("b", 60_000, agent="b", agent_class=AgentClass.INTERACTIVE)
    table.at(14.0)
    assert TurnId("a") in table.effects.paused


def test_an_engine_that_cannot_pause_is_never_asked_to() -> None:
    table = Table(pauses=False)
    table.arrive("a", 80_000)
    table.arrive("b", 40_000)
    table.at(500.0)
    assert not table.effects.paused


def test_a_long_prefill_loses_its_place_to_a_short_turn_inside_the_engine() -> None:
    table = Table(tokens=300_000)
    table.arrive("a", 140_000)
    table.at(5.0)
    table.arrive("b", 5_000, new=500)
    assert table.granted == "ab"
    table.at(19.9)
    assert not table.effects.paused  # a has not had its two quanta
    table.at(20.0)
    assert "has kept b waiting in the engine" in table.effects.paused[TurnId("a")]


def test_no_prefill_is_stopped_for_a_fetch() -> None:
    """Nobody waits for that one."""
    table = Table(tokens=300_000)
    table.arrive("a", 140_000, agent_class=AgentClass.BACKGROUND)
    table.at(5.0)
    made = Claim(turn_id=TurnId("b"), agent=AgentName("b"), segments=(Segment(b"b", 5_000),), output_tokens=1)
    fetch = msgspec.structs.replace(
        table.turns["a"], turn_id=TurnId("b"), agent=AgentName("b"), claim=made, new_tokens=None, fetches=True
    )
    table.post(fetch)
    assert table.granted == "ab"
    table.at(100.0)
    assert not table.effects.paused


def test_an_answers_quantum_begins_with_its_first_token() -> None:
    table = Table()
    table.arrive("a", 80_000)
    table.at(28.0)
    table.start("a")
    table.arrive("b", 40_000)
    table.at(37.9)  # b has waited for long enough, and a has run for 38 s
    assert not table.effects.paused
    table.at(38.0)
    assert "a" in table.effects.paused


def test_where_a_return_takes_long_a_quantum_takes_longer() -> None:
    table = Table(tokens=100_000)
    table.arrive("a", 80_000)
    table.start("a")
    table.arrive("b", 40_000)
    table.at(10.0)
    table.paused("a", 100)
    table.start("b")
    table.end("b")
    table.at(40.0)
    table.start("a")  # 30 s after its grant: its context had to be computed again
    table.arrive("c", 40_000, share=SharePolicy(waiting_s=1_000.0))
    table.at(40.0 + 4 * 30.0 - 1.0)
    assert "a" not in table.effects.paused
    table.at(40.0 + 4 * 30.0)
    assert "a" in table.effects.paused


def test_a_prefill_is_not_stopped_for_one_as_long_before_that_is_beyond_its_budget() -> None:
    table = Table()
    table.arrive("a", 80_000)
    table.arrive("b", 70_000, share=SharePolicy(waiting_s=15.0))
    table.at(39.9)
    assert not table.effects.paused  # four quanta
    table.at(40.0)
    assert "a" in table.effects.paused


def test_two_long_prefills_do_not_keep_each_other_from_their_first_token() -> None:
    """Each stop costs what is computed in five seconds; each needs two minutes."""
    table = Table()
    left, granted_at, running = {"a": 120.0, "b": 120.0}, 0.0, "a"
    table.arrive("a", 80_000)
    table.arrive("b", 80_000)
    for second in range(1, 1001):
        table.at(float(second))
        done = min(left[running], second - granted_at)
        if left[running] == done:
            table.start(running)
            table.end(running)
            del left[running]
            if not left:
                break
        elif running in table.effects.paused:
            left[running] -= max(0.0, done - 5.0)
            table.paused(running, 0)
        else:
            continue
        running, granted_at = table.effects.granted[-1], float(second)
    assert not left
    assert second < 1.3 * 240


def test_nobody_is_paused_while_the_line_moves_by_itself() -> None:
    """Two places; one answer goes on and on, the others take two seconds each."""
    table = Table(slots=2)
    table.arrive("a", 10_000)
    table.start("a")
    names = [f"b{number}" for number in range(20)]
    for name in names:
        table.arrive(name, 1_000)
    for number, name in enumerate(names[:10]):
        table.start(name)
        table.at(2.0 * number + 2.0)
        table.end(name)
    assert not table.effects.paused
    table.start(names[10])
    table.at(23.9)
    assert not table.effects.paused
    table.at(24.0)  # the last one was let in 4 s ago
    assert list(table.effects.paused) == ["a"]


def test_an_answer_goes_on_before_the_engine_has_confirmed_its_pause() -> None:
    table = Table()
    table.arrive("a", 80_000)
    table.start("a")
    table.arrive("b", 40_000)
    table.at(10.0)
    table.post(TurnPaused(turn_id=TurnId("a"), claim=table.turns["a"].claim, confirmed=False))
    table.end("b")
    assert table.granted == "aa"
    assert table.scheduler.ledger.held_tokens == 81_000


def test_what_is_written_is_reserved_ahead() -> None:
    table = Table()
    table.arrive("a", 50_000, 1_000)
    for written in range(100, 6_000, 100):
        table.post(TurnWrote(TurnId("a"), written))
        assert table.scheduler.ledger.held_tokens >= 50_000 + written
    assert table.scheduler.ledger.held_tokens <= 50_000 + 6_000 + 1_000


def test_no_more_is_reserved_than_may_be_written() -> None:
    table = Table()
    table.arrive("a", 50_000, 1_000, most_output=2_500)
    for written in range(0, 4_000, 100):  # a high guess of what is written
        table.post(TurnWrote(TurnId("a"), written))
    assert table.scheduler.ledger.held_tokens == 52_500


def test_an_answer_that_has_all_of_its_cap_asks_nobody_for_room() -> None:
    table = Table()
    table.arrive("a", 60_000, 2_000, most_output=2_000)
    table.arrive("b", 38_000, 0)
    table.start("a", "b")
    table.at(20.0)
    for written in range(0, 3_000, 100):
        table.post(TurnWrote(TurnId("a"), written))
    assert not table.effects.paused


def test_an_answer_that_fills_l1_alone_is_left_to_the_engine() -> None:
    table = Table(10_000)
    table.arrive("a", 8_500, 1_000)
    table.start("a")
    for written in range(0, 3_000, 100):
        table.post(TurnWrote(TurnId("a"), written))
    assert not table.effects.paused
    assert table.scheduler.ledger.held_tokens == 10_000


def test_a_full_l1_pauses_whoever_has_had_most() -> None:
    table = Table()
    table.arrive("a", 60_000, 1_000)
    table.arrive("b", 36_000, 1_000)
    table.start("a", "b")
    table.at(20.0)
    for written in (800, 1_800, 2_800, 3_800):
        table.post(TurnWrote(TurnId("b"), written))
    assert list(table.effects.paused) == ["a"]
    assert "L1 is full" in table.effects.paused[TurnId("a")]


def test_another_is_paused_where_one_does_not_stop() -> None:
    """It may be writing a tool call, which is not taken apart, or its abort was lost."""
    table = Table()
    table.arrive("a", 45_000)
    table.arrive("b", 45_000)
    table.start("a", "b")
    table.arrive("c", 40_000, share=SharePolicy(waiting_s=1_000.0))
    table.at(10.0)
    [first] = table.effects.paused
    table.at(10.0 + GRACE_S - 0.1)
    assert list(table.effects.paused) == [first]
    table.at(10.0 + GRACE_S)
    assert len(table.effects.paused) == 2
    table.at(100.0)
    assert len(table.effects.paused) == 2


def test_what_is_written_is_reserved_while_an_answer_does_not_stop() -> None:
    table = Table()
    table.arrive("a", 70_000, 1_000)
    table.start("a")
    table.arrive("b", 40_000)
    table.at(10.0)
    assert "a" in table.effects.paused
    for written in range(100, 3_000, 100):
        table.post(TurnWrote(TurnId("a"), written))
        assert table.scheduler.ledger.held_tokens >= 70_000 + written


def test_a_floor_is_left_free_for_its_owner() -> None:
    table = Table(pauses=False)
    table.post(FloorsChanged({AgentName("b"): 30_000}))
    table.arrive("a", 10_000)
    table.arrive("c", 70_000)
    assert table.granted == "a"
    table.arrive("b", 28_000)
    assert table.granted == "ab"


def test_a_ceiling_bounds_an_agents_turns_together_and_never_one_alone() -> None:
    table = Table()
    share = SharePolicy(ceiling_tokens=30_000)
    table.arrive("a", 40_000, agent="x", share=share)
    table.arrive("b", 1_000, agent="x", share=share)
    assert table.granted == "a"
    assert "holds 41,000 of its 30,000" in table.effects.queued[TurnId("b")]


def test_an_engine_that_tells_nothing_is_not_waited_for() -> None:
    table, share = Table(None, pauses=False), SharePolicy(ceiling_tokens=30_000)
    table.arrive("a", 25_000, agent="x", share=share)
    table.end("a", confirmed=False)
    table.arrive("b", 25_000, agent="x", share=share)
    assert table.granted == "ab"
    table.at(GRACE_S + 1.0)
    assert not table.effects.taken_back


def test_whoever_is_at_its_ceiling_keeps_nobody_else_waiting() -> None:
    table, share = Table(), SharePolicy(ceiling_tokens=30_000)
    table.arrive("a", 25_000, agent="x", share=share)
    table.arrive("z", 60_000)
    table.arrive("b", 10_000, agent="x", share=share)
    table.arrive("c", 50_000)
    table.at(60.0)
    table.end("z")
    table.arrive("d", 10_000)
    assert table.granted == "azcd"
    table.end("a")
    assert table.granted == "azcdb"


def test_answers_are_paused_for_the_first_that_its_own_ceiling_does_not_keep_back() -> None:
    table, share = Table(), SharePolicy(ceiling_tokens=30_000)
    table.arrive("a", 25_000, agent="x", agent_class=AgentClass.INTERACTIVE, share=share)
    table.arrive("z", 60_000)
    table.start("a", "z")
    table.arrive("b", 10_000, agent="x", agent_class=AgentClass.INTERACTIVE, share=share)
    table.arrive("c", 50_000)
    table.at(30.0)
    assert list(table.effects.paused) == ["z"]


def test_a_turn_behind_another_of_its_conversation_keeps_nobody_else_waiting() -> None:
    table = Table(pauses=False)
    table.arrive("a", 10_000, agent="x", session="s")
    table.arrive("f", 60_000)
    table.arrive("b", 60_000, agent="x", session="s", share=SharePolicy(waiting_s=20.0))
    table.at(30.0)
    table.arrive("c", 10_000)
    assert table.granted == "afc"


def test_whoever_is_refused_keeps_nobody_waiting_any_more() -> None:
    table = Table(pauses=False)
    table.arrive("a", 60_000)
    table.arrive("b", 60_000, share=SharePolicy(waiting_s=20.0))
    table.at(21.0)
    table.arrive("c", 10_000)
    assert table.granted == "a"
    table.at(600.0)
    assert "b" in table.effects.rejected
    assert table.granted == "ac"


def test_background_leaves_room_for_better_classes_unless_it_is_alone() -> None:
    table = Table()
    table.arrive("a", 95_000, agent_class=AgentClass.BACKGROUND)
    assert table.granted == "a"
    table.end("a")
    table.arrive("b", 20_000)
    table.arrive("c", 70_000, agent_class=AgentClass.BACKGROUND)
    assert table.granted == "ab"


def test_one_turn_of_a_conversation_at_a_time() -> None:
    table = Table()
    table.arrive("a", 1_000, agent="x", session="s")
    table.arrive("b", 2_000, agent="x", session="s")
    table.arrive("c", 2_000, agent="x", session="t")
    assert table.granted == "ac"
    table.end("a")
    assert table.granted == "acb"


def test_a_lost_abort_holds_its_room_until_the_engine_or_the_grace_says_otherwise() -> None:
    table = Table()
    table.arrive("a", 80_000)
    table.now = 1.0
    table.end("a", confirmed=False)
    table.arrive("b", 40_000)
    assert table.granted == "a"
    table.now = 3.0
    table.post(EngineSeen(sight=Sight(asked_at=2.5, running=0)))
    assert table.granted == "ab"
    table.now = 4.0
    table.end("b", confirmed=False)
    table.arrive("c", 80_000)
    table.at(4.0 + GRACE_S)
    assert table.granted == "abc"


def test_a_new_engine_holds_nothing_of_what_was() -> None:
    table = Table()
    table.arrive("a", 80_000)
    table.arrive("b", 60_000)
    table.end("a", confirmed=False)
    assert table.granted == "a"
    capacity = Capacity(tokens=100_000)
    table.post(EngineChanged(EngineMode.READY, capacity=capacity, pauses=True, anew=True))
    assert table.granted == "ab"


def test_turns_of_a_dead_engine_end_though_a_smaller_one_has_no_room_for_them() -> None:
    table = Table()
    table.arrive("a", 60_000)
    table.arrive("b", 30_000)
    capacity = Capacity(tokens=40_000)
    table.post(EngineChanged(EngineMode.READY, capacity=capacity, pauses=True, anew=True))
    assert table.scheduler.ledger.held_tokens == 31_000
    table.end("a", confirmed=False)
    table.end("b", confirmed=False)
    table.arrive("c", 39_000)
    table.at(GRACE_S)
    assert table.granted == "abc"


def test_a_better_class_does_not_starve_a_worse_one() -> None:
    table = Table(slots=1, pauses=False)
    table.arrive("x", 100)
    table.arrive("b", 100, agent_class=AgentClass.BACKGROUND, share=SharePolicy(waiting_s=60.0))
    running = "x"
    for second in range(1, 120):
        table.at(float(second))
        table.arrive(f"i{second}", 100, agent="person", agent_class=AgentClass.INTERACTIVE)
        table.end(running)
        running = table.effects.granted[-1]
        if running == "b":
            break
    assert running == "b"
    assert table.now == pytest.approx(60.0, abs=2.0)


def test_choices_that_do_not_fit_at_once_are_no_reason_to_refuse() -> None:
    table = Table(tokens=16_000, pauses=False)
    table.arrive("a", 1_000, 8_000, choices=4)
    assert table.granted == "a"
    assert table.scheduler.ledger.held_tokens <= 16_000
    table.arrive("b", 1_000, 8_000, choices=4)
    table.arrive("c", 9_000, 8_000, choices=4)
    assert TurnId("c") in table.effects.rejected
    table.end("a")
    assert table.granted == "ab"
