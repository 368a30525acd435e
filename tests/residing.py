"""A mixed run of several agents through the gateway, and how well the residency index knew what each turn was served.

The same on the twin and on the real engine: conversations that go on, branch, repeat themselves, begin anew behind a
shared system prompt, one at a time and at once, with more context than L1 holds; the engine is flushed and killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import httpx

from governor.residency.score import Figures
from governor.schedule.events import EngineMode
from tests.conversing import Client, Hermes, OpenClaw
from tests.harness import Governed
from tests.sglang_adapter import MODEL, words

PAGE = 64
BOUND = 0.95
"""Of turns whose cached tokens must be predicted within a page, and of those with the tier right."""
EXACT = '[request]\nhistory = "exact"\n'
AGENTS = ("ann", "ben", "cat", "dan")
POLICIES = {"ann": EXACT, "cat": EXACT}
_LONGEST_WORDS = 1_400
_MACHINE_S = 300.0
_TOOL_S = 0.05


class Agent:
    """One agent's conversations; a word is about a token."""

    def __init__(self, gateway: Governed, name: str, seed: int, system: str, body: dict[str, Any]) -> None:
        self._gateway = gateway
        self._name = name
        self._random = Random(seed)  # noqa: S311 - a game, not a secret
        self._system = system
        self._body = body
        self._talk: Client = self._anew()

    async def turn(self) -> None:
        """One request; the conversation has its answer. A tool, or a person, has taken a moment."""
        await asyncio.sleep(_TOOL_S)
        random = self._random
        pick = random.random()
        said = sum(len(str(message["content"]).split()) for message in self._talk.history)
        if said > _LONGEST_WORDS or pick < 0.08:
            self._talk = self._anew()
        elif pick < 0.18 and len(self._talk.history) > 4:
            keeps = random.randrange(1, len(self._talk.history) // 2) * 2 + 1  # a question goes to another answer
            del self._talk.history[keeps:]
        elif pick < 0.26 and len(self._talk.history) > 2:
            del self._talk.history[-2:]  # the very same once more
            await self._asked()
            return
        self._talk.ask(words(random.randrange(1 << 30), random.choice((10, 40, 90, 200, 400))))
        await self._asked()

    async def _asked(self) -> None:
        if self._talk.history[-1]["role"] != "user":
            self._talk.ask(words(self._random.randrange(1 << 30), 60))
        body = {"model": MODEL, "messages": self._talk.messages, **self._body}
        tokens = self._random.choice((4, 20, 60, 130, 300))
        twin = {"tokens": tokens, "reasoning_tokens": 0, "calls": []}
        body |= {"max_tokens": tokens, "custom_params": {"twin": twin}}
        async with self._gateway.client(self._name) as client:
            answer = await client.post("/v1/chat/completions", json=body, timeout=_MACHINE_S)
        assert answer.status_code == 200, answer.text
        self._talk.on_answer(answer.json()["choices"][0]["message"])

    def _anew(self) -> Client:
        kind = Hermes if self._name in ("ann", "ben") else OpenClaw
        talk = kind(self._system)
        talk.ask(words(self._random.randrange(1 << 30), self._random.randrange(100, 900)))
        return talk


class MixedRun:
    """Plays on a governor whose agents are :data:`AGENTS`."""

    def __init__(
        self,
        gateway: Governed,
        engine_url: str,
        restart: Callable[[], Awaitable[None]],
        body: dict[str, Any],
        seed: int = 1,
    ) -> None:
        """``restart``: ends the engine and returns when another is ready at its address, on the same L3."""
        shared = words(seed, 300)
        systems = {"ann": shared, "ben": shared, "cat": shared, "dan": words(seed + 1, 150)}
        self._gateway = gateway
        self._engine_url = engine_url
        self._restart = restart
        self._agents = [
            Agent(gateway, name, seed * 100 + number, systems[name], body) for number, name in enumerate(AGENTS)
        ]
        self._random = Random(seed)  # noqa: S311
        self.told: list[str] = []
        """The figures after each part."""

    async def play(self, *, alone: int, at_once: int, settle_s: float = 1.0) -> Figures:
        """Turns of each part, four parts; ``settle_s``: until what was said is on disk."""
        await self._part("alone", self._alone(alone))
        await self._part("at once", self._at_once(at_once))
        await asyncio.sleep(settle_s)
        await self._flush()
        await self._part("after a flush", self._alone(alone // 2))
        await asyncio.sleep(settle_s)
        await self._restart()
        await self._part("after a restart", self._alone(alone // 2))
        await self._part("at once, again", self._at_once(at_once))
        return self._gateway.governor.residency.score.since_start

    async def _part(self, name: str, turns: Awaitable[None]) -> None:
        residency = self._gateway.governor.residency
        before, missed = residency.score.since_start, len(residency.score.misses)
        await turns
        await residency.settled()
        residency.index.check_integrity()
        now = residency.score.since_start
        self.told.append(
            f"{name:16s} {now.turns - before.turns:4d} turns, {now.within_page - before.within_page} within a page, "
            f"{now.equal - before.equal} equal, tier right {now.tier_right - before.tier_right} of "
            f"{now.tier_turns - before.tier_turns}, unknown {now.unknown - before.unknown}"
        )
        self.told += [f"    {miss}" for miss in list(residency.score.misses)[missed:]]

    async def _alone(self, turns: int) -> None:
        for _ in range(turns):
            await self._random.choice(self._agents).turn()

    async def _at_once(self, turns: int) -> None:
        async def some(agent: Agent) -> None:
            for _ in range(turns // len(self._agents)):
                await agent.turn()

        await asyncio.gather(*(some(agent) for agent in self._agents))

    async def _flush(self) -> None:
        async with httpx.AsyncClient(base_url=self._engine_url, trust_env=False, timeout=60) as engine:
            (await engine.post("/flush_cache", params={"timeout": 20})).raise_for_status()


def is_known_well(figures: Figures) -> bool:
    return (figures.within_page_share or 0.0) >= BOUND and (figures.tier_share or 0.0) >= BOUND


async def until_known(gateway: Governed) -> None:
    """Everything there is to know of the engine's cache is known."""
    blocks = gateway.governor.residency.blocks
    async with asyncio.timeout(30):
        while not (blocks.knowledge.tells_depth and blocks.knowledge.l3 and blocks.knowledge.kv_whole):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_ready(gateway: Governed, *, is_ready: bool = True) -> None:
    async with asyncio.timeout(60):
        while (gateway.governor.watch.mode is EngineMode.READY) != is_ready:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
