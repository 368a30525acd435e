"""Real Hermes Agent 0.19.0 through a real governor: it works, and its own recovery works where it has one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from governor.store.model import TurnClosed
from governor.types import PromptShape, TurnKind, TurnState
from serve.scripted import CallKind, Knobs, ScriptedEngine
from tests.e2e.clients.hermes import HermesAgent
from tests.e2e.seen import BIG_COMMAND, SUMMARY, agent_calls, body_of, call, calls_of, text_of, tool_outputs
from tests.harness import Governed, governed

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

WINDOW_TOKENS = 65_536
STOCK_MAX_TOKENS = 65_536
AGENT = "hermes-one"


@dataclass(frozen=True)
class Setup:
    """One Hermes, one governor, one engine."""

    hermes: HermesAgent
    governor: Governed
    engine: ScriptedEngine


@asynccontextmanager
async def hermes_on(
    script: Sequence[str],
    program: Path,
    root: Path,
    *,
    window_tokens: int = WINDOW_TOKENS,
    max_tokens: int | None = 8192,
    policy: str = "",
) -> AsyncIterator[Setup]:
    """A Hermes whose model does what ``script`` says, summaries apart."""
    knobs = Knobs(model="scripted", window_tokens=window_tokens)
    scripts = {CallKind.AGENT: script, CallKind.COMPACTION: [f"say:{SUMMARY}"]}
    async with (
        ScriptedEngine(calls=scripts, knobs=knobs) as engine,
        governed(
            engine.url, root / "governor", agents=(AGENT,), policies={AGENT: policy or "# all as shipped"}
        ) as governor,
    ):
        hermes = HermesAgent(
            program,
            root / "hermes",
            base_url=f"{governor.url}/v1",
            api_key=governor.keys[AGENT],
            model="scripted",
            max_tokens=max_tokens,
        )
        yield Setup(hermes, governor, engine)


async def test_stock_hermes_uses_a_tool_and_comes_back_for_a_second_turn(hermes_program: Path, tmp_path: Path) -> None:
    """Untouched, Hermes asks for 65,536 output tokens; on a window of that size the engine alone refuses every call."""
    script = [call("terminal", "echo one-$((40+2))"), "say:first done", call("terminal", "echo two"), "say:second done"]
    async with hermes_on(script, hermes_program, tmp_path, max_tokens=None) as s:
        first = await s.hermes.run("Print one.")
        second = await s.hermes.run("Now print two.", resume=first.session_id)

        assert (first.text, first.failed) == ("first done", False)
        assert (second.text, second.failed) == ("second done", False)
        assert second.session_id == first.session_id

        calls = agent_calls(s.engine)
        assert [hit.status for hit in calls] == [200] * 4
        assert "one-42" in tool_outputs(calls[1])[0]
        assert "first done" in [text_of(message) for message in body_of(calls[2])["messages"]]
        assert {probe.path for probe in s.engine.probes} == {"/v1/models"}, "a client's probe reached the engine"

        turns = await s.governor.ends()
        assert [turn.state for turn in turns] == [TurnState.OK] * 4
        assert [turn.kind for turn in turns] == [TurnKind.TOOL_STEP] * 4
        assert [turn.cap_requested for turn in turns] == [STOCK_MAX_TOKENS] * 4
        assert [turn.cap_applied for turn in turns] == [body_of(hit)["max_tokens"] for hit in calls]
        assert [turn.finish_reason for turn in turns] == ["tool_calls", "stop"] * 2
        assert len({turn.session for turn in turns}) == 1
        assert turns[1].shape is PromptShape.CONTINUATION
        assert all(turn.usage.prompt_tokens for turn in turns)


async def test_engine_overflow_on_a_long_session_is_compacted_away(hermes_program: Path, tmp_path: Path) -> None:
    """The engine's own wording here is one that Hermes does not recognise: it would give up."""
    script = [*[call("terminal", BIG_COMMAND)] * 10, "overflow:sglang_scheduler", "say:finished"]
    async with hermes_on(script, hermes_program, tmp_path) as s:
        result = await s.hermes.run("Print many numbers.")

        assert (result.text, result.failed) == ("finished", False)
        *_, refused, retried = agent_calls(s.engine)
        assert (refused.status, retried.status) == (400, 200)
        assert len(retried.body) < len(refused.body) * 0.7
        assert any(SUMMARY in text_of(message) for message in body_of(retried)["messages"])
        assert len(calls_of(s.engine, CallKind.COMPACTION)) == 1

        turns = [turn for turn in await s.governor.ends() if turn.kind is not TurnKind.BACKGROUND]
        *steps, overflow, summary, last = turns
        sources = [turn.count_source for turn in steps]
        assert sources == ["estimate", *["usage"] * 9], "a figure the engine reported was not used"
        assert {turn.cap_applied for turn in steps} == {8192}
        assert (overflow.state, overflow.http_status) == (TurnState.REFUSED, 400)
        assert overflow.error_code == "context_length_exceeded"
        assert (summary.kind, summary.state, summary.cap_requested) == (TurnKind.COMPACTION, TurnState.OK, None)
        assert summary.cap_applied == body_of(calls_of(s.engine, CallKind.COMPACTION)[0])["max_tokens"]
        assert (last.state, last.session) == (TurnState.OK, overflow.session)


