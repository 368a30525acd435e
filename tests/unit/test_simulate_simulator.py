"""Agents, the governor and the engine together, on machines small enough to reckon by hand."""

from __future__ import annotations

import pytest

from governor.policy.model import ContextPolicy, KeepAlive, LimitPolicy, OutputPolicy, Policy, SlicePolicy, StreamPolicy
from governor.simulate.deciding import Policies, read_policies
from governor.simulate.result import Result, TurnEnd, WaitPlace
from governor.simulate.simulator import DISCONNECT_S, simulate
from governor.types import AgentClass, TurnKind
from serve.twin.machine import Machine
from serve.twin.trace import (
    Agent,
    Client,
    Compaction,
    Distribution,
    Generator,
    Header,
    Line,
    Piece,
    Trace,
    Turn,
    assembled,
)
from tests.simulation import check_rows, policies, script, small_machine, turn


def play(trace: Trace, machine: Machine | None = None, chosen: Policies | None = None) -> Result:
    result = simulate(trace, machine or small_machine(), chosen, sample_s=1.0)
    check_rows(result)
    return result


def for_all(trace: Trace, policy: Policy) -> Policies:
    return {agent.name: policy for agent in trace.agents}


def test_one_turn_takes_what_it_costs() -> None:
    (row,) = play(script(turn(1000, 101))).turns
    assert row.first_token_s == pytest.approx(1.0)  # a thousand tokens at a millisecond each
    assert row.ended_s == pytest.approx(1.0 + 100 * 0.02)
    assert (row.new_tokens, row.reprefilled_tokens, row.cached_tokens, row.output_tokens) == (1000, 0, 0, 101)
    assert row.longest_silence_s == pytest.approx(1.0)
    assert row.end is TurnEnd.STOP
    assert row.cap_tokens == 16_384 - 1000


def test_a_continuation_computes_only_what_is_new() -> None:
    _, row = play(script(turn(1000, 50), turn(200, 50, after_s=10.0))).turns
    assert row.prompt_tokens == 1250
    assert row.new_tokens == 200
    assert row.new_tokens + row.reprefilled_tokens + row.cached_tokens == 1250
    assert row.arrived_s == pytest.approx(1.0 + 49 * 0.02 + 10.0)


def test_what_fell_out_of_every_tier_is_computed_again() -> None:
    machine = small_machine(device_tokens=8192, host_tokens=0)
    first = turn(5000, 10)
    other = turn(5000, 10, agent="b", after_s=20.0)
    again = turn(100, 10, after_s=40.0)
    row = play(script(first, again, other), machine).turns[-1]
    assert row.agent == "a"
    assert row.new_tokens == 100
    assert row.reprefilled_tokens == row.prompt_tokens - row.cached_tokens - 100
    assert row.reprefilled_tokens > 2500


def test_without_a_governor_a_prompt_beyond_the_window_is_the_engine_s_to_refuse() -> None:
    (row,) = play(script(turn(20_000))).turns
    assert (row.end, row.output_tokens, row.first_token_s) == (TurnEnd.TOO_LONG, 0, None)


def test_the_governor_caps_by_turn_kind() -> None:
    trace = script(turn(100, 5000, kind=TurnKind.TITLE), turn(100, 5000, cap=700, after_s=1.0))
    policy = Policy(output=OutputPolicy(title=64))
    title, step = play(trace, chosen=for_all(trace, policy)).turns
    assert (title.output_tokens, title.end) == (64, TurnEnd.LENGTH)
    assert (step.cap_requested, step.output_tokens) == (700, 700)


def test_the_governor_refuses_what_is_over_an_agent_s_ceiling() -> None:
    trace = script(turn(5000))
    policy = Policy(context=ContextPolicy(ceiling_tokens=4000))
    (row,) = play(trace, chosen=for_all(trace, policy)).turns
    assert row.end is TurnEnd.OVERFLOW
    assert "5000 tokens" in row.detail
    assert not row.slices


def test_a_turn_over_its_agent_s_limit_waits_at_the_governor() -> None:
    trace = script(turn(1000, 500), turn(1000, 50, session="two", after_s=1.0))
    first, second = play(trace, chosen=policies(trace, concurrency=1)).turns
    (wait,) = [each for each in second.waits if each.place is WaitPlace.GOVERNOR]
    assert "1 at once" in wait.reason
    assert wait.behind == ("a",)
    assert second.granted_s == pytest.approx(first.ended_s)


def test_a_full_queue_is_a_refusal_that_the_client_asks_again_after() -> None:
    trace = script(turn(1000, 500), turn(1000, 50, session="two", after_s=1.0), client=Client.HERMES)
    result = play(trace, chosen=policies(trace, concurrency=1, queue=0))
    refusals = [row for row in result.turns if row.end is TurnEnd.REFUSED]
    assert [row.attempt for row in refusals] == [1, 2]
    last = result.turns[-1]
    assert (last.attempt, last.end) == (3, TurnEnd.STOP)
    assert last.asked_s == pytest.approx(1.0)
    assert last.longest_silence_s == pytest.approx((last.first_token_s or 0.0) - 1.0)


