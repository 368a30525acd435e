"""A conversation at rest comes back into L1 before its next turn, on the twin, and is in nobody's way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from governor.events import TurnDecided
from governor.schedule.toolclock import ENOUGH
from governor.types import Verdict
from tests.harness import Governed, governed
from tests.twin_server import Running, small_machine, twin_server

PREWARMED = "[share]\nprewarm = true\n"
TITLE = "Generate a short, descriptive title for this conversation."
REST_S = 2.5
"""How long alice's tool takes at least once, so that she is not given up before."""


class Talk:
    """One conversation that goes on."""

    def __init__(self, gateway: Governed, agent: str, words: int) -> None:
        self._gateway, self._agent = gateway, agent
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": f"{agent} " * words}]

    async def turn(self, **options: Any) -> dict[str, Any]:
        """Its usage."""
        body = {"model": "tiny-hybrid", "messages": self._messages, "max_tokens": 20, **options}
        answer = (await self._gateway.chat(self._agent, **body)).raise_for_status().json()
        said = answer["choices"][0]["message"]
        self._messages.append({key: value for key, value in said.items() if value is not None})
        self._messages.append({"role": "user", "content": "Go on."})
        usage: dict[str, Any] = answer["usage"]
        return usage


async def until(condition: Callable[[], bool], limit_s: float) -> bool:
    for _ in range(int(limit_s / 0.01)):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


async def rested(gateway: Governed) -> Talk:
    """Alice's conversation, whose tool takes a while. A large side call, to which nobody comes back, has pushed
    it out of L1."""
    alice = Talk(gateway, "alice", 3000)
    await alice.turn()
    await asyncio.sleep(REST_S)
    for _ in range(ENOUGH):
        await alice.turn()
    messages = [{"role": "system", "content": TITLE}, {"role": "user", "content": "bob " * 6000}]
    (await gateway.chat("bob", model="tiny-hybrid", messages=messages, max_tokens=20)).raise_for_status()
    return alice


async def test_it_is_back_before_it_is_asked_for(tmp_path: Path) -> None:
    async with (
        twin_server(small_machine()) as twin,
        governed(
            twin.url, tmp_path, engine_kind="sglang", agents=("alice", "bob"), policies={"alice": PREWARMED}
        ) as gateway,
    ):
        alice = await rested(gateway)
        assert await until(lambda: gateway.governor.prewarmer.fetched == 1, REST_S)
        await alice.turn()
        last = (await gateway.ends())[-1].usage
        assert last.prompt_tokens is not None
        assert last.cached_device_tokens is not None
        assert last.cached_device_tokens > 0.9 * last.prompt_tokens
        assert len(await gateway.ends()) == ENOUGH + 3  # a fetch is nobody's turn
        await gateway.assert_idle()
        await twin.until_idle()


async def test_nobody_is_fetched_unasked(tmp_path: Path) -> None:
    async with (
        twin_server(small_machine()) as twin,
        governed(twin.url, tmp_path, engine_kind="sglang", agents=("alice", "bob")) as gateway,
    ):
        alice = await rested(gateway)
        assert not await until(lambda: gateway.governor.prewarmer.fetched > 0, REST_S)
        await alice.turn()
        last = (await gateway.ends())[-1].usage
        assert (last.cached_device_tokens or 0) < 0.5 * (last.cached_tokens or 0)


async def test_it_makes_way_for_whoever_comes(tmp_path: Path) -> None:
    """Without L2 and L3 a fetch is a prefill, and takes long enough to be met."""
    machine = small_machine(tiers={"host_tokens": 0, "host_slots": 0, "storage_tokens": 0})
    async with (
        twin_server(machine, speed=4.0) as twin,
        governed(
            twin.url, tmp_path, engine_kind="sglang", agents=("alice", "bob", "carol"), policies={"alice": PREWARMED}
        ) as gateway,
    ):
        await rested(gateway)
        assert await until(lambda: _is_fetching(gateway, twin), 3.0)
        began = time.monotonic()
        await Talk(gateway, "carol", 10).turn()
        took_s = time.monotonic() - began
        prewarmer = gateway.governor.prewarmer
        assert (prewarmer.fetched, prewarmer.broken_off) == (0, 1)
        assert took_s < 1.5
        news = [each.event for each in gateway.governor.events.since(0)]
        fetched = [each for each in news if isinstance(each, TurnDecided) and "back into L1" in each.why]
        told = [each for each in news if isinstance(each, TurnDecided) and each.turn_id == fetched[0].turn_id]
        assert [each.verdict for each in told] == [Verdict.GRANTED, Verdict.PAUSE_ASKED]
        assert {each.agent for each in told} == {"alice"}
        assert told[1].why == "carol wants the engine"
        await gateway.assert_idle()
        await twin.until_idle()


def _is_fetching(gateway: Governed, twin: Running) -> bool:
    return bool(gateway.governor.admission.running and twin.server.service.live)
