"""What must hold of an SGLang that ``governor up`` launches, on whatever machine: ``tests/sglang`` asks it of the one
on the CPU, ``tests/gpu`` of the one on the card."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import typer
from typer.testing import CliRunner

from governor import instance
from governor.cli.plan import plan
from governor.settings import Home
from governor.store.database import sqlite_url
from governor.store.model import StoredTurn
from governor.store.query import TurnLogReader
from governor.types import Usage
from serve.canary import Tier, Verdict, run_canary
from serve.canary.http import SglangCanary
from serve.engines.sglang import Sglang
from serve.plan.plan import TOLERANCE
from serve.process_table import EngineRecord, ProcessTable
from serve.profile import load_profile
from serve.profile.tiers import LowerTier, lower_tiers
from serve.sglang_launcher import WORKER_TITLE
from tests.up import Up, living, until, up

_SCHEDULER_TITLE = f"{WORKER_TITLE}scheduler"
_PROMPT_WORDS = 1500
"""Several of the engine's checkpoints, whatever their grid."""
_TIERS = {LowerTier.L2: Tier.L2, LowerTier.L3: Tier.L3}


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One engine on this machine, as it is given to ``governor up`` and ``governor plan``."""

    profile: str
    weights: str | None = None
    """``None``: the profile's, or what was installed with the engine."""
    gpu_gib: float | None = None
    """Memory of one GPU; ``None`` on a CPU."""
    environment: Mapping[str, str]
    ready_s: float
    """The longest that a start may take."""


@asynccontextmanager
async def launched(launch: Launch, home: Home) -> AsyncIterator[Up]:
    """A governor whose engine is ready; both end when it is left."""
    weights = [] if launch.weights is None else ["--model", launch.weights]
    async with up(home, "--profile", launch.profile, *weights, environment=launch.environment) as governor:
        await governor.wait_for_mode("ready", within_s=launch.ready_s)
        yield governor


async def assert_a_chat_returns_from_l1(governor: Up) -> None:
    """The same long prompt twice through the gateway; the turn log says which tier served."""
    assert not (await governor.state()).alerts  # our plugin has proved its hooks
    content = f"{secrets.token_hex(8)} " + "the quick brown fox " * (_PROMPT_WORDS // 4)
    for _ in range(2):
        answer = await _chat(governor, content, max_tokens=4)
        assert answer["usage"]["completion_tokens"] == 4
    cold, warm = await _last_usages(governor.home, 2)
    assert cold.cached_tokens is not None
    assert warm.prompt_tokens == cold.prompt_tokens
    assert warm.prompt_tokens is not None
    assert warm.cached_tokens is not None
    assert cold.cached_tokens < 0.1 * warm.prompt_tokens  # of the template, at most
    assert warm.cached_tokens > 0.5 * warm.prompt_tokens
    assert (warm.cached_device_tokens, warm.cached_host_tokens, warm.cached_storage_tokens) == (
        warm.cached_tokens,
        0,
        0,
    )


async def assert_each_tier_serves(governor: Up, launch: Launch, *, quick: bool) -> None:
    """The canary passes, and skips none of the profile's tiers."""
    async with aclosing(SglangCanary(_engine_url(governor.home))) as engine:
        report = await run_canary(engine, quick=quick)
    assert report.passed, report
    wanted = {Tier.L1, *(_TIERS[tier] for tier in lower_tiers(load_profile(launch.profile)))}
    served = {result.tier for result in report.tiers if result.verdict is Verdict.SERVED}
    assert wanted <= served, report
    assert [row for row in report.rows if row.stage.tier in wanted and row.verdict is not Verdict.SERVED] == []


async def assert_the_plan_meets_the_pool(governor: Up, launch: Launch, weights: str | None) -> None:
    """KV tokens of L1: calculated from profile, weights and GPU, against what the engine reports."""
    async with aclosing(Sglang(_engine_url(governor.home))) as engine:
        reported = (await engine.load()).kv_capacity_tokens
    words = ["--profile", launch.profile, "--calculated", "--json"]
    words += [] if weights is None else ["--model", weights]
    words += [] if launch.gpu_gib is None else ["--gpu-memory", str(launch.gpu_gib)]
    app = typer.Typer()
    app.command()(plan)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    calculated = msgspec.json.decode(done.stdout)["l1"]["kv_tokens"]
    assert reported
    assert abs(calculated - reported) <= TOLERANCE * reported, f"calculated {calculated:,}, reported {reported:,}"


async def assert_a_killed_worker_is_seen(governor: Up) -> EngineRecord:
    """The last rank's scheduler is killed: all of that engine ends, and another one starts, which is returned."""
    home, table = governor.home, ProcessTable()
    first = engine_record(home)
    members, schedulers = table.members(first), table.titled(first, _SCHEDULER_TITLE)
    victim = max(schedulers)
    os.kill(victim, signal.SIGKILL)
    detail = await governor.wait_for_mode("coming", within_s=60, saying="restart 1 of 5")
    assert str(victim) in detail or "worker" in detail
    await until(lambda: living(members) == [], within_s=60)
    await until(lambda: _is_another(home, first), within_s=60)
    return engine_record(home)


async def assert_it_serves_again(governor: Up, launch: Launch) -> None:
    await governor.wait_for_mode("ready", within_s=launch.ready_s)
    assert (await _chat(governor, "Say one word.", max_tokens=1))["usage"]["completion_tokens"] == 1


def engine_record(home: Home) -> EngineRecord:
    """Of the engine that runs."""
    return msgspec.json.decode((home.run / "engine.json").read_bytes(), type=EngineRecord)


def _is_another(home: Home, first: EngineRecord) -> bool:
    try:
        return engine_record(home).pid != first.pid
    except FileNotFoundError:
        return False


def _engine_url(home: Home) -> str:
    note = instance.running_instance(home)
    if note is None or note.engine_url is None:
        raise LookupError("no governor runs that says where its engine is")
    return note.engine_url


async def _chat(governor: Up, content: str, **body: Any) -> dict[str, Any]:
    async with governor.client() as client:
        model = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
    messages = [{"role": "user", "content": content}]
    answer = await governor.chat(model=model, messages=messages, temperature=0, **body)
    assert answer.status_code == 200, answer.text
    decoded: dict[str, Any] = answer.json()
    return decoded


async def _last_usages(home: Home, count: int) -> list[Usage]:
    """Of the turns that ended last, oldest first. The log is written behind the answers."""
    reader = TurnLogReader(sqlite_url(home.database))

    def ended() -> list[StoredTurn]:
        return [turn for turn in reader.recent(limit=count) if turn.closed is not None]

    async with asyncio.timeout(10):
        while len(rows := await asyncio.to_thread(ended)) < count:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.1)
    return [row.closed.usage for row in reversed(rows) if row.closed is not None]
