"""The twin against the running engine: one plan of several agents' turns, asked of both.

``python -m tests.sglang.agreement`` starts the engine, plays the long plan on it and on the twin, and prints how far
they agree; ``--record FILE`` keeps the engine's figures, ``--recorded FILE`` takes them from there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Self

import httpx
import msgspec

from serve.twin.machine import load_machine
from serve.twin.tiers_key import Key
from tests.sglang.server import SglangServer
from tests.twin.agreement import BOUND, Agreement
from tests.twin.cpu_engine import small
from tests.twin.recording import Recording
from tests.twin.traffic import ANSWERS, PLANS, Flush, Restart, Served, Step, Turn, turns_of
from tests.twin.traffic_twin import TwinPlay

_VOCABULARY = range(1000, 30_000)
_TIMEOUT_S = 300.0
_TEMPERATURE = 1.0
"""No two answers alike, as in the plan, where each is a source of its own."""


class HttpPlay:
    """One plan over HTTP, on whatever has SGLang's surface. Not to be used twice."""

    def __init__(self, steps: list[Step], url: str, restart: Callable[[], Awaitable[None]] | None = None) -> None:
        """``restart``: ends the engine and returns when another is ready at the same address and on the same disk."""
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
        await asyncio.sleep(step.pause_s)
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
                at=round(sent - self._began, 3),
                first_s=round(first_s, 4),
                last_s=round(time.monotonic() - sent, 4),
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


async def play_on(server: SglangServer, steps: list[Step]) -> list[Served]:
    """The plan on the real engine, which is killed and started again where the plan says so."""

    async def restart() -> None:
        await asyncio.to_thread(server.kill)
        server.start()
        await asyncio.to_thread(server.wait_ready)

    async with HttpPlay(steps, server.url, restart) as play:
        return await play.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.agreement")
    parser.add_argument("--plan", choices=sorted(PLANS), default="long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--machine", default="sglang-cpu", help="of the twin; it gets the test server's small pools")
    parser.add_argument("--record", type=Path, help="keep the engine's figures in this file")
    parser.add_argument("--recorded", type=Path, help="take them from there, with plan and seed")
    asked = parser.parse_args()
    if asked.recorded:
        recording = Recording.read(asked.recorded)
    else:
        steps = PLANS[asked.plan](asked.seed)
        with tempfile.TemporaryDirectory() as folder, SglangServer(Path(folder)) as server:
            served = asyncio.run(play_on(server, steps))
        recording = Recording(
            plan=asked.plan, seed=asked.seed, served=tuple(sorted(served, key=lambda row: row.number))
        )
        if asked.record:
            recording.write(asked.record)
    twin = TwinPlay(recording.steps, small(load_machine(asked.machine))).run()
    agreement = Agreement(turns_of(recording.steps), recording.served, twin)
    print(agreement.table())
    sys.exit(agreement.share < BOUND)


if __name__ == "__main__":
    main()
