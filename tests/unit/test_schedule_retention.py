"""Who is believed to be in L1, who rests, and who is fetched back."""

from __future__ import annotations

from collections.abc import Container

import pytest

from governor.budget.claim import Capacity, Claim, Segment
from governor.policy.model import LimitPolicy, SharePolicy
from governor.schedule.events import EngineChanged, EngineMode, Left, TurnArrived, TurnEnded, TurnPaused, TurnWrote
from governor.schedule.recency import MOST_CONTEXTS, Recency
from governor.schedule.retention import FORGET_S, MOST_RESTING, Retention
from governor.schedule.toolclock import ENOUGH
from governor.types import AgentClass, AgentName, TurnId, TurnKind

L1 = 100_000
FETCHED = SharePolicy(prewarm=True)


def agent_of(context: str) -> AgentName:
    return AgentName(context.partition("/")[0])


class Table:
    """Plays whole turns. Of ``x`` nobody knows when it returns."""

    def __init__(self, capacity: int | None = L1) -> None:
        self.retention = Retention()
        self.now = 0.0
        self.having: Container[str] = {"a/1", "b/1", "x/1"}
        self._count = 0
        self.engine(capacity)

    def engine(self, capacity: int | None, *, anew: bool = False) -> None:
        event = EngineChanged(EngineMode.READY, capacity=Capacity(tokens=capacity), anew=anew)
        assert self.retention.on_event(self.now, event) is event

    def arrive(
        self,
        context: str,
        tokens: int,
        *,
        prefix: int = 0,
        share: SharePolicy = FETCHED,
        limits: LimitPolicy = LimitPolicy(),  # noqa: B008 - a frozen value
        kind: TurnKind = TurnKind.TOOL_STEP,
        fetches: bool = False,
    ) -> TurnArrived:
        self._count += 1
        turn_id, agent = TurnId(f"t{self._count}"), agent_of(context)
        turn = TurnArrived(
            turn_id=turn_id,
            agent=agent,
            agent_class=AgentClass.NORMAL,
            kind=kind,
            limits=limits,
            share=share,
            claim=Claim(turn_id=turn_id, agent=agent, segments=(Segment(turn_id.encode(), tokens),)),
            context=context,
            prefix_tokens=prefix,
            fetches=fetches,
        )
        arrived = self.retention.on_event(self.now, turn)
        assert isinstance(arrived, TurnArrived)
        return arrived

    def end(self, turn: TurnArrived, tokens: int | None = None, *, cached: int = 0, tool: str = "bash") -> None:
        tokens = turn.tokens if tokens is None else tokens
        self.retention.on_event(
            self.now, TurnEnded(turn.turn_id, left=Left(tokens=tokens, cached_tokens=cached, tool=tool))
        )
        self.retention.check_integrity()

    def play(self, context: str, tokens: int, *, cached: int = 0, share: SharePolicy = FETCHED) -> TurnArrived:
        turn = self.arrive(context, tokens, prefix=max(0, tokens - 100), share=share)
        self.retention.on_granted(turn.turn_id)
        self.end(turn, cached=cached, tool="bash" if agent_of(context) != "x" else "nobody knows")
        return turn

    def teach(self, agent: str, seconds: float) -> None:
        """The agent's tool takes so long."""
        for _ in range(ENOUGH + 1):
            self.play(f"{agent}/lesson", 200)
            self.now += seconds
        self.play(f"{agent}/lesson", 200)

    def to_fetch(self, held_tokens: int = 0) -> str | None:
        rest = self.retention.to_fetch(self.now, held_tokens=held_tokens, having=self.having)
        return None if rest is None else rest.context


def test_a_context_is_there_until_others_have_used_the_room() -> None:
    table = Table()
    table.play("a/1", 40_000)
    table.play("b/1", 30_000)
    assert table.play("a/1", 41_000).resident_tokens == 40_900
    table.play("b/1", 30_000)
    table.play("c/1", 35_000)
    assert table.arrive("a/1", 42_000, prefix=41_000).resident_tokens == 0  # 41 + 30 + 35 are more than 100


