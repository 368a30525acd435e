"""Why a turn waits, runs, is paused: told to its client in comments, to the owner in events, state and commands."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from governor import instance
from governor.cli import explain, queue_cmd
from governor.events import TurnDecided
from governor.gateway.server import bound_socket
from governor.settings import Home, Secret
from governor.types import Verdict
from tests.harness import ADMIN_TOKEN, Governed, governed
from tests.twin_server import Running, small_machine, twin_server

MODEL = "tiny-hybrid"
AGENTS = ("alice", "bob", "carol")
POLICY = """
[output]
tool_step = 6000
final = 6000
[share]
waiting_s = 45
[slices]
enabled = {slices}
quantum_s = 0.3
yield_after_s = 0.1
lookahead = 512
[stream]
keepalive_after_s = 0.05
keepalive_every_s = 0.05
"""

app = typer.Typer(rich_markup_mode=None)
app.command()(explain.explain)
app.command()(queue_cmd.queue)


@asynccontextmanager
async def governor(root: Path, *, speed: float, slices: bool = False) -> AsyncIterator[tuple[Governed, Running]]:
    """Three agents on a pool of 8,192 KV tokens."""
    policies = dict.fromkeys(AGENTS, POLICY.format(slices=str(slices).lower()))
    async with (
        twin_server(small_machine(), speed=speed) as twin,
        governed(twin.url, root, engine_kind="sglang", policies=policies, agents=AGENTS) as gov,
    ):
        yield gov, twin


class Stream:
    """A chat that is read to its end, or until it is cancelled."""

    def __init__(self, gov: Governed, agent: str, words: int, cap: int, says: str | None = None) -> None:
        """``says``: its whole answer; without it the answer goes on to its cap."""
        self.comments: list[str] = []
        self.data: list[str] = []
        self._body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{agent} " * words}],
            "max_tokens": cap,
            "stream": True,
            "ignore_eos": says is None,
            "custom_params": {"twin": {} if says is None else {"text": says}},
            "chat_template_kwargs": {"enable_thinking": False},
        }
        self.task = asyncio.create_task(self._read(gov, agent))

    async def _read(self, gov: Governed, agent: str) -> None:
        async with (
            gov.client(agent) as client,
            client.stream("POST", "/v1/chat/completions", json=self._body) as answer,
        ):
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith(":"):
                    self.comments.append(line)
                elif line:
                    self.data.append(line)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - what is waited for is on both sides of a socket
            await asyncio.sleep(0.01)


def decided(gov: Governed, agent: str) -> list[TurnDecided]:
    news = [numbered.event for numbered in gov.governor.events.since(0)]
    return [event for event in news if isinstance(event, TurnDecided) and event.agent == agent]


@contextmanager
def noted(gov: Governed) -> Iterator[None]:
    """Commands find the governor."""
    with instance.only_instance(gov.home):
        instance.write_note(gov.home, gov.url, time.time(), Secret(ADMIN_TOKEN))
        yield


def run(home: Home, *arguments: str) -> Result:
    environment = {"GOVERNOR_HOME": str(home.root), "COLUMNS": "220"}
    return CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)


async def command(home: Home, *arguments: str) -> str:
    result = await asyncio.to_thread(run, home, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_who_waits_for_room_is_told_why_and_so_is_the_owner(tmp_path: Path) -> None:
    async with governor(tmp_path, speed=1.0) as (gov, _):
        with noted(gov):
            alice = Stream(gov, "alice", 1000, 6000)
            await until(lambda: gov.governor.admission.running == 1)
            bob = Stream(gov, "bob", 1000, 3000, says="So it is.")
            await until(lambda: gov.governor.admission.waiting == 1)
            carol = Stream(gov, "carol", 2000, 1500)
            await until(lambda: bool(bob.comments and carol.comments and alice.data))

            line = (await gov.snapshot()).queue
            assert [(each.agent, each.position) for each in line.waiting] == [("bob", 1), ("carol", 2)]
            [lease] = line.leases
            assert lease.agent == "alice"
            assert lease.booked_tokens == line.booked_tokens >= 7_000
            assert line.capacity_tokens is not None
            assert line.free_tokens == line.capacity_tokens - line.booked_tokens - line.foreign_tokens
            first = line.waiting[0]
            assert first.needs_tokens is not None
            assert f"needs {first.needs_tokens:,} KV tokens" in first.reason
            assert first.due == pytest.approx(first.since + 45, abs=0.01)
            assert abs(first.since - time.time()) < 20

            text = await command(gov.home, "queue")
            assert f"{line.capacity_tokens:,}" in text
            assert first.reason.split(",")[0] in text
            told: dict[str, Any] = json.loads(await command(gov.home, "queue", "--json"))
            assert [each["agent"] for each in told["running"]] == ["alice"]
            assert told["running"][0]["phase"] == "decode"
            assert told["running"][0]["generated_bytes"] > 0
            assert [each["turn_id"] for each in told["waiting"]] == [each.turn_id for each in line.waiting]
            assert told["booked_tokens"] == line.booked_tokens

            now = await command(gov.home, "explain", first.turn_id)
            assert "waiting, place 1: needs" in now

        assert any(comment.startswith(": waiting 1 of 2: needs ") for comment in bob.comments[-2:])
        assert any(comment.startswith(": waiting 2 of 2: ") for comment in carol.comments)
        for comment in (*bob.comments, *carol.comments):
            assert comment.isascii()
            assert not any(name in comment for name in AGENTS)
        assert not bob.data

        [queued] = decided(gov, "bob")
        assert (queued.verdict, queued.position, queued.waiting, queued.running) == (Verdict.QUEUED, 1, 1, 1)
        assert queued.why == first.reason
        assert queued.needs_tokens == first.needs_tokens

        await alice.stop()
        await bob.task
        await carol.stop()
        await gov.assert_idle()
        assert bob.data[-1] == "data: [DONE]"
        granted = decided(gov, "bob")[1]
        assert granted.verdict is Verdict.GRANTED
        assert granted.position is None
        assert "runs after" in granted.why
        await gov.rows()
    explained = await command(gov.home, "explain", first.turn_id[:9])
    assert [line.split()[2] for line in explained.splitlines()[2:]] == [
        "arrived",
        "queued",
        "granted",
        "first",
        "ended",
        "prefix",
    ]
    assert "agent bob, final, fresh, prompt" in explained
    assert "ok (stop)" in explained
    assert "L1 0, L2 0, L3 0" in explained
    story = json.loads(await command(gov.home, "explain", first.turn_id, "--json"))["story"]
    offsets = [step["offset_s"] for step in story]
    assert offsets == sorted(offsets)
    assert story[1]["decided"]["why"] == story[1]["why"] == queued.why


async def test_a_pause_is_explained_from_the_word_to_stop_to_the_going_on(tmp_path: Path) -> None:
    async with governor(tmp_path, speed=8.0, slices=True) as (gov, twin):
        alice = Stream(gov, "alice", 1000, 3000)
        await until(lambda: bool(alice.data))
        bob = Stream(gov, "bob", 7000, 20)
        await bob.task
        await alice.task
        await gov.assert_idle()
        await gov.rows()
        told = decided(gov, "alice")
        verdicts = [each.verdict for each in told]
        assert verdicts[0] is Verdict.GRANTED
        steps = [Verdict.PAUSE_ASKED, Verdict.PAUSED, Verdict.RESUMED]
        assert verdicts[1:] == steps * (len(verdicts) // 3)
        assert len(verdicts) > 1
        assert "bob" in told[1].why
        assert told[2].position is not None
        assert told[3].why.startswith("goes on after")
        assert any(comment.startswith(": waiting ") for comment in alice.comments)
        assert not any("bob" in comment for comment in alice.comments)
        assert alice.data[-1] == "data: [DONE]"
        await twin.until_idle()
    explained = await command(gov.home, "explain", told[0].turn_id)
    assert "pause asked" in explained
    assert "goes on after" in explained
    assert "paused 1x" in explained


async def test_a_wait_for_the_first_engine_is_explained_too(tmp_path: Path) -> None:
    policy = {"alice": "[limits]\nhold_s = 0.1\n"}
    with bound_socket("127.0.0.1", 0) as nobody:  # takes no connection
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        async with governed(url, tmp_path, engine_kind="sglang", policies=policy, wait_ready=False) as gov:
            answer = await gov.chat()
            assert answer.status_code == 503
            [row] = await gov.rows()
    explained = await command(gov.home, "explain", row.turn_id)
    steps = [line.split(maxsplit=3)[2] for line in explained.splitlines()[2:]]
    assert steps == ["arrived", "queued", "ended"]
    assert "the engine is not ready yet" in explained


async def test_a_turn_that_is_not_known_or_not_the_only_one_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert (await asyncio.to_thread(run, home, "queue")).exit_code == 3
    assert (await asyncio.to_thread(run, home, "explain", "t-1")).exit_code == 3
    async with governor(tmp_path, speed=40.0) as (gov, _):
        async with asyncio.timeout(10):  # the log is made in the background
            while "no such table" in (empty := await asyncio.to_thread(run, gov.home, "explain", "t-1")).stderr:
                pass
        for _ in range(2):
            (await gov.chat("alice", model=MODEL, max_tokens=4)).raise_for_status()
        ids = [row.turn_id for row in await gov.rows()]
    assert "it has none yet" in empty.stderr
    unknown = await asyncio.to_thread(run, home, "explain", "x\x1b[31m")
    assert unknown.exit_code == 2
    assert "\x1b" not in unknown.stderr
    assert all(turn_id in unknown.stderr for turn_id in ids)
    several = await asyncio.to_thread(run, home, "explain", "t-")
    assert several.exit_code == 2
    assert "several turns begin with 't-'" in several.stderr
    assert all(turn_id in several.stderr for turn_id in ids)
