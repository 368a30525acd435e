"""W43 slot-leak: whatever way a request ends, on whatever route, its place is given back exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from governor.gateway.body import BodyLimits
from governor.runtime import RuntimeConfig
from governor.tokens.counter import EstimateCounter
from governor.tokens.model import PromptParts
from governor.types import TokenCount, TurnState
from serve.engine import Endpoint
from serve.scripted import Knobs, ModeOptions, ScriptedEngine
from tests.cases.play import leave
from tests.harness import Governed, governed
from tests.scenario import CaseRequest, load_case

(VARIANT,) = load_case("W43").variants
WAYS = (*VARIANT.mix, "gateway_exception")
POLICY = {"alice": f"limits.concurrency = {VARIANT.policy['slots']}\nlimits.queue = 1000\n"}
BODY_LIMIT = 100_000
AT_ONCE = 16

_ROUTES: Mapping[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Endpoint.COMPLETIONS: {"prompt": "hi"},
    Endpoint.MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000},
    Endpoint.RESPONSES: {"input": "hi"},
}
_MARK = "make the counter fail"


class FailingCounter(EstimateCounter):
    """Counts, but for prompts that carry the mark: a fault of our own in the middle of a turn."""

    def count(self, prompt: PromptParts) -> TokenCount:
        if any(_MARK.encode() in bytes(message) for message in prompt.messages):
            raise RuntimeError(_MARK)
        return super().count(prompt)


def _request(way: str, endpoint: Endpoint, stream: bool) -> CaseRequest:
    text = {
        "oversize_body": "x" * BODY_LIMIT,
        "compression_failure": "interoperability " * 3000,  # what is left of one without compression: over the window
        "gateway_exception": _MARK,
    }.get(way, "hi")
    body = msgspec.json.encode({"model": "m", "user": way, "stream": stream} | _ROUTES[endpoint])
    return CaseRequest(
        method="POST", path=endpoint.value, body=msgspec.json.decode(body.replace(b'"hi"', msgspec.json.encode(text)))
    )


async def _one(governor: Governed, client: httpx.AsyncClient, way: str, endpoint: Endpoint, stream: bool) -> None:
    request = _request(way, endpoint, stream)
    if way == "client_cancel":
        moment: dict[str, float] = {"disconnect_after_bytes": 300} if stream else {"disconnect_after_s": 0.005}
        with contextlib.suppress(httpx.HTTPError):
            await leave(governor, request, moment)
        return
    headers = {"content-type": "application/json"}
    answer = await client.post(request.path, content=request.content(), headers=headers)
    failed = {"stub_400": 400, "stub_500": 500, "rst": 502, "timeout": 502, "oversize_body": 413,
              "compression_failure": 400, "gateway_exception": 500}  # fmt: skip
    if way == "error_frame":
        assert answer.status_code in {200, 500, 502, 503}, (endpoint, stream, answer.text)
    else:
        assert answer.status_code == failed.get(way, 200), (way, endpoint, stream, answer.text)


async def _all(governor: Governed, ways: list[tuple[str, Endpoint, bool]]) -> None:
    queue = iter(ways)
    async with governor.client() as client:

        async def worker() -> None:
            for way, endpoint, stream in queue:
                await _one(governor, client, way, endpoint, stream)

        async with asyncio.TaskGroup() as together:
            for _ in range(AT_ONCE):
                together.create_task(worker())


@pytest.mark.parametrize("spread", ["chat-stream", "all-routes"])
async def test_W43_every_exit_gives_its_place_back(
    spread: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # one traceback for each request that was made to fail
    if spread == "chat-stream":
        cycle = itertools.cycle([(way, Endpoint.CHAT, True) for way in WAYS])
    else:
        cycle = itertools.cycle(
            [(way, endpoint, stream) for way in WAYS for endpoint in _ROUTES for stream in (False, True)]
        )
    ways = list(itertools.islice(cycle, VARIANT.repeat))
    engine = ScriptedEngine(
        "by_mix",
        knobs=Knobs(model="m", window_tokens=4096, keep_bodies=False),
        options=ModeOptions(mix=VARIANT.mix, hang_s=0.01),
    )
    config = RuntimeConfig(body_limits=BodyLimits(max_bytes=BODY_LIMIT))
    async with (
        engine,
        governed(engine.url, tmp_path, policies=POLICY, config=config, counter=FailingCounter()) as governor,
    ):
        await _all(governor, ways)
        await governor.assert_idle()
        snapshot = await governor.snapshot()
        assert not snapshot.turns
        (alice,) = snapshot.agents
        assert (alice.running, alice.waiting) == (0, 0)
        ends = await governor.ends()
        assert len({end.turn_id for end in ends}) == len(ends)
        seen = {state: sum(1 for end in ends if end.state is state) for state in TurnState}
        assert seen[TurnState.GOVERNOR_ERROR] == sum(1 for way, _, _ in ways if way == "gateway_exception")
        assert seen[TurnState.OPEN] == seen[TurnState.INTERRUPTED] == 0
        async with asyncio.timeout(1):
            answer = await governor.chat(user="ok")
        assert answer.status_code == 200
        assert (await governor.ends())[-1].queued_ms == pytest.approx(0, abs=50)
        await engine.wait_idle()
