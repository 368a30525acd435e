"""The steps that a request takes in the gateway's own process, each under a stopwatch, in the gateway's order.

What is called here is what ``governor.gateway.generate`` calls. Nothing is sent: what a connection, the kernel and the
event loop cost is in ``bench.overhead``.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from bench.conversation import conversations
from governor.clock import SystemClock
from governor.compress.heads import chain_of
from governor.events import EventLog
from governor.gateway.body import BodyLimits, read_json_body
from governor.gateway.claims import claim_of, context_name, prompt_name
from governor.gateway.clients import Clients
from governor.gateway.compression import Compressor
from governor.gateway.drafting import Drafting
from governor.gateway.heads import Heads
from governor.gateway.history import History
from governor.gateway.http import Message, Receive
from governor.gateway.metrics import Metrics
from governor.gateway.planner import Planner, prompt_of
from governor.gateway.requested import Requested
from governor.gateway.shaped import Shaped
from governor.gateway.shaping import Shaping
from governor.gateway.summary import Summariser
from governor.gateway.turn import Turn, TurnBook
from governor.output.history import TextAlone, asked
from governor.policy.loader import PolicyStore, shipped_folder
from governor.policy.model import CompressionMode, Policy
from governor.redact import Redactor
from governor.schedule.loop import Admission
from governor.store.archive import SqlArchive
from governor.store.archive_model import Head
from governor.store.database import sqlite_url
from governor.store.turnlog import SqlTurnLog
from governor.tokens.chain import Located, SessionIndex
from governor.tokens.counter import EstimateCounter
from governor.types import AgentName
from governor.wire.request import GenerationRequest
from serve.engine import Endpoint, EngineCall, ModelCard, TurnFacts
from serve.engines.openai_upstream import OpenAIUpstream
from serve.engines.sglang_fields import asking_for_ids

MODEL = "scripted"
_AGENT = AgentName("owner")
_CARD = ModelCard(id=MODEL, window_tokens=1 << 20)
_HEADERS = {"content-type": "application/json"}
_PIECE_BYTES = 64 * 1024
"""As much of a body as the server hands over at once."""
_HEAD_SHARE = 0.5
"""Of a conversation's messages, those that its compressed head stands for."""


