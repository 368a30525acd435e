"""Whatever agents ask, each request ends in one row, its tokens are counted once, and the same is done twice."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.simulate.result import GOOD_ENDS, Result
from governor.simulate.simulator import Simulation, simulate
from governor.types import PromptShape, TurnKind
from serve.twin.machine import Machine
from serve.twin.trace import Client, Compaction, Echo, PieceKind, Trace, Turn
from tests.simulation import check_rows, overlap, policies, script, small_machine, turn


@st.composite
def turns(draw: st.DrawFn, agent: str, session: str) -> Turn:
    shape = draw(st.sampled_from(PromptShape))
    new = 0 if shape is PromptShape.REPEAT else draw(st.integers(1, 3000))
    return turn(
        new,
        draw(st.integers(1, 1500)),
        agent=agent,
        session=session,
        kind=draw(st.sampled_from((TurnKind.TOOL_STEP, TurnKind.FINAL))),
        part=draw(st.sampled_from((PieceKind.USER, PieceKind.TOOL))),
        shape=shape,
        branch_at=draw(st.integers(0, 4000)) if shape is PromptShape.BRANCH else None,
        echo=draw(st.sampled_from(Echo)),
        after_s=draw(st.floats(0, 30)),
        cap=draw(st.none() | st.integers(1, 2000)),
        accept_length=draw(st.none() | st.floats(1, 3)),
        patience_s=draw(st.none() | st.floats(1, 60)),
        aside=draw(st.booleans()),
        carrier_tokens=min(new, draw(st.sampled_from((0, 0, 50)))),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    sessions = [(agent, session) for agent in ("a", "b", "c") for session in ("one", "two")]
    chosen = draw(st.lists(st.sampled_from(sessions), min_size=1, max_size=5, unique=True))
    drawn = [
        each for agent, session in chosen for each in draw(st.lists(turns(agent, session), min_size=1, max_size=5))
    ]
    compaction = Compaction(threshold=0.3) if draw(st.booleans()) else None
    until_s = draw(st.none() | st.floats(1, 120))
    return script(*drawn, client=draw(st.sampled_from(Client)), compaction=compaction, until_s=until_s)


machines = st.builds(
    small_machine,
    device_tokens=st.sampled_from((8192, 16_384, 32_768)),
    host_tokens=st.sampled_from((0, 32_768)),
    window=st.sampled_from((8192, 16_384)),
    running=st.integers(1, 4),
    slots=st.sampled_from((0, 32)),
)


def played(trace: Trace, machine: Machine, *, governed: bool, concurrency: int = 4) -> Result:
    chosen = policies(trace, concurrency=concurrency) if governed else None
    return simulate(trace, machine, chosen, seed=3, sample_s=5.0)


@given(trace=traces(), machine=machines, governed=st.booleans())
@settings(max_examples=80, deadline=None)
def test_every_request_ends_in_one_row_and_tokens_are_counted_once(
    trace: Trace, machine: Machine, governed: bool
) -> None:
    result = played(trace, machine, governed=governed)
    check_rows(result)
    assert [row.turn_id for row in result.turns] == [f"t{number}" for number in range(1, len(result.turns) + 1)]
    if trace.header.until_s is None:
        assert {(row.agent, row.session) for row in result.turns} == {
            (each.session.agent, each.session.session) for each in trace.scripts
        }
    for sample in result.samples:
        assert sample.l1_used_tokens <= sample.l1_tokens <= result.capacity.l1_tokens
        assert sample.l2_tokens <= result.capacity.l2_tokens
        assert sample.running <= machine.engine.max_running_requests


@given(trace=traces(), machine=machines, governed=st.booleans())
@settings(max_examples=20, deadline=None)
def test_the_same_twice(trace: Trace, machine: Machine, governed: bool) -> None:
    assert played(trace, machine, governed=governed) == played(trace, machine, governed=governed)


@given(trace=traces(), machine=machines, concurrency=st.integers(1, 2))
@settings(max_examples=40, deadline=None)
def test_the_governor_never_lets_an_agent_run_more_than_its_limit(
    trace: Trace, machine: Machine, concurrency: int
) -> None:
    result = played(trace, machine, governed=True, concurrency=concurrency)
    for agent in {row.agent for row in result.turns}:
        first_stays = [
            (row.slices[0].granted_s, min(row.slices[0].ended_s, row.ended_s))
            for row in result.of(agent)
            if row.slices and row.kind is not TurnKind.COMPACTION
        ]
        # An answer that was begun goes on whatever else its agent runs; those that begin are bounded.
        assert overlap(first_stays) <= concurrency


@given(trace=traces(), machine=machines)
@settings(max_examples=30, deadline=None)
def test_nothing_is_left_on_the_engine_or_in_the_books(trace: Trace, machine: Machine) -> None:
    simulation = Simulation(trace, machine, policies(trace), 0, 5.0)
    simulation.run()
    simulation.check_integrity()


@given(trace=traces(), machine=machines)
@settings(max_examples=30, deadline=None)
def test_a_paused_answer_is_written_to_its_end(trace: Trace, machine: Machine) -> None:
    result = played(trace, machine, governed=True)
    for row in result.turns:
        if row.end in GOOD_ENDS and len(row.slices) > 1:
            assert row.output_tokens == min(row.wanted_tokens, row.cap_tokens)
            assert all(each.prefilled_tokens >= 0 for each in row.slices)