def test_a_client_that_hangs_up_frees_its_place() -> None:
    trace = script(
        turn(100, 3000),
        turn(100, 3000, agent="b", after_s=1.0, patience_s=5.0),
        turn(100, 10, agent="c", after_s=2.0, patience_s=200.0),
    )
    result = play(trace, small_machine(running=1))
    lost = [row for row in result.turns if row.agent == "b"]
    assert [row.end for row in lost[:1]] == [TurnEnd.GAVE_UP]
    assert lost[0].ended_s == pytest.approx(6.0)
    assert lost[1].arrived_s < 6.0 + DISCONNECT_S
    assert next(row for row in result.turns if row.agent == "c").end is TurnEnd.STOP


def test_an_engine_goes_on_for_a_moment_when_a_client_has_hung_up() -> None:
    lost, again = play(script(turn(6000, 100, patience_s=2.0), turn(10, 5, after_s=60.0))).turns[:2]
    assert (lost.end, lost.ended_s, lost.output_tokens) == (TurnEnd.GAVE_UP, 2.0, 0)
    assert lost.new_tokens > 4000  # a thousand a second, and nobody stopped it after two
    assert again.attempt == 2
    assert again.cached_tokens + again.new_tokens + again.reprefilled_tokens <= 6000


@pytest.mark.parametrize(("keepalive", "end"), [(KeepAlive.COMMENT, TurnEnd.GAVE_UP), (KeepAlive.CHUNK, TurnEnd.STOP)])
def test_keep_alives_of_the_right_kind_keep_hermes(keepalive: KeepAlive, end: TurnEnd) -> None:
    trace = script(turn(6000, 100, patience_s=3.0), client=Client.HERMES)
    policy = Policy(stream=StreamPolicy(keepalive=keepalive))
    assert play(trace, chosen=for_all(trace, policy)).turns[0].end is end


def test_who_waits_in_the_engine_is_told_behind_whom() -> None:
    machine = small_machine(device_tokens=16_384, window=16_384)
    trace = script(
        turn(8000, 3000, cap=4096),
        turn(9000, 10, agent="large", after_s=10.0, cap=100),
        turn(50, 10, agent="small", after_s=20.0, cap=100),
    )
    _, large, small = play(trace, machine).turns
    (wait,) = large.waits
    assert wait.place is WaitPlace.ENGINE
    assert wait.reason.startswith("NO_TOKEN: needs 9,1")
    assert wait.behind == ("a",)
    (wait,) = small.waits
    assert wait.reason.startswith("NO_TOKEN: behind large, which needs 9,1")
    assert small.first_token_s is not None
    assert small.first_token_s > 60.0  # though it would have had room all the time


def test_who_waits_behind_one_that_has_hung_up_is_told_so() -> None:
    """The engine does not look at the queue before somebody leaves."""
    machine = small_machine(device_tokens=16_384, window=16_384)
    trace = script(
        turn(8000, 3000, cap=4096),
        turn(9000, 10, agent="large", after_s=10.0, cap=100, patience_s=5.0),
        turn(50, 10, agent="small", after_s=20.0, cap=100),
    )
    result = play(trace, machine)
    first = next(row for row in result.turns if row.agent == "a")
    small = next(row for row in result.turns if row.agent == "small")
    (wait,) = small.waits
    assert small.admitted_s == pytest.approx(first.ended_s)
    assert wait.reason.startswith("NO_TOKEN: full since one that has gone needed 9,1")


def _crowd() -> Trace:
    """A long answer, and a prompt that has no room beside it."""
    return script(turn(8000, 3000, cap=4096), turn(8000, 50, agent="b", after_s=20.0, cap=64))


def test_a_long_answer_is_paused_for_one_that_waits_and_goes_on_where_it_was() -> None:
    trace = _crowd()
    machine = small_machine(device_tokens=16_384, window=16_384)
    long, short = play(trace, machine, policies(trace)).turns
    alone = play(trace, machine).turns
    assert short.duration_s < alone[1].duration_s / 2
    assert len(long.slices) > 1
    assert (long.output_tokens, long.end) == (3000, TurnEnd.STOP)
    assert sum(each.output_tokens for each in long.slices) == 3000
    assert any(wait.place is WaitPlace.GOVERNOR and wait.reason.startswith("paused") for wait in long.waits)
    # What it had came back from a tier: little is computed twice.
    assert long.reprefilled_tokens < 1000