class Stopwatch:
    """CPU time of the calling thread by step, in nanoseconds, one figure a round."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, list[int]] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.thread_time_ns()
        try:
            yield
        finally:
            self.spent_ns.setdefault(name, []).append(time.thread_time_ns() - began)


class Way:
    """The parts that a request meets, as a governor has them. See :func:`way`."""

    def __init__(self, archive: SqlArchive, turn_log: SqlTurnLog, policy: Policy) -> None:
        clock, events = SystemClock(), EventLog()
        engine = OpenAIUpstream("upstream", "http://127.0.0.1:9")  # is asked nothing
        counter = EstimateCounter()
        admission = Admission(clock)
        self.engine = engine
        self.book = TurnBook(clock, turn_log, events, Metrics(), Redactor(()))
        self._policy = policy
        self._squeezed = msgspec.structs.replace(
            policy, compression=msgspec.structs.replace(policy.compression, mode=CompressionMode.ENFORCE)
        )
        self._planner = Planner(engine, SessionIndex(), counter)
        self._heads = Heads(archive)
        summariser = Summariser(engine, counter, admission, self.book, History(), 60.0)
        drafting = Drafting(engine, counter, summariser, admission)
        self._compressor = Compressor(engine, self._planner, self._heads, drafting, archive, Requested(), events, clock)
        self._shaping = Shaping(self._planner, self._compressor, drafting.preparer)
        self._clients = Clients(archive, events, clock)
        self._text_alone = TextAlone()

    async def go(self, body: bytes, watch: Stopwatch, *, beside: bool = True) -> None:
        """One request of a conversation, from its bytes to what the engine would be sent, and its books closed.
        ``beside``: the steps, too, that only some policies or engines ask for."""
        with watch.step("body"):
            body = await read_json_body(_receiving(body), _HEADERS, BodyLimits())
        with watch.step("turn"):
            turn = self.book.open(_AGENT, Endpoint.CHAT.value, len(body))
        try:
            with turn:
                sent = await self._go(turn, body, watch)
                if beside:
                    await self._beside(turn, sent, watch)
                raise _NotSent
        except _NotSent:
            pass

    async def _go(self, turn: Turn, body: bytes, watch: Stopwatch) -> Shaped:
        planner, policy = self._planner, self._policy
        with watch.step("parse"):
            request = planner.read(_AGENT, Endpoint.CHAT, body)
        with watch.step("prompt"):
            prompt = prompt_of(request)
        with watch.step("locate"):
            turn.located = located = planner.locate(_AGENT, request, prompt, _HEADERS)
        with watch.step("count"):
            counted = await planner.count(prompt, located)
        sent = Shaped(request=request, prompt=prompt, located=located, estimate=counted)
        compression, window = policy.compression, _CARD.window_tokens
        with (
            watch.step("watch, shape"),
            self._clients.watching(turn, request, located, counted.tokens, compression, window) as watching,
        ):
            shaped = await self._shaping.shaped(turn, sent, watching.advice, _CARD, policy)
        with watch.step("measure"):
            turn.measure = measure = await planner.measure(
                request, prompt, located, _CARD, policy, shaped.count, counted=shaped.estimate
            )
        with watch.step("plan, edit"):
            facts = TurnFacts(turn_id=turn.turn_id, agent_class=policy.agent_class, session=located.session_id)
            plan = planner.plan(request, measure, policy, facts)
        with watch.step("claim"):
            claim_of(
                turn.turn_id, _AGENT, measure, located, policy, output_cap=plan.cap.tokens, choices=1, pauses=False
            )
            prompt_name(_AGENT, located)
            context_name(_AGENT, located)
        with watch.step("learn"):
            planner.learn(located, measure.count, len(body) // 4)
            self._shaping.on_answered(turn, shaped, measure.count, policy, window)
        return sent

    async def _beside(self, turn: Turn, sent: Shaped, watch: Stopwatch) -> None:
        call = EngineCall(endpoint=Endpoint.CHAT, body=sent.request.json.body, turn_id=turn.turn_id)
        with watch.step("ids"):
            asking_for_ids(call)
        with watch.step("history"):
            asked(_AGENT, sent.request, sent.located.digests, self._text_alone)
        self._ensure_head(sent.request, sent.located)
        with (
            self._clients.watching(turn, sent.request, sent.located, 1, self._squeezed.compression, 1) as watching,
            watch.step("head"),
        ):
            shaped = await self._compressor.shaped(turn, sent, watching.advice, _CARD, self._squeezed)
        if shaped.estimate is not None:
            self._planner.learn(shaped.located, shaped.estimate, shaped.estimate.tokens)

    def _ensure_head(self, request: GenerationRequest, located: Located) -> None:
        if self._heads.book.of((_AGENT, located.session_id)):
            return
        covered = int(len(request.messages) * _HEAD_SHARE)
        self._heads.add(
            Head(
                agent=_AGENT,
                session=located.session_id,
                covered=covered,
                chain=chain_of(located.digests[:covered]),
                loose_chain=b"",
                messages=tuple(bytes(raw) for raw in request.messages[:4]),
                made_at=0.0,
                before_tokens=0,
                after_tokens=0,
            )
        )


class _NotSent(Exception):
    """Ends a turn where it would be sent."""


@asynccontextmanager
async def way(folder: Path) -> AsyncIterator[Way]:
    """With a turn log and an archive in ``folder`` and the shipped policy."""
    policies = PolicyStore(folder, shipped_folder(), SystemClock())
    policies.load()
    url = sqlite_url(folder / "governor.sqlite")
    turn_log = SqlTurnLog(url, home_id="bench")
    archive = SqlArchive(url, home_id="bench", days_of=lambda _agent: 1.0, clock=SystemClock())
    found = Way(archive, turn_log, policies.policy_for(_AGENT).policy)
    try:
        yield found
    finally:
        await found.engine.aclose()
        archive.close(10.0)
        turn_log.close(10.0)


async def measured(folder: Path, prompt_tokens: int, rounds: int) -> dict[str, list[int]]:
    """Steps of requests that go on with a conversation; its first request is not among them."""
    watch = Stopwatch()
    fresh = conversations(prompt_tokens, seed="hot path", model=MODEL)
    async with way(folder) as found:
        talk, is_new = next(fresh), True
        done = 0
        while done < rounds:
            await found.go(talk.body(), Stopwatch() if is_new else watch)
            done += not is_new
            is_new = talk.is_full
            if is_new:
                talk = next(fresh)
            else:
                talk.grow()
    return watch.spent_ns


def _receiving(body: bytes) -> Receive:
    """A server that hands the body over piece by piece."""
    starts = iter(range(0, len(body), _PIECE_BYTES))

    async def receive() -> Message:
        at = next(starts)
        end = at + _PIECE_BYTES
        return {"type": "http.request", "body": body[at:end], "more_body": end < len(body)}

    return receive
