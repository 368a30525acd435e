"""Real OpenClaw 2026.9.6 in daemon mode through a real governor. One daemon serves all tests of this file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from governor.schedule.events import EngineMode
from governor.store.model import StoredTurn, TurnClosed
from governor.types import PromptShape, TurnKind, TurnState
from serve.engine import Endpoint
from serve.scripted import CallKind, Knobs, ScriptedEngine
from tests.e2e.clients import processes
from tests.e2e.clients.openclaw import (
    OpenClawAgent,
    OpenClawDaemon,
    OpenClawProgram,
    OpenClawResult,
    openclaw_daemon,
)
from tests.e2e.seen import BIG_COMMAND, SUMMARY, agent_calls, body_of, call, calls_of, text_of, tool_outputs
from tests.harness import Governed, governed

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

WINDOW_TOKENS = 65_536
APIS = {
    "alpha": "openai-completions",
    "beta": "openai-completions",
    "gamma": "openai-responses",
    "delta": "anthropic-messages",
    "epsilon": "openai-completions",
}
"""Agents of the daemon, each with a key of its own."""
TOLD_TOKENS = {"epsilon": 262_144}
"""Windows that agents are told, where not the engine's."""
SHORTER = """
[compression]
mode = "enforce"
trigger = 18_000
target = 13_000
gain = 4_000
recent = 3_000
oversized = 4_000
"""
_ATTEMPTS = 3


