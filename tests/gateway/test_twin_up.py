"""``governor up --profile twin:MACHINE``: the whole product on the twin, as it is on SGLang."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from governor import instance
from governor.settings import Home
from serve.canary import run_canary
from serve.canary.http import SglangCanary
from serve.placement import socket_folder
from serve.process_table import EngineRecord
from serve.sglang_feed import FeedEvent, KvFeed, KvStored, PluginFeed, PluginHello, RequestAdmitted
from serve.twin.machine import machine_names
from tests.up import Up, living, started, told, until, up

MACHINE = "twin:rx7900xtx-tp2"
SPEED = ("--speed", "300")
READY_S = 20.0
WORDS = "the quick brown fox jumps over the lazy dog " * 300


@asynccontextmanager
async def twin_up(home: Home, *arguments: str) -> AsyncIterator[Up]:
    """Ready."""
    async with up(home, "--profile", MACHINE, *SPEED, *arguments) as governor:
        await governor.wait_for_mode("ready", within_s=READY_S)
        yield governor


async def asked(governor: Up, content: str, **body: Any) -> dict[str, Any]:
    async with governor.client() as client:
        model = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
    answer = await governor.chat(model=model, messages=[{"role": "user", "content": content}], **body)
    assert answer.status_code == 200, answer.text
    decoded: dict[str, Any] = answer.json()
    return decoded


async def command(home: Home, *words: str) -> str:
    """What another ``governor`` command says of it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "governor",
        *words,
        env={**os.environ, "GOVERNOR_HOME": str(home.root)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


def engine_pid(home: Home) -> int:
    return msgspec.json.decode((home.run / "engine.json").read_bytes(), type=EngineRecord).pid


async def test_a_day_with_the_twin(tmp_path: Path) -> None:
    """Up, a chat, a stream, what status and log say, and down."""
    home = Home(tmp_path / "home")
    async with twin_up(home) as governor:
        pid = engine_pid(home)
        assert not (await governor.state()).alerts
        cold = await asked(governor, WORDS, max_tokens=16)
        warm = await asked(governor, WORDS, max_tokens=16)
        assert cold["usage"]["completion_tokens"] == 16
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0.9 * warm["usage"]["prompt_tokens"]
        assert "finish_reason" in await streamed(governor)
        said = await command(home, "chat", "hello", "--max-tokens", "20")
        assert said.strip()
        status = await command(home, "status")
        assert "sglang" in status
        assert "ready" in status
        turns = await logged(home, 4)
        assert [turn["closed"]["usage"]["cached_device_tokens"] for turn in turns[:2]] == [
            0,
            warm["usage"]["prompt_tokens_details"]["cached_tokens"],
        ]
    await until(lambda: living([pid]) == [])


async def streamed(governor: Up) -> str:
    async with governor.client() as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        body = {"model": model, "stream": True, "max_tokens": 40, "messages": [{"role": "user", "content": "hi"}]}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert len(chunks) >= 3  # a role, words, an end
    return next(lines[number] for number, chunk in enumerate(chunks) if chunk["choices"][0]["finish_reason"])


async def logged(home: Home, count: int) -> list[Any]:
    """The log is written behind the answers."""
    async with asyncio.timeout(10):
        while True:
            turns = [json.loads(line) for line in (await command(home, "log", "--json")).splitlines()]
            turns = turns[0] if turns and isinstance(turns[0], list) else turns
            if len(turns) >= count and all(turn["closed"] for turn in turns):
                return turns
            await asyncio.sleep(0.1)


async def test_both_feeds_are_where_an_engines_are(tmp_path: Path) -> None:
    home = Home(tmp_path / "h")
    heard: list[FeedEvent] = []
    async with twin_up(home) as governor:
        sockets = socket_folder(home)
        kv = KvFeed(f"ipc://{sockets}/kv-events", f"ipc://{sockets}/kv-replay", heard.append)
        plugin = PluginFeed(sockets / "plugin", heard.append)
        running = [asyncio.create_task(kv.run()), asyncio.create_task(plugin.run())]
        await until(lambda: any(isinstance(event, PluginHello) for event in heard))
        await asked(governor, WORDS, max_tokens=4)
        await until(lambda: any(isinstance(event, KvStored) and len(event.hashes) > 20 for event in heard))
        await until(lambda: any(isinstance(event, RequestAdmitted) for event in heard))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_a_killed_twin_comes_back(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    async with twin_up(home) as governor:
        first = engine_pid(home)
        os.kill(first, signal.SIGKILL)
        await governor.wait_for_mode("coming", saying="restart 1 of 5")
        await governor.wait_for_mode("ready", within_s=READY_S)
        assert engine_pid(home) != first
        await asked(governor, "hi", max_tokens=4)


async def test_the_canary_passes_on_the_twin(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    async with twin_up(home):
        note = instance.running_instance(home)
        assert note is not None
        assert note.engine_url is not None
        async with aclosing(SglangCanary(note.engine_url)) as engine:
            report = await run_canary(engine, quick=True)
        assert report.passed, report


async def test_an_unknown_machine_is_told_with_the_known_ones(tmp_path: Path) -> None:
    process = await started(Home(tmp_path / "home"), "--profile", "twin:none")
    words = await told(process)
    assert process.returncode == 6
    assert all(name in words for name in machine_names())
