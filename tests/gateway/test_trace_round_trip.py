"""What agents asked through a governor, recorded from its log and asked again of the engine's twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from governor.cli.trace import app
from governor.simulate.deciding import read_policies
from governor.simulate.simulator import simulate
from serve.scripted import Behaviour, Knobs, ScriptedCall, ScriptedEngine
from serve.twin.machine import load_machine
from serve.twin.trace import PieceKind, read_trace
from tests.harness import Governed, governed

_CALL = Behaviour(calls=(ScriptedCall("look", {"at": "the logs " * 40}),))
_SAY = Behaviour(say="All is well, as far as the logs tell. " * 10)
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def _task(running: Governed, agent: str, task: str) -> None:
    """A tool call, its result, an answer, and a question about it."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"You look after a server. {'Be careful. ' * 200}"},
        {"role": "user", "content": task},
    ]
    for follow_up in ("tool", "user", None):
        answer = (await running.chat(agent, messages=messages, tools=[_TOOL])).raise_for_status().json()
        said = answer["choices"][0]["message"]
        messages.append({key: value for key, value in said.items() if value is not None})
        if follow_up == "tool":
            called = said["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": called, "content": "disk full\n" * 50})
        elif follow_up == "user":
            messages.append({"role": "user", "content": "And tomorrow?"})


async def test_a_recorded_day_is_replayed_with_the_sizes_it_had(tmp_path: Path) -> None:
    behaviours = (_CALL, _SAY, _SAY) * 2
    async with (
        ScriptedEngine(*behaviours, knobs=Knobs(model="m")) as engine,
        governed(engine.url, tmp_path / "home", agents=("ada", "bob")) as running,
    ):
        await _task(running, "ada", "Why is it slow?")
        await _task(running, "bob", "Is there room?")
        ends = await running.ends()
        file = tmp_path / "day.trace"
        told = CliRunner().invoke(app, ["record", "--home", str(running.home.root), "--out", str(file)])
    assert told.exit_code == 0, told.output
    trace = read_trace(file.read_bytes())
    logged = [(end.usage.prompt_tokens, end.usage.completion_tokens) for end in ends]
    assert [agent.name for agent in trace.agents] == ["ada", "bob"]
    kinds = [piece.kind for turn in trace.scripts[0].turns for piece in turn.new]
    assert kinds == [PieceKind.USER, PieceKind.TOOL, PieceKind.USER]
    # Ada's is the first prompt the engine sees; it has Bob's system prompt from her.
    assert [script.session.shared is None for script in trace.scripts] == [True, False]
    assert b"logs" not in file.read_bytes()
    for policies in (None, read_policies(trace)):
        run = simulate(trace, load_machine("rx7900xtx-tp2"), policies)
        asked = sorted((row.prompt_tokens, row.output_tokens) for row in run.turns)
        assert asked == sorted((prompt or 0, output or 0) for prompt, output in logged)
        for row in run.turns:
            assert row.reprefilled_tokens + row.new_tokens + row.cached_tokens == row.prompt_tokens
