"""Small machines and traces for the simulator's tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from governor.policy.model import LimitPolicy, Policy, SlicePolicy
from governor.simulate.acts import Act, Answer, Loop, Request
from governor.simulate.agents import loops_of
from governor.simulate.deciding import Policies
from governor.simulate.result import Result, TurnEnd, TurnRow
from governor.types import TurnKind
from serve.twin.cost import Cost
from serve.twin.engine_model import EngineSettings
from serve.twin.machine import Machine
from serve.twin.tiers_model import TierSettings
from serve.twin.trace import Agent, Client, Compaction, Header, Line, Piece, PieceKind, Session, Trace, Turn, assembled

COST = Cost(prefill_token_s=0.001, prefill_square_s=0.0, decode_step_s=0.02, decode_request_s=0.0, decode_kv_token_s=0)


def small_machine(
    *, device_tokens: int = 32_768, host_tokens: int = 65_536, window: int = 16_384, running: int = 4, slots: int = 64
) -> Machine:
    """A hybrid model that prefills a thousand tokens and writes 50 in a second."""
    tiers = TierSettings(
        device_tokens=device_tokens,
        device_slots=slots,
        host_tokens=host_tokens,
        host_slots=2 * slots if host_tokens else 0,
    )
    engine = EngineSettings(
        tiers=tiers, context_tokens=window, max_running_requests=running, chunked_prefill_tokens=2048
    )
    return Machine(name="small", summary="", engine=engine, cost=COST)


def turn(
    tokens: int = 100,
    output: int = 50,
    *,
    agent: str = "a",
    session: str = "main",
    kind: TurnKind = TurnKind.TOOL_STEP,
    part: PieceKind = PieceKind.USER,
    **more: object,
) -> Turn:
    new = (Piece(kind=part, tokens=tokens),) if tokens else ()
    fields = {"agent": agent, "session": session, "kind": kind, "new": new, "output_tokens": output, **more}
    return msgspec.convert(fields, Turn)


def script(
    *turns: Turn, client: Client = Client.PLAIN, compaction: Compaction | None = None, **header: object
) -> Trace:
    """Turns of any agents and sessions, all of one kind of client, each session from the beginning."""
    lines: list[Line] = [msgspec.convert({"name": "test", **header}, Header)]
    agents = dict.fromkeys(each.agent for each in turns)
    lines += [Agent(name=name, client=client, compaction=compaction) for name in agents]
    sessions = dict.fromkeys((each.agent, each.session) for each in turns)
    lines += [Session(agent=agent, session=session) for agent, session in sessions]
    return assembled([*lines, *turns])


def policies(trace: Trace, **limits: object) -> Policies:
    """The default with these limits; answers can be paused early."""
    policy = Policy(
        limits=msgspec.convert(limits, LimitPolicy), slices=SlicePolicy(quantum_s=2.0, yield_after_s=1.0, lookahead=512)
    )
    return {agent.name: policy for agent in trace.agents}


def overlap(spans: Iterable[tuple[float, float]]) -> int:
    """The most of them at one moment."""
    moments = sorted([(start, 1) for start, _ in spans] + [(stop, -1) for _, stop in spans])
    most = now = 0
    for _, step in moments:
        now += step
        most = max(most, now)
    return most


class Heard:
    """Plays one session without an engine: answers what it asks from a list, and keeps what it did."""

    def __init__(self, trace: Trace, window: int = 65_536) -> None:
        (self.loop,) = loops_of(trace, 0, window)
        self.requests: list[Request] = []
        self.acts: list[Act] = []
        self._acts: Loop = self.loop.play()

    def play(self, answers: Sequence[TurnEnd | Answer]) -> None:
        """Until the answers are used up or the session is over. An end alone is an answer as long as it was wanted."""
        left = list(answers)
        answer: Answer | None = None
        while True:
            try:
                act = self._acts.send(answer)
            except StopIteration:
                return
            self.acts.append(act)
            answer = None
            if isinstance(act, Request):
                self.requests.append(act)
                if not left:
                    return
                answer = _answer(left.pop(0), act)
            elif hasattr(act, "until_s"):
                self.loop.now = act.until_s


def _answer(given: TurnEnd | Answer, request: Request) -> Answer:
    if isinstance(given, Answer):
        return given
    written = len(request.output) if given is TurnEnd.STOP else 0
    return Answer(end=given, prompt_tokens=len(request.prompt), written=written)


def check_rows(result: Result) -> None:
    """What holds of any run's rows."""
    assert len({row.turn_id for row in result.turns}) == len(result.turns)
    for row in result.turns:
        _check_row(row)


def _check_row(row: TurnRow) -> None:
    assert row.asked_s <= row.arrived_s <= row.ended_s
    moments = [each for each in (row.granted_s, row.admitted_s, row.first_token_s) if each is not None]
    assert moments == sorted(moments)
    assert all(row.arrived_s <= moment <= row.ended_s for moment in moments)
    assert 0 <= row.longest_silence_s <= row.ended_s - row.asked_s + 1e-6
    assert row.output_tokens == sum(each.output_tokens for each in row.slices)
    assert row.output_tokens <= min(row.cap_tokens, row.wanted_tokens)
    if row.end is TurnEnd.STOP:
        assert row.output_tokens == row.wanted_tokens
    if row.end is TurnEnd.LENGTH:
        assert row.output_tokens < row.wanted_tokens
    assert row.new_tokens >= 0
    assert row.reprefilled_tokens >= 0
    assert row.new_tokens + row.reprefilled_tokens == sum(each.prefilled_tokens for each in row.slices)
    if len(row.slices) == 1 and row.first_token_s is not None and not row.retractions:
        assert row.cached_tokens + row.new_tokens + row.reprefilled_tokens == row.prompt_tokens
    at = row.arrived_s
    for wait in row.waits:
        assert wait.at_s >= at - 1e-6
        at = wait.at_s + wait.seconds
    assert at <= row.ended_s + 1e-6