def test_a_conversation_counts_once_however_often_it_speaks() -> None:
    table = Table()
    table.play("a/1", 40_000)
    for _ in range(20):
        table.play("b/1", 50_000)
    assert table.arrive("a/1", 40_000, prefix=40_000).resident_tokens == 40_000


def test_what_all_share_counts_once() -> None:
    table = Table()
    table.play("a/1", 40_000)
    table.play("b/1", 40_000, cached=15_000)
    table.play("c/1", 40_000, cached=15_000)
    assert table.arrive("a/1", 40_000, prefix=40_000).resident_tokens == 40_000


def test_what_a_first_turn_left_unheard_is_nobody_elses() -> None:
    """Later ones find it in the cache, which does not make it shared."""
    table = Table()
    first = table.arrive("b/1", 60_000)
    table.retention.on_granted(first.turn_id)
    table.retention.on_event(table.now, TurnEnded(first.turn_id))  # its client has gone
    table.play("b/1", 60_000, cached=60_000)
    table.play("a/1", 30_000)
    table.play("b/1", 60_000, cached=60_000)
    table.play("c/1", 20_000)
    assert table.arrive("a/1", 30_000, prefix=30_000).resident_tokens == 0


def test_what_a_turn_writes_needs_room() -> None:
    table = Table()
    runs = table.arrive("b/1", 40_000)
    table.retention.on_granted(runs.turn_id)
    table.play("a/1", 40_000)
    assert table.play("a/1", 40_000).resident_tokens > 0
    table.retention.on_event(table.now, TurnWrote(runs.turn_id, 25_000))
    assert table.play("a/1", 40_000).resident_tokens == 0
    table.retention.on_event(table.now, TurnWrote(TurnId("nobody"), 25_000))


def test_running_turns_have_their_room_however_long_ago_they_began() -> None:
    table = Table()
    runs = table.arrive("b/1", 70_000)
    table.retention.on_granted(runs.turn_id)
    table.play("a/1", 40_000)
    assert table.arrive("a/1", 41_000, prefix=40_000).resident_tokens == 0


def test_a_paused_turn_gives_its_room_back() -> None:
    table = Table()
    runs = table.arrive("b/1", 70_000)
    table.retention.on_granted(runs.turn_id)
    table.retention.on_event(table.now, TurnPaused(turn_id=runs.turn_id, claim=runs.claim))
    table.play("a/1", 40_000)
    assert table.arrive("a/1", 41_000, prefix=40_000).resident_tokens == 40_000
    table.retention.on_granted(runs.turn_id)
    table.end(runs)


def test_nothing_is_known_without_a_capacity_or_after_a_restart() -> None:
    table = Table(None)
    table.play("a/1", 1000)
    assert table.arrive("a/1", 1000, prefix=900).resident_tokens == 0
    table = Table()
    table.play("a/1", 1000)
    table.engine(L1, anew=True)
    assert table.arrive("a/1", 1000, prefix=900).resident_tokens == 0


def test_beyond_its_quota_an_agent_has_no_credit() -> None:
    table, share = Table(), SharePolicy(retained_tokens=45_000)
    table.play("a/1", 20_000, share=share)
    table.play("a/2", 30_000, share=share)
    assert table.arrive("a/1", 20_000, prefix=20_000, share=share).resident_tokens == 0
    assert table.arrive("a/2", 30_000, prefix=30_000, share=share).resident_tokens == 30_000


def test_who_has_fallen_out_is_fetched_before_it_returns() -> None:
    table = Table()
    table.teach("a", 20.0)
    table.play("a/1", 40_000)
    assert table.to_fetch() is None  # it is there
    table.play("x/1", 70_000)
    assert table.to_fetch() == "a/1"


def test_nobody_is_fetched_without_room_or_without_a_chance() -> None:
    table = Table()
    table.teach("a", 20.0)
    table.play("a/1", 40_000)
    table.play("x/1", 70_000)
    assert table.to_fetch(held_tokens=70_000) is None
    table.now += 600.0  # all that has ever come back came back within 20 s
    assert table.to_fetch() is None