def test_slices_can_be_switched_off() -> None:
    trace = _crowd()
    policy = Policy(slices=SlicePolicy(enabled=False))
    result = play(trace, small_machine(device_tokens=16_384, window=16_384), for_all(trace, policy))
    assert [len(row.slices) for row in result.turns] == [1, 1]


def test_a_lease_is_released_by_a_client_that_hangs_up_while_it_waits() -> None:
    trace = script(
        turn(1000, 800),
        turn(1000, 50, session="two", after_s=1.0, patience_s=4.0),
        turn(1000, 50, session="three", after_s=2.0, patience_s=600.0),
        client=Client.HERMES,
    )
    policy = Policy(limits=LimitPolicy(concurrency=1))  # comments only, which Hermes does not hear
    result = play(trace, chosen=for_all(trace, policy))
    waiting = [row for row in result.turns if row.session == "two" and row.end is TurnEnd.GAVE_UP]
    assert waiting
    assert all(row.granted_s is None for row in waiting[:1])
    assert next(row for row in result.turns if row.session == "three").end is TurnEnd.STOP


def test_compactions_are_told() -> None:
    history = tuple(Piece(tokens=500) for _ in range(24))
    trace = script(
        turn(0, 50, new=history), turn(100, 50, after_s=1.0), client=Client.HERMES, compaction=Compaction(threshold=0.6)
    )
    result = play(trace, small_machine(window=80_000, device_tokens=81_920, host_tokens=0))
    assert not result.compactions  # Hermes has a floor of 64,000
    history = tuple(Piece(tokens=2600) for _ in range(25))
    trace = script(
        turn(0, 50, new=history), turn(100, 50, after_s=1.0), client=Client.HERMES, compaction=Compaction(threshold=0.6)
    )
    result = play(trace, small_machine(window=80_000, device_tokens=81_920, host_tokens=0))
    (row,) = result.compactions
    assert row.before_tokens > 64_000
    assert not row.in_vain or row.end.value == "abandoned"


def test_the_end_of_watching_cuts_off() -> None:
    result = play(script(turn(100, 5000), turn(100, 5), until_s=10.0))
    (row,) = result.turns
    assert (row.end, row.ended_s, result.ended_s) == (TurnEnd.CUT_OFF, 10.0, 10.0)
    assert row.output_tokens == pytest.approx(10 / 0.02, abs=10)


def test_generators_stop_asking_and_another_seed_asks_otherwise() -> None:
    spec = Generator(agent="a", session="s", until_s=300.0, first_tokens=Distribution(median=500, sigma=0.5))
    trace = assembled([Header(name="drawn"), Agent(name="a"), spec])
    results = [simulate(trace, small_machine(), None, seed, sample_s=30.0) for seed in (1, 1, 2)]
    assert results[0] == results[1]
    assert results[0].turns != results[2].turns
    assert max(row.arrived_s for row in results[0].turns) < 300.0
    assert len(results[0].turns) > 5


def test_samples_are_taken_all_the_time() -> None:
    result = play(script(turn(1000, 500)))
    assert [sample.at_s for sample in result.samples[:4]] == [0.0, 1.0, 2.0, 3.0]
    assert max(sample.l1_used_tokens for sample in result.samples) >= 1000
    assert result.capacity.l1_tokens == 32_768


def test_policies_are_the_agent_s_own_or_the_one_the_trace_names() -> None:
    lines: list[Line] = [
        Header(name="t"),
        Agent(name="own", policy="hermes"),
        Agent(name="b", policy="background"),
        Agent(name="c"),
    ]
    found = read_policies(assembled(lines))
    assert found["own"].stream.keepalive is KeepAlive.CHUNK
    assert found["b"].agent_class is AgentClass.BACKGROUND
    assert found["c"].agent_class is AgentClass.NORMAL


def test_a_session_s_side_call_does_not_hold_up_another_session() -> None:
    def late(agent: str, **more: object) -> Turn:
        return turn(200, 20, agent=agent, after_s=1.0, **more)  # type: ignore[arg-type]

    result = play(script(turn(200, 20), late("a", aside=True), late("a"), turn(200, 20, agent="b")))
    assert len(result.of("a")) == 3
    last = result.of("a")[-1]
    assert last.prompt_tokens == 200 + 20 + 200


def test_a_grant_that_comes_as_its_client_hangs_up_is_taken_back() -> None:
    trace = script(
        turn(1000, 101),  # over after 3 s
        turn(1000, 10, session="two", after_s=1.0, patience_s=2.0),
        client=Client.HERMES,
    )
    first, lost, again = play(trace, chosen=policies(trace, concurrency=1)).turns
    assert lost.ended_s == first.ended_s
    assert (lost.end, lost.granted_s) == (TurnEnd.GAVE_UP, None)
    assert (again.attempt, again.end) == (2, TurnEnd.STOP)
