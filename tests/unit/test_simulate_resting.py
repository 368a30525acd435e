"""Names of contexts, and conversations that are fetched back in virtual time."""

from __future__ import annotations

import msgspec

from governor.policy.model import SharePolicy
from governor.simulate.acts import Request
from governor.simulate.deciding import Governor, Host, Policies
from governor.simulate.resting import LINES, Contexts
from governor.simulate.result import TurnEnd
from governor.simulate.simulator import Simulation
from governor.types import AgentName, PromptShape, TurnKind
from serve.twin.engine_model import EngineSettings
from serve.twin.machine import Machine
from serve.twin.tiers_key import Key
from serve.twin.trace import PieceKind, Trace
from tests.simulation import check_rows, policies, script, small_machine, turn


def asked(prompt: Key, session: str = "main") -> Request:
    return Request(
        agent=AgentName("a"),
        session=session,
        kind=TurnKind.TOOL_STEP,
        shape=PromptShape.CONTINUATION,
        attempt=1,
        asked_s=0.0,
        prompt=prompt,
        output=Key([(99, 0, 10)]),
        cap=None,
        accept_length=None,
        patience_s=None,
    )


def test_a_prompt_that_goes_on_has_the_name() -> None:
    contexts, first = Contexts(), Key([(1, 0, 1000)])
    name = contexts.name_of(asked(first))
    assert contexts.name_of(asked(first)) == name
    assert contexts.name_of(asked(first + Key([(2, 0, 50)]))) == name
    moved = Key([(1, 0, 950), (3, 0, 100)])  # what a client moves along at the end
    assert contexts.name_of(asked(moved)) == name
    assert contexts.name_of(asked(first.cut(0, 300) + Key([(4, 0, 900)]))) != name
    assert contexts.name_of(asked(first, session="other")) != name
    assert contexts.name_of(asked(moved + Key([(5, 0, 10)]))) == name


def test_a_session_has_no_end_of_names() -> None:
    contexts = Contexts()
    names = [contexts.name_of(asked(Key([(number, 0, 1000)]))) for number in range(3 * LINES)]
    assert len(set(names)) == 3 * LINES
    assert contexts.name_of(asked(Key([(0, 0, 1000)]))) not in names


TOOL_S = 20.0


def resting(other_tokens: int = 14_000) -> Trace:
    """``a`` calls a tool that takes 20 s, again and again; in the end ``b`` pushes it out in the meantime."""
    calls = [turn(12_000, 20)]
    calls += [turn(100, 20, part=PieceKind.TOOL, after_s=TOOL_S) for _ in range(8)]
    other = turn(other_tokens, 20, agent="b", after_s=17.0 + 7 * TOOL_S)
    return script(*calls, other)


class Recorded(Governor):
    """The governor, kept at hand."""

    made: Recorded

    def __init__(self, policies: Policies, engine: EngineSettings, host: Host) -> None:
        super().__init__(policies, engine, host)
        Recorded.made = self


def play(trace: Trace, *, prewarm: bool, machine: Machine | None = None) -> Simulation:
    share = SharePolicy(prewarm=prewarm)
    chosen = {name: msgspec.structs.replace(each, share=share) for name, each in policies(trace).items()}
    return Simulation(
        trace,
        machine or small_machine(device_tokens=16_384),
        chosen,
        0,
        1.0,
        lambda engine, host: Recorded(chosen, engine, host),
    )


def test_a_context_is_fetched_before_its_turn() -> None:
    found = {}
    for prewarm in (False, True):
        run = play(resting(), prewarm=prewarm)
        result = run.run()
        check_rows(result)
        Recorded.made.check_integrity()
        Recorded.made.retention.check_integrity()
        last = max((row for row in result.turns if row.agent == "a"), key=lambda row: row.arrived_s)
        found[prewarm] = last
        assert len(run.fetches) == int(prewarm)
        assert len(result.turns) == 10
    assert found[False].cached_device < 0.5 * found[False].prompt_tokens
    assert found[True].cached_device > 0.9 * found[True].prompt_tokens


def test_a_fetch_gives_way_to_a_turn() -> None:
    """Without L2 it is a prefill of 12 s, which is under way when ``a`` comes back by itself."""
    run = play(resting(), prewarm=True, machine=small_machine(device_tokens=16_384, host_tokens=0))
    result = run.run()
    check_rows(result)
    (fetch,) = [flight.row() for flight in run.fetches]
    last = max((row for row in result.turns if row.agent == "a"), key=lambda row: row.arrived_s)
    assert fetch.end is TurnEnd.GAVE_UP
    assert fetch.arrived_s < last.arrived_s
    assert last.granted_s == last.arrived_s
    assert run.engine.load().running == 0
