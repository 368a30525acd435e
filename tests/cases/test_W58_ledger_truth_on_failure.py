"""W58 ledger-truth-on-failure: one row a turn, in the state it really ended in; unknown figures stay unknown."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import msgspec

from governor.settings import Home
from governor.store.query import TurnLogReader
from governor.types import AgentName, TurnState
from serve.scripted import Behaviour, Knobs, ScriptedEngine
from tests.cases.play import leave, send
from tests.harness import governed
from tests.scenario import load_case

CASE = load_case("W58")


async def test_W58_no_usage(tmp_path: Path) -> None:
    variant = CASE.variant("no-usage")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        await send(governor, variant.request)
        end = await governor.end()
        assert end.state is TurnState.OK
        assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.cached_tokens) == (None, None, None)
        assert end.completion_tokens_estimated == 2
        assert (end.prompt_tokens_counted or 0) > 0
        (summary,) = TurnLogReader(f"sqlite:///{governor.home.database}").usage()
        assert (summary.completion_tokens, summary.completion_tokens_estimated) == (None, 2)
        (alice,) = (await governor.snapshot()).agents
        assert (alice.unreported, alice.last_usage) == (1, None)


async def test_W58_client_leaves_after_forty_chunks(tmp_path: Path) -> None:
    variant = CASE.variant("abort-40")
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        await leave(governor, variant.request, variant.client)
        end = await governor.end()
        assert end.state is TurnState.CLIENT_ABORTED
        assert end.usage.completion_tokens is None
        assert 40 <= (end.completion_tokens_estimated or 0) <= 60
        assert len(await governor.rows()) == 1


async def test_W58_sums_keep_measured_and_estimated_apart(tmp_path: Path) -> None:
    """An answer with usage, a failed one, one cut by its client, in one log."""
    variant = CASE.variant("abort-40")
    assert variant.request is not None
    whole, failed = Behaviour(say=7, usage=(11, 7)), Behaviour(say=50, break_after=4, error_frame=True)
    engine = ScriptedEngine(whole, failed, variant.stub or [], knobs=Knobs(model="m"))
    async with engine, governed(engine.url, tmp_path) as governor:
        await send(governor, variant.request)
        await send(governor, variant.request)
        await leave(governor, variant.request, variant.client)
        ends = await governor.ends()
        assert [end.state for end in ends] == [TurnState.OK, TurnState.UPSTREAM_ERROR, TurnState.CLIENT_ABORTED]
        assert ends[1].completion_tokens_estimated is not None
        (summary,) = TurnLogReader(f"sqlite:///{governor.home.database}").usage()
        assert (summary.prompt_tokens, summary.completion_tokens) == (11, 7)
        assert summary.completion_tokens_estimated == sum(end.completion_tokens_estimated or 0 for end in ends)
        assert summary.states == dict.fromkeys([end.state for end in ends], 1)


async def test_W58_governor_killed_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    home = Home(tmp_path)
    async with ScriptedEngine(knobs=Knobs(model="m", answer_tokens=5000, decode_tokens_per_s=50)) as engine:
        governor = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.cases.governor_program", engine.url, str(tmp_path),
            stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert governor.stdout is not None
        told = msgspec.json.decode(await governor.stdout.readline(), type=dict[str, str])
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        async with (
            httpx.AsyncClient(trust_env=False, headers={"authorization": f"Bearer {told['key']}"}) as client,
            client.stream("POST", told["url"] + "/v1/chat/completions", json=body) as answer,
        ):
            pieces = answer.aiter_raw()
            await anext(pieces)
            async with asyncio.timeout(5):  # the log may write an opening a moment late
                while not TurnLogReader(f"sqlite:///{home.database}").recent(limit=1):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            governor.kill()
            await governor.wait()
        await engine.wait_idle(2)
        async with governed(engine.url, home.root, agents=("bob",)) as again:
            (row,) = await again.rows()
            assert (row.state, row.agent, row.closed) == (TurnState.INTERRUPTED, AgentName("alice"), None)
            assert row.turn_id == answer.headers["x-governor-turn"]
