"""Measures the real engine on this machine's CPU as the twin's machines are measured.

``python -m tests.sglang.measure > FILE`` prints the file that ``governor twin fit`` reads, in a minute and a half. The
machine should have nothing else to do; its load is written down.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx
import msgspec
import tomlkit

from serve.twin.measured import DecodeRow, HitRow, HitTier, Measured, PrefillRow
from tests.sglang.server import ServerOptions, SglangServer
from tests.twin.cpu_engine import PROFILE_ENGINE

OPTIONS = ServerOptions(
    context_length=16_384, max_total_tokens=24_576, max_mamba_cache_size=48, chunked_prefill_size=2048
)
"""The profile's chunk; a pool that is flooded in two seconds."""
COLD = (512, 1024, 2048, 4096, 6000)
HITS = (1100, 4108)
"""Each with 12 tokens behind the last whole page."""
TAIL = 12
DECODES = ((1, 512), (1, 4096), (2, 512), (4, 512), (4, 4096))
"""Requests and the context of each."""
OUTPUT = 160
REPEATS = 3


class Probe:
    """Asks one server, in the order that it is told to."""

    def __init__(self, server: SglangServer) -> None:
        self._client = httpx.AsyncClient(base_url=server.url, timeout=300, trust_env=False)
        self._prompts = 0
        self._server = server

    def prompt(self, tokens: int) -> list[int]:
        self._prompts += 1
        return Random(self._prompts).choices(range(1000, 30_000), k=tokens)  # noqa: S311 - a prompt, not a secret

    async def ask(self, ids: list[int], tokens: int = 1) -> tuple[list[float], dict[str, int]]:
        """Seconds to each chunk of its answer, and how many tokens of the prompt came from which tier."""
        sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}
        body = {"input_ids": ids, "sampling_params": sampling, "stream": True}
        sent = time.monotonic()
        times: list[float] = []
        last: dict[str, Any] = {}
        async with self._client.stream("POST", "/generate", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    times.append(time.monotonic() - sent)
                    last = msgspec.json.decode(line.removeprefix("data: "))
        details = last["meta_info"].get("cached_tokens_details") or {}
        return times, {tier: details.get(tier, 0) for tier in HitTier}

    async def cold(self, tokens: int) -> float:
        times, cached = await self.ask(self.prompt(tokens))
        assert not any(cached.values()), cached
        return times[0]

    async def hit(self, tokens: int, tier: HitTier) -> float:
        """A prompt of which all but its last tokens is in ``tier``."""
        ids = self.prompt(tokens)
        await self.ask(ids)
        if tier is HitTier.HOST:
            for _ in range(6):
                await self.ask(self.prompt(4090))
        if tier is HitTier.STORAGE:
            await self._on_disk()
            (await self._client.post("/flush_cache", params={"timeout": 10})).raise_for_status()
        times, cached = await self.ask(ids)
        assert cached[tier] == tokens - TAIL, cached
        return times[0]

    async def decode(self, requests: int, context: int) -> float:
        """Tokens a second of all together, from when the last has its first to when the first has its last."""
        prompts = [self.prompt(context) for _ in range(requests)]
        for ids in prompts:
            await self.ask(ids)
        began = time.monotonic()
        told = await asyncio.gather(*(self._from(began, ids) for ids in prompts))
        start, end = max(times[0] for times in told), min(times[-1] for times in told)
        return sum(sum(start < at <= end for at in times) for times in told) / (end - start)

    async def _from(self, began: float, ids: list[int]) -> list[float]:
        sent = time.monotonic() - began
        times, _ = await self.ask(ids, OUTPUT)
        return [sent + at for at in times]

    async def _on_disk(self) -> None:
        """Until the engine, which writes behind its answers, has stopped writing."""
        before, now = -1, 0
        while before != now:
            await asyncio.sleep(0.5)
            before, now = now, sum(1 for _ in self._server.l3.iterdir())


async def measure(server: SglangServer) -> Measured:
    probe = Probe(server)
    for tokens in (4096, 512, 70):
        await probe.cold(tokens)
    loads = [os.getloadavg()[0]]
    prefill = [PrefillRow(context=tokens, seconds=await _median(partial(probe.cold, tokens))) for tokens in COLD]
    hits = [
        HitRow(tier=tier, context=tokens, tail=TAIL, seconds=await _median(partial(probe.hit, tokens, tier)))
        for tier in HitTier
        for tokens in HITS
    ]
    decode = [
        DecodeRow(requests=requests, context=context, output=OUTPUT, rate=await _median(once, digits=1))
        for requests, context in DECODES
        for once in [partial(probe.decode, requests, context)]
    ]
    loads.append(os.getloadavg()[0])
    return Measured(
        name="sglang-cpu",
        summary="The real SGLang 0.5.23 on two cores of a CPU, tiny hybrid model, as the tests start it",
        sources=(
            f"python -m tests.sglang.measure: medians of {REPEATS} on {os.cpu_count()} cores of an EPYC (AVX2)",
            f"load of one minute: {loads[0]:.1f} before and {loads[1]:.1f} after, the engine's own included",
        ),
        model="tiny-hybrid",
        engine=PROFILE_ENGINE,
        prefill=tuple(prefill),
        hit=tuple(hits),
        decode=tuple(decode),
    )


async def _median(once: Callable[[], Awaitable[float]], digits: int = 4) -> float:
    return round(median([await once() for _ in range(REPEATS)]), digits)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, SglangServer(Path(folder), OPTIONS) as server:
        measured = asyncio.run(measure(server))
    sys.stdout.write(tomlkit.dumps(_told(measured)))


def _told(value: Any) -> Any:
    """Without what is as it is by default."""
    if isinstance(value, msgspec.Struct):
        fields = ((field, getattr(value, field.name)) for field in msgspec.structs.fields(value))
        return {field.name: _told(each) for field, each in fields if each != field.default}
    if isinstance(value, tuple):
        return [_told(each) for each in value]
    return value.value if isinstance(value, Enum) else value


if __name__ == "__main__":
    main()
