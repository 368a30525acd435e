"""``python -m bench.dashboard_feed AGENTS EVENTS_PER_S``: the admin API's real state and events pages over a made-up
governor, for :mod:`bench.dashboard`. Prints its port; ends when its input does."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from itertools import count

import msgspec
from starlette.applications import Starlette
from starlette.routing import Route

from governor import events
from governor.events import AnyEvent, EventLog
from governor.gateway.admin import AdminPages
from governor.gateway.metrics import Metrics
from governor.gateway.server import GatewayServer, bound_socket
from governor.settings import Secret
from governor.snapshot import (
    AgentView,
    CacheView,
    EngineView,
    HolderView,
    LeaseView,
    QueueView,
    ResidencyView,
    Snapshot,
    StoreView,
    TierView,
    TurnView,
)
from governor.types import TurnKind, TurnState, Usage, Verdict

TOKEN = "admin-token-of-the-bench"  # noqa: S105 - opens nothing
_WINDOW = 196_608
_TICK_S = 0.05


class MadeUp:
    """A governor that nobody asks for anything: its figures move with each look."""

    def __init__(self, agents: int) -> None:
        self.names = [f"agent-{number:02}" for number in range(agents)]
        self._chance = random.Random(7)
        self._started_at = time.time()

    def snapshot(self) -> Snapshot:
        chance = self._chance
        sizes = [chance.randrange(5_000, _WINDOW) for _ in self.names]
        return Snapshot(
            version="bench",
            started_at=self._started_at,
            now=time.time(),
            last_event_id=0,
            engine=EngineView(name="sglang", mode="ready", models=("model",), window_tokens=_WINDOW, slots=8),
            agents=tuple(
                AgentView(
                    name=name,
                    running=1,
                    turns={TurnState.OK: chance.randrange(999)},
                    prompt_tokens=chance.randrange(10**7),
                    cached_tokens=chance.randrange(10**6),
                    completion_tokens=chance.randrange(10**5),
                    last_usage=Usage(prompt_tokens=size),
                    last_ttft_ms=chance.random() * 9_000,
                    last_seen=time.time(),
                    window_tokens=_WINDOW,
                )
                for name, size in zip(self.names, sizes, strict=True)
            ),
            turns=tuple(
                TurnView(
                    turn_id=f"t-{name}",
                    agent=name,
                    route="/v1/chat/completions",
                    phase=chance.choice(("decode", "waiting", "prefill")),
                    since=time.time() - chance.random() * 90,
                    kind=TurnKind.TOOL_STEP,
                    prompt_tokens=size,
                    cap=4_096,
                    generated_bytes=chance.randrange(9_999),
                )
                for name, size in zip(self.names, sizes, strict=True)
            ),
            queue=QueueView(
                leases=tuple(
                    LeaseView(turn_id=f"t-{name}", agent=name, since=time.time(), booked_tokens=3_000, output_tokens=9)
                    for name in self.names[:8]
                ),
                booked_tokens=24_000,
                free_tokens=200_000,
                capacity_tokens=231_872,
            ),
            cache=CacheView(
                contexts=tuple(
                    ResidencyView(
                        agent=name,
                        context=f"{name}/1",
                        session="s",
                        context_tokens=size,
                        l1_tokens=size // 3,
                        l2_tokens=size // 3,
                        l3_tokens=size // 4,
                        unusable_tokens=0,
                        missing_tokens=size - 2 * (size // 3) - size // 4,
                        answered_at=time.time(),
                    )
                    for name, size in zip(self.names, sizes, strict=True)
                ),
                tiers=tuple(
                    TierView(
                        tier=tier,
                        capacity_tokens=231_872,
                        held_tokens=200_000,
                        holders=tuple(HolderView(agent=name, tokens=chance.randrange(5_000)) for name in self.names),
                    )
                    for tier in ("L1", "L2", "L3")
                ),
            ),
            store=StoreView(ok=True, pending=0, dropped=0),
        )

    def event(self, number: int) -> AnyEvent:
        """Four of five are steps of turns, as on a busy governor."""
        name, at = self._chance.choice(self.names), time.time()
        if number % 5:
            return events.TurnDecided(
                at=at,
                turn_id=f"t-{number}",
                agent=name,
                verdict=Verdict.GRANTED,
                why=f"it is first in line and {self._chance.randrange(99_999):,} tokens are free",
                waiting=3,
                running=5,
                booked_tokens=24_000,
            )
        prompt = self._chance.randrange(1_000, _WINDOW)
        return events.TurnEnded(
            at=at,
            turn_id=f"t-{number}",
            agent=name,
            state=TurnState.OK,
            kind=TurnKind.TOOL_STEP,
            usage=Usage(
                prompt_tokens=prompt,
                completion_tokens=300,
                cached_tokens=prompt // 2,
                cached_device_tokens=prompt // 4,
                cached_host_tokens=prompt // 2 - prompt // 4,
                cached_storage_tokens=0,
            ),
            cap_applied=4_096,
            duration_ms=9_000.0,
            ttft_ms=900.0,
        )


async def main(agents: int, per_s: float) -> None:
    made_up, event_log = MadeUp(agents), EventLog()
    resting = made_up.snapshot()
    quiet = msgspec.structs.replace(resting, turns=(), queue=QueueView())
    admin = AdminPages(Secret(TOKEN), event_log, Metrics(), made_up.snapshot if per_s else lambda: quiet, lambda: None)
    app = Starlette(routes=[Route("/governor/state", admin.state), Route("/governor/events", admin.events)])
    bound = bound_socket("127.0.0.1", 0)
    server = GatewayServer(app, on_listening=lambda: print(bound.getsockname()[1], flush=True), stop_within_s=1)
    serving = asyncio.create_task(server.serve([bound]))
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    numbers, begun, sent = count(), time.monotonic(), 0
    while not ended.done():
        while sent < per_s * (time.monotonic() - begun):
            event_log.publish(made_up.event(next(numbers)))
            sent += 1
        await asyncio.sleep(_TICK_S)
    event_log.close()
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