async def test_window_below_64k_is_enforced_but_not_advertised(hermes_program: Path, tmp_path: Path) -> None:
    """Told of 40,960 tokens, Hermes refuses to start. Not told, it grows until the window is enforced, and compacts."""
    window_tokens = 40_960
    script = [*[call("terminal", BIG_COMMAND)] * 16, "say:finished"]
    async with hermes_on(script, hermes_program, tmp_path, window_tokens=window_tokens, max_tokens=None) as s:
        result = await s.hermes.run("Print many numbers.")

        assert (result.text, result.failed) == ("finished", False)
        assert calls_of(s.engine, CallKind.COMPACTION)
        turns = await s.governor.ends()
        refused = [turn for turn in turns if turn.state is TurnState.REFUSED]
        answered = [turn for turn in turns if turn.state is TurnState.OK and turn.kind is TurnKind.TOOL_STEP]
        assert [turn.error_code for turn in refused] == ["context_length_exceeded"]
        assert len(answered) == len(script)
        assert {turn.window_tokens for turn in answered} == {window_tokens}
        assert all(fits(turn, window_tokens) for turn in answered)


def fits(turn: TurnClosed, window_tokens: int) -> bool:
    """Whether the real prompt and the cap leave the window whole."""
    return (turn.usage.prompt_tokens or 0) + (turn.cap_applied or 0) <= window_tokens


async def test_made_shorter_here_it_need_not_compact_itself(hermes_program: Path, tmp_path: Path) -> None:
    """Hermes goes by the window that it is told and by the usage that comes back; all the while it sends everything."""
    policy = """
[compression]
mode = "enforce"
client_window = 262_144
trigger = 40_000
target = 24_000
gain = 8_000
recent = 6_000
oversized = 8_000
"""
    script = [*[call("terminal", BIG_COMMAND)] * 20, "say:finished"]
    async with hermes_on(script, hermes_program, tmp_path, policy=policy) as s:
        result = await s.hermes.run("Print many numbers.")
        assert (result.text, result.failed) == ("finished", False)
        assert calls_of(s.engine, CallKind.COMPACTION) == []
        turns = [turn for turn in await s.governor.ends() if turn.kind is TurnKind.TOOL_STEP]
        assert len(turns) == 21
        assert {turn.state for turn in turns} == {TurnState.OK}
        assert max(turn.usage.prompt_tokens or 0 for turn in turns) < 42_000
        cuts = [turn for turn in turns if "compressed: " in str(turn.edits)]
        assert 1 <= len(cuts) <= 3
        assert turns[-1].message_count == 42, "Hermes sends its whole history still"
        assert len(body_of(agent_calls(s.engine)[-1])["messages"]) <= 42


async def test_429_is_waited_out(hermes_program: Path, tmp_path: Path) -> None:
    async with hermes_on(["429/2", "say:after the wait"], hermes_program, tmp_path) as s:
        result = await s.hermes.run("Hello.")

        assert (result.text, result.failed) == ("after the wait", False)
        refused, answered = agent_calls(s.engine)
        assert answered.received_at - refused.received_at >= 2
        assert answered.body == refused.body
        turns = await s.governor.ends()
        assert [(turn.state, turn.http_status) for turn in turns] == [
            (TurnState.UPSTREAM_ERROR, 429),
            (TurnState.OK, 200),
        ]


async def test_503_is_retried(hermes_program: Path, tmp_path: Path) -> None:
    async with hermes_on(["503/1", "say:back again"], hermes_program, tmp_path) as s:
        result = await s.hermes.run("Hello.")

        assert (result.text, result.failed) == ("back again", False)
        refused, answered = agent_calls(s.engine)
        assert answered.body == refused.body
        turns = await s.governor.ends()
        assert [(turn.state, turn.http_status) for turn in turns] == [
            (TurnState.UPSTREAM_ERROR, 503),
            (TurnState.OK, 200),
        ]


async def test_503_for_ever_ends_in_a_clear_error(hermes_program: Path, tmp_path: Path) -> None:
    async with hermes_on(["503/1:the engine is restarting*9"], hermes_program, tmp_path) as s:
        result = await s.hermes.run_once("Hello.")

        assert result.failed
        assert result.usage["failed"] is True
        attempts = len(agent_calls(s.engine))
        assert attempts == 3
        turns = await s.governor.ends()
        assert {turn.state for turn in turns} == {TurnState.UPSTREAM_ERROR}


async def test_cut_stream_is_continued_by_hermes(hermes_program: Path, tmp_path: Path) -> None:
    """Hermes keeps the half answer and asks for the rest; the governor must not have closed it as if it were whole."""
    async with hermes_on(["cut@6", "say:and this is the rest"], hermes_program, tmp_path) as s:
        result = await s.hermes.run("Tell me a story.")

        assert "and this is the rest" in result.text
        assert not result.failed
        _, continued = agent_calls(s.engine)
        *_, half, request = body_of(continued)["messages"]
        assert half["role"] == "assistant"
        assert text_of(request).startswith("[System: The previous response was cut off")
        cut, rest = await s.governor.ends()
        assert (cut.state, cut.error_code, cut.finish_reason) == (TurnState.UPSTREAM_ERROR, "upstream_cut", None)
        assert (rest.state, rest.session) == (TurnState.OK, cut.session)