@dataclass
class Setup:
    """A daemon, a governor, and the address where each test puts its own engine."""

    daemon: OpenClawDaemon
    governor: Governed
    engine_port: int
    rows_seen: set[str] = field(default_factory=set)

    @asynccontextmanager
    async def engine(self, script: Sequence[str]) -> AsyncIterator[ScriptedEngine]:
        """An engine whose model does what ``script`` says in agent calls, and summarises on request."""
        scripts = {CallKind.AGENT: script, CallKind.COMPACTION: [f"say:{SUMMARY}"]}
        knobs = Knobs(model="scripted", window_tokens=WINDOW_TOKENS)
        async with ScriptedEngine(calls=scripts, knobs=knobs, port=self.engine_port) as engine:
            await engine.wait_for(lambda: self.governor.governor.watch.mode is EngineMode.READY)
            yield engine

    @asynccontextmanager
    async def asked(
        self, script: Sequence[str], agent: str, message: str
    ) -> AsyncIterator[tuple[ScriptedEngine, OpenClawResult]]:
        """An engine, and an agent's answer in a new session. Asked anew, in another one, when OpenClaw stumbled."""
        for attempt in range(_ATTEMPTS):
            async with self.engine(script) as engine:
                result = await self.daemon.ask(agent, f"tools-{attempt}", message)
                if not result.stumbled or attempt == _ATTEMPTS - 1:
                    yield engine, result
                    return
            await self.new_turns()

    async def new_turns(self) -> list[tuple[StoredTurn, TurnClosed]]:
        """Turns since the last call with their ends, oldest first. Reviews are left out: they come when they like."""
        rows = [row for row in await self.governor.rows() if row.turn_id not in self.rows_seen]
        self.rows_seen.update(row.turn_id for row in rows)
        ended = [(row, row.closed) for row in rows if row.closed is not None]
        assert len(ended) == len(rows)
        return [(row, end) for row, end in ended if end.kind is not TurnKind.BACKGROUND]

    async def new_ends(self) -> list[TurnClosed]:
        """The ends of :meth:`new_turns`."""
        return [end for _, end in await self.new_turns()]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(openclaw_program: OpenClawProgram, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    root = tmp_path_factory.mktemp("openclaw")
    engine_port = processes.free_port()
    engine_url = f"http://127.0.0.1:{engine_port}"
    async with governed(
        engine_url, root / "governor", agents=tuple(APIS), policies={"epsilon": SHORTER}, wait_ready=False
    ) as governor:
        agents = [
            OpenClawAgent(
                name=name,
                # The Anthropic SDK adds /v1 itself.
                base_url=governor.url if api == "anthropic-messages" else f"{governor.url}/v1",
                api_key=governor.keys[name],
                model="scripted",
                context_window=TOLD_TOKENS.get(name, WINDOW_TOKENS),
                api=api,
            )
            for name, api in APIS.items()
        ]
        async with openclaw_daemon(openclaw_program, root / "state", agents) as daemon:
            yield Setup(daemon, governor, engine_port)
        assert daemon.left_over() == []


async def test_tool_round_trip_and_second_turn(setup: Setup) -> None:
    script = [call("exec", "echo one-$((40+2))"), "say:first done", call("exec", "echo two"), "say:second done"]
    async with setup.engine(script) as engine:
        first = await setup.daemon.ask("alpha", "tools", "Print one.")
        second = await setup.daemon.ask("alpha", "tools", "Now print two.")

        assert (first.text, first.failed) == ("first done", False)
        assert (second.text, second.failed) == ("second done", False)
        assert second.session_id == first.session_id

        calls = agent_calls(engine)
        assert [hit.status for hit in calls] == [200] * 4
        assert tool_outputs(calls[1]) == ["one-42"]
        assert "first done" in [text_of(message) for message in body_of(calls[2])["messages"]]

        ends = await setup.new_ends()
        assert [end.state for end in ends] == [TurnState.OK] * 4
        assert [end.kind for end in ends] == [TurnKind.TOOL_STEP] * 4
        assert [end.finish_reason for end in ends] == ["tool_calls", "stop"] * 2
        assert [end.cap_applied for end in ends] == [body_of(hit)["max_tokens"] for hit in calls]
        assert len({end.session for end in ends}) == 1
        assert [end.shape for end in ends[1:]] == [PromptShape.CONTINUATION] * 3


async def test_each_agent_is_known_by_its_key(setup: Setup) -> None:
    async with setup.engine(["say:for beta", "say:for alpha"]) as engine:
        beta = await setup.daemon.ask("beta", "identity", "Hello.")
        alpha = await setup.daemon.ask("alpha", "identity", "Hello.")

        assert (beta.text, alpha.text) == ("for beta", "for alpha")
        assert [turn.agent for turn, _ in await setup.new_turns()] == ["beta", "alpha"]
        keys = set(setup.governor.keys.values())
        assert not any(key in value for hit in engine.hits for _, value in hit.raw_headers for key in keys)


async def test_engine_overflow_on_a_long_session_is_compacted_away(setup: Setup) -> None:
    """The engine's own wording here is one that OpenClaw does not recognise: it would give up."""
    script = [*[call("exec", BIG_COMMAND)] * 10, "overflow:sglang_scheduler", "say:finished"]
    async with setup.engine(script) as engine:
        result = await setup.daemon.ask("alpha", "overflow", "Print many numbers.")

        assert (result.text, result.failed) == ("finished", False)
        *_, refused, retried = agent_calls(engine)
        assert (refused.status, retried.status) == (400, 200)
        assert len(retried.body) < len(refused.body) * 0.7
        assert SUMMARY in retried.body.decode()

        turns = await setup.new_ends()
        steps, overflow = turns[:10], turns[10]
        assert (overflow.state, overflow.http_status) == (TurnState.REFUSED, 400)
        assert overflow.error_code == "context_length_exceeded"
        summaries = [turn for turn in turns if turn.kind is TurnKind.COMPACTION]
        assert len(summaries) == len(calls_of(engine, CallKind.COMPACTION)) > 0
        assert {turn.state for turn in summaries} == {TurnState.OK}
        assert len({turn.session for turn in turns}) == 1
        assert {turn.cap_applied for turn in steps} == {8192}


async def test_made_shorter_here_it_need_not_compact_itself(setup: Setup) -> None:
    """Told of a larger window, OpenClaw goes on sending everything, and the engine sees little of it."""
    script = [*[call("exec", BIG_COMMAND)] * 16, "say:finished"]
    async with setup.asked(script, "epsilon", "Print many numbers.") as (engine, result):
        assert (result.text, result.failed) == ("finished", False)
        assert calls_of(engine, CallKind.COMPACTION) == []
        turns = [turn for turn in await setup.new_ends() if turn.kind is TurnKind.TOOL_STEP]
        assert {turn.state for turn in turns} == {TurnState.OK}
        assert max(turn.usage.prompt_tokens or 0 for turn in turns) < 20_000
        assert any("compressed: " in str(turn.edits) for turn in turns)
        assert turns[-1].message_count is not None
        assert turns[-1].message_count >= 33, "its history is whole still"


@pytest.mark.parametrize(("fault", "status", "wait_s"), [("429/2", 429, 2.0), ("503/1", 503, 1.0)])
async def test_refusal_of_the_engine_is_waited_out(setup: Setup, fault: str, status: int, wait_s: float) -> None:
    async with setup.engine([fault, "say:after the wait"]) as engine:
        result = await setup.daemon.ask("alpha", f"refused-{status}", "Hello.")

        assert (result.text, result.failed) == ("after the wait", False)
        refused, answered = agent_calls(engine)
        assert answered.received_at - refused.received_at >= wait_s
        turns = await setup.new_ends()
        assert [(turn.state, turn.http_status) for turn in turns] == [
            (TurnState.UPSTREAM_ERROR, status),
            (TurnState.OK, 200),
        ]


async def test_cut_stream_is_asked_for_again(setup: Setup) -> None:
    """OpenClaw throws the half answer away and asks anew; an answer closed as if it were whole would be kept."""
    async with setup.engine(["cut@6", "say:the whole story"]) as engine:
        result = await setup.daemon.ask("alpha", "cut", "Tell me a story.")

        assert (result.text, result.failed) == ("the whole story", False)
        assert len(agent_calls(engine)) == 2
        cut, whole = await setup.new_ends()
        assert (cut.state, cut.error_code, cut.finish_reason) == (TurnState.UPSTREAM_ERROR, "upstream_cut", None)
        assert (whole.state, whole.session) == (TurnState.OK, cut.session)


@pytest.mark.parametrize(
    ("agent", "endpoint", "cap_field"),
    [("gamma", Endpoint.RESPONSES, "max_output_tokens"), ("delta", Endpoint.MESSAGES, "max_tokens")],
)
async def test_other_apis_do_a_tool_round_trip(setup: Setup, agent: str, endpoint: Endpoint, cap_field: str) -> None:
    async with setup.asked([call("exec", "echo one-$((40+2))"), "say:done"], agent, "Print one.") as (engine, result):
        assert (result.text, result.failed) == ("done", False)
        calls = agent_calls(engine)
        assert [(hit.path, hit.status) for hit in calls] == [(endpoint.value, 200)] * 2
        assert b"one-42" in calls[1].body
        turns = await setup.new_turns()
        assert [(turn.agent, turn.route, turn.state) for turn, _ in turns] == [
            (agent, endpoint.value, TurnState.OK)
        ] * 2
        assert [end.cap_applied for _, end in turns] == [body_of(hit)[cap_field] for hit in calls]
