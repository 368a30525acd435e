"""Plays a plan over HTTP, on whatever has SGLang's surface: the engine, or the twin's server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Self

import httpx
import msgspec

from serve.twin.tiers_key import Key
from tests.twin.traffic import ANSWERS, Flush, Restart, Served, Step, Turn

_VOCABULARY = range(1000, 30_000)
_TIMEOUT_S = 300.0
_TEMPERATURE = 1.0
"""No two answers alike, as in the plan, where each is a source of its own."""


class HttpPlay:
    """One plan over HTTP, on whatever has SGLang's surface. Not to be used twice."""

    def __init__(
        self,
        steps: list[Step],
        url: str,
        restart: Callable[[], Awaitable[None]] | None = None,
        speed: float = 1.0,
    ) -> None:
        """``restart``: ends the engine and returns when another is ready at the same address and on the same disk.
        ``speed``: of the engine's seconds; pauses are shorter by it, and what is told is in the engine's seconds."""
        self._speed = speed
        self._steps = steps
        self._restart = restart
        self._client = httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, trust_env=False)
        self._spoke = {step.number: asyncio.Event() for step in steps}
        self._ended = {step.number: asyncio.Event() for step in steps}
        self._words: dict[int, list[int]] = {}
        self._answers: dict[int, list[int]] = {}
        self._began = 0.0
        self.served: list[Served] = []

    async def run(self) -> list[Served]:
        """Until all is said. Raises an :class:`ExceptionGroup` of what went wrong with any turn."""
        await self._flush()
        self._began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for step in self._steps:
                tasks.create_task(self._play(step))
        return self.served

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._client.aclose()

    async def _play(self, step: Step) -> None:
        for number in step.spoke:
            await self._spoke[number].wait()
        for number in step.ended:
            await self._ended[number].wait()
        await asyncio.sleep(step.pause_s / self._speed)
        match step:
            case Turn():
                await self._ask(step)
            case Flush():
                await self._flush()
            case Restart():
                began = time.monotonic()
                assert self._restart is not None, "this plan restarts its engine"
                await self._restart()
                self._began += time.monotonic() - began
        self._spoke[step.number].set()
        self._ended[step.number].set()

    async def _ask(self, turn: Turn) -> None:
        sampling = {
            "max_new_tokens": turn.writes_tokens,
            "min_new_tokens": turn.writes_tokens,
            "ignore_eos": turn.ignores_eos,
            "temperature": _TEMPERATURE,
        }
        body = {"rid": turn.rid, "input_ids": self._ids(turn.prompt), "sampling_params": sampling, "stream": True}
        sent = time.monotonic()
        first_s = 0.0
        last: dict[str, Any] = {}
        stopped = False
        async with self._client.stream("POST", "/generate", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                last = msgspec.json.decode(line.removeprefix("data: "))
                written = len(last["output_ids"])
                if written and not first_s:
                    first_s = time.monotonic() - sent
                    self._spoke[turn.number].set()
                if turn.stop_after_tokens is not None and not stopped and written >= turn.stop_after_tokens:
                    stopped = True
                    (await self._client.post("/abort_request", json={"rid": turn.rid})).raise_for_status()
        self._answers[turn.number] = last["output_ids"]
        about = last["meta_info"]
        details = about.get("cached_tokens_details") or {}
        host, storage = details.get("host", 0), details.get("storage", 0)
        self.served.append(
            Served(
                number=turn.number,
                prompt_tokens=about["prompt_tokens"],
                completion_tokens=about["completion_tokens"],
                device=about["cached_tokens"] - host - storage,
                host=host,
                storage=storage,
                at=round((sent - self._began) * self._speed, 3),
                first_s=round(first_s * self._speed, 4),
                last_s=round((time.monotonic() - sent) * self._speed, 4),
            )
        )

    async def _flush(self) -> None:
        (await self._client.post("/flush_cache", params={"timeout": 10})).raise_for_status()

    def _ids(self, prompt: Key) -> list[int]:
        ids: list[int] = []
        for source, start, stop in prompt.runs:
            known = self._answers[source - ANSWERS] if source >= ANSWERS else self._say(source, stop)
            assert len(known) >= stop, f"{len(known)} of {stop} tokens of source {source}"
            ids += known[start:stop]
        return ids

    def _say(self, source: int, tokens: int) -> list[int]:
        if len(self._words.get(source, ())) < tokens:
            chance = Random(source)  # noqa: S311 - a game, not a secret
            self._words[source] = chance.choices(_VOCABULARY, k=tokens)
        return self._words[source]
