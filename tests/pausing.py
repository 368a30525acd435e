"""An answer in pieces, without a gateway: the test says after which events it is asked to pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from governor.budget.claim import Claim
from governor.clock import SystemClock
from governor.gateway.bounds import Bounds
from governor.gateway.pieces import Pausing, opened_in_pieces
from governor.policy.model import LimitPolicy
from governor.schedule.events import SchedulerEvent, TurnArrived, TurnPaused, TurnStarted, TurnWrote
from governor.schedule.loop import Lease
from governor.types import AgentClass, AgentName, TurnId, TurnKind
from governor.wire.answer import ChatReader, Seen
from governor.wire.sse import SseSplitter
from serve.engine import Endpoint, Engine, EngineCall, TurnFacts

TURN = TurnId("t-0123456789abcdef")


def call_of(engine: Engine, body: dict[str, Any], turn_id: str = TURN) -> EngineCall:
    """As the gateway sends it."""
    added = engine.capabilities.request_additions(Endpoint.CHAT, TurnFacts(turn_id=turn_id))
    return EngineCall(endpoint=Endpoint.CHAT, body=msgspec.json.encode(body | dict(added)), turn_id=turn_id)


class Scheduler:
    """Takes a turn's word and lets it go on at once."""

    def __init__(self) -> None:
        arrival = TurnArrived(
            turn_id=TURN,
            agent=AgentName("alice"),
            agent_class=AgentClass.NORMAL,
            kind=TurnKind.FINAL,
            limits=LimitPolicy(),
        )
        self.lease = Lease(arrival, lambda _: None, self._on)
        self.between: Callable[[], None] = lambda: None
        """Done in each pause."""
        self.claims: list[Claim | None] = []
        self.started = 0
        self.wrote: list[int] = []

    def ask(self) -> None:
        self.lease.pause_reason = "bob waits"
        self.lease.asked_to_pause.set()

    def _on(self, event: SchedulerEvent) -> None:
        match event:
            case TurnPaused():
                assert event.confirmed
                self.claims.append(event.claim)
                self.between()
                self.lease.granted.set_result(None)
            case TurnStarted():
                self.started += 1
            case TurnWrote():
                self.wrote.append(event.tokens)


class Told:
    """A turn, as far as pauses are concerned."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.resumed = 0
        self.went_on = 0
        self.flags: list[str] = []

    def on_paused(self, reason: str) -> None:
        self.reasons.append(reason)

    def on_resumed(self) -> None:
        self.resumed += 1

    def on_went_on(self) -> None:
        self.went_on += 1

    def note(self, flag: str) -> None:
        self.flags.append(flag)


class View(msgspec.Struct):
    """What a client has got."""

    reasoning: str = ""
    content: str = ""
    calls: dict[int, list[str]] = {}
    """Of each call its id, its name and its arguments."""
    roles: int = 0
    ids: set[str] = set()
    finishes: list[str] = []
    usage: list[dict[str, Any]] = []
    dones: int = 0
    events: int = 0
    extensions: list[dict[str, Any]] = []


class Played:
    """One answer, and what its turn was told."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.told = Told()
        self.seen = View()
        self.reader = ChatReader()
        self.raw = b""

    @property
    def pauses(self) -> int:
        return len(self.told.reasons)

    def read(self, data: bytes) -> bool:
        """Take an event; true if it shows something."""
        seen = self.reader.on_data(data)
        if data == b"[DONE]":
            self.seen.dones += 1
            return False
        chunk = msgspec.json.decode(data)
        view = self.seen
        view.ids.add(chunk["id"])
        if chunk.get("usage"):
            view.usage.append(chunk["usage"])
        if chunk.get("sglext"):
            view.extensions.append(chunk["sglext"])
        for choice in chunk["choices"]:
            delta = choice["delta"]
            view.roles += delta.get("role") is not None
            view.reasoning += delta.get("reasoning_content") or ""
            view.content += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                told = view.calls.setdefault(call["index"], ["", "", ""])
                told[0] = told[0] or call["id"] or ""
                told[1] = told[1] or call["function"]["name"] or ""
                told[2] += call["function"]["arguments"] or ""
            if choice["finish_reason"]:
                view.finishes.append(choice["finish_reason"])
        view.events += seen is Seen.CONTENT
        return seen is Seen.CONTENT


async def play(
    engine: Engine,
    call: EngineCall,
    pause_after: Sequence[int] = (),
    *,
    whole: bool = False,
    bounds: Bounds | None = None,
    lost_after_s: float = 5.0,
    ask_when: Callable[[], bool] = lambda: False,
    between: Callable[[], None] = lambda: None,
) -> Played:
    """The whole answer, asked to pause after so many events that show something (0: before it has begun), and once
    when ``ask_when`` holds. ``between`` is done in each pause."""
    assert engine.continuation is not None
    played, splitter, moments = Played(), SseSplitter(), sorted(pause_after)
    played.scheduler.between = between
    need = Claim(turn_id=TURN, agent=AgentName("alice"))

    def claim_now(prompt_tokens: int | None, written: int) -> Claim:
        return msgspec.structs.replace(need, output_tokens=written, margin_tokens=prompt_tokens or 0)

    pausing = Pausing(
        lease=played.scheduler.lease,
        listener=played.told,
        clock=SystemClock(),
        claim_now=claim_now,
        bounds=bounds,
        lost_after_s=lost_after_s,
    )

    def ask_if_due() -> None:
        if moments and played.seen.events >= moments[0] and not played.scheduler.lease.asked_to_pause.is_set():
            moments.pop(0)
            played.scheduler.ask()

    async def ask_once() -> None:
        while not ask_when():  # noqa: ASYNC110 - an engine tells nobody
            await asyncio.sleep(0.002)
        played.scheduler.ask()

    asking = asyncio.create_task(ask_once())
    ask_if_due()
    async with opened_in_pieces(engine, engine.continuation, call, pausing, whole=whole) as answer:
        assert answer.status == 200
        async for chunk in answer.chunks():
            played.raw += chunk
            for event in () if whole else splitter.feed(chunk):
                if event.data is not None and played.read(event.data):
                    ask_if_due()
    asking.cancel()
    return played