def test_nobody_is_fetched_who_does_not_want_it() -> None:
    for share, limits in ((SharePolicy(), LimitPolicy()), (FETCHED, LimitPolicy(turns_per_minute=5))):
        table = Table()
        table.teach("a", 20.0)
        turn = table.arrive("a/1", 40_000, share=share, limits=limits)
        table.retention.on_granted(turn.turn_id)
        table.end(turn)
        table.play("x/1", 70_000)
        assert table.to_fetch() is None


def test_the_likelier_one_has_the_place() -> None:
    table = Table()
    table.teach("a", 20.0)
    table.teach("b", 2000.0)
    table.play("b/1", 60_000)
    table.play("a/1", 60_000)
    table.play("x/1", 90_000)
    assert table.to_fetch() == "a/1"
    fetch = table.arrive("a/1", 60_000, prefix=60_000, fetches=True)
    table.retention.on_granted(fetch.turn_id)
    table.end(fetch)
    assert table.to_fetch() is None  # there is no second place


def test_nobody_is_fetched_whose_request_is_not_there() -> None:
    table = Table()
    table.teach("a", 20.0)
    table.play("a/1", 40_000)
    table.play("x/1", 70_000)
    table.having = ()
    assert table.to_fetch() is None


def test_a_rest_is_fetched_once() -> None:
    table = Table()
    table.teach("a", 20.0)
    table.play("a/1", 40_000)
    table.play("x/1", 70_000)
    fetch = table.arrive("a/1", 40_000, fetches=True)
    table.retention.on_event(table.now, TurnEnded(fetch.turn_id))  # given up
    assert table.to_fetch() is None
    table.play("a/1", 40_000)
    table.play("x/1", 70_000)
    assert table.to_fetch() == "a/1"


def test_a_fetch_is_no_return() -> None:
    table = Table()
    table.teach("a", 20.0)
    table.play("a/1", 40_000)
    fetch = table.arrive("a/1", 40_000, prefix=40_000, fetches=True)
    table.retention.on_granted(fetch.turn_id)
    table.end(fetch)
    assert [rest.context for rest in table.retention.resting()] == ["a/lesson", "a/1"]
    assert fetch.resident_tokens == 0


def test_side_calls_do_not_rest() -> None:
    table = Table()
    turn = table.arrive("a/title", 500, kind=TurnKind.TITLE)
    table.end(turn)
    assert table.retention.resting() == []


def test_whoever_does_not_return_is_given_up() -> None:
    table = Table()
    table.teach("a", 20.0)
    before = table.retention.clock.expected(AgentName("a"), "bash")
    assert before is not None
    table.now += FORGET_S + 1
    table.arrive("b/1", 10)
    after = table.retention.clock.expected(AgentName("a"), "bash")
    assert after is not None
    assert after.chance(0.0, 100.0) < before.chance(0.0, 100.0)
    assert table.retention.resting() == []


def test_conversations_without_end_take_no_memory_without_end() -> None:
    table = Table()
    for number in range(2 * MOST_RESTING):
        table.play(f"a/{number}", 10)
    assert len(table.retention.resting()) == MOST_RESTING
    recency = Recency()
    for number in range(2 * MOST_CONTEXTS):
        recency.hold(TurnId(f"t{number}"), f"c{number}", 10)
        recency.let_go(TurnId(f"t{number}"))
    assert len(recency) == MOST_CONTEXTS
    recency.check_integrity()


@pytest.mark.parametrize("turn_id", ["t1", "nobody"])
def test_an_end_may_be_told_twice(turn_id: str) -> None:
    table = Table()
    turn = table.play("a/1", 1000)
    table.retention.on_event(0.0, TurnEnded(TurnId(turn_id), left=Left(tokens=1)))
    assert table.arrive("a/1", 1000, prefix=900).resident_tokens == 900
    assert turn.resident_tokens == 0
