"""An answer's way through the relay in the gateway's own process: CPU for a chunk, without any connection."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import msgspec

from bench.client import BenchFailed
from governor.budget.claim import Claim
from governor.clock import SystemClock
from governor.errors import ContextOverflow
from governor.gateway.bounds import LoopGuard, bounds_of
from governor.gateway.http import EVENT_STREAM, Message
from governor.gateway.pieces import Pausing, opened_in_pieces
from governor.gateway.relay import AnswerLimits, Relay
from governor.gateway.reply import Reply
from governor.policy.model import LimitPolicy, OutputPolicy
from governor.redact import Redactor
from governor.schedule.events import TurnArrived
from governor.schedule.loop import Lease
from governor.types import AgentClass, AgentName, TurnId, TurnKind
from governor.wire import sse
from governor.wire.answer import reader_for
from serve.engine import Endpoint, EngineAnswer, EngineCall
from serve.engines.sglang import Sglang

PLAIN, GUARDED, PIECES = "nothing", "repetition", "repetition, in pieces"
"""What is looked for while an answer is relayed."""
_CALL = EngineCall(endpoint=Endpoint.CHAT, body=b'{"stream":true}')
_WORDS = ("the ", "cache ", "holds ", "a ", "prefix ", "of ", "every ", "prompt ", "and ", "grows ")


def reads_of(chunks: int, at_once: int) -> list[bytes]:
    """A streamed chat as SGLang 0.5 writes it, ``at_once`` events a read."""
    head = {"id": "c0ffee", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def event(delta: dict[str, str | None], finish: str | None = None) -> bytes:
        whole = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None} | delta
        choice = {"index": 0, "delta": whole, "logprobs": None, "finish_reason": finish, "matched_stop": None}
        return sse.encode(msgspec.json.encode(head | {"choices": [choice], "usage": None}))

    texts = [event({"content": f"{_WORDS[number % len(_WORDS)]}{number} "}) for number in range(chunks)]
    usage = {"prompt_tokens": 9, "total_tokens": 9 + chunks, "completion_tokens": chunks}
    report = sse.encode(msgspec.json.encode(head | {"choices": [], "usage": usage}))
    end = [event({}, "stop"), report, sse.encode(b"[DONE]")]
    return [*(b"".join(texts[at : at + at_once]) for at in range(0, chunks, at_once)), b"".join(end)]


class MemoryAnswer:
    """See :class:`serve.engine.EngineAnswer`."""

    status = 200
    headers: Mapping[str, str] = {"content-type": EVENT_STREAM}

    def __init__(self, reads: list[bytes]) -> None:
        self._reads = reads

    async def chunks(self) -> AsyncIterator[bytes]:
        for read in self._reads:
            yield read


class MemoryEngine(Sglang):
    """An SGLang whose answer is there already."""

    def __init__(self, answer: MemoryAnswer) -> None:
        super().__init__("http://127.0.0.1:9")
        self._memory = answer

    @asynccontextmanager
    async def open(self, call: EngineCall) -> AsyncIterator[EngineAnswer]:  # type: ignore[override]
        yield self._memory


async def chunk_us(looked_for: str, reads: list[bytes], chunks: int) -> float:
    """Microseconds of CPU for a chunk of one answer. Raises :class:`BenchFailed` if not all of it comes out."""
    clock, sent = SystemClock(), 0

    async def send(message: Message) -> None:
        nonlocal sent
        sent += len(message.get("body", b""))

    guard = LoopGuard(OutputPolicy().loop_chars, _to_nobody, None) if looked_for == GUARDED else None
    relay = Relay(
        Reply(send, Endpoint.CHAT, clock, Redactor(())),
        guard.reader if guard else reader_for(Endpoint.CHAT),
        clock,
        AnswerLimits(),
        strip_usage=False,
        overflow=_no_overflow,
        on_first_token=_nothing,
        guard=guard,
    )
    engine = MemoryEngine(MemoryAnswer(reads))
    opened: AbstractAsyncContextManager[EngineAnswer] = nullcontext(MemoryAnswer(reads))
    if looked_for == PIECES:
        opened = opened_in_pieces(engine, engine.continuation, _CALL, _pausing(clock, engine), whole=False)
    began = time.thread_time()
    async with opened as answer:
        await relay.run(answer)
    spent_s = time.thread_time() - began
    await engine.aclose()
    if sent != sum(map(len, reads)):
        raise BenchFailed(f"{sum(map(len, reads))} bytes were sent and {sent} came out")
    return spent_s / chunks * 1e6


class _Listener:
    """See :class:`governor.gateway.pieces.PauseListener`; nothing is paused here."""

    def on_paused(self, reason: str) -> None: ...

    def on_resumed(self) -> None: ...

    def on_went_on(self) -> None: ...

    def note(self, flag: str) -> None: ...


def _pausing(clock: SystemClock, engine: Sglang) -> Pausing:
    turn_id, agent = TurnId("t"), AgentName("owner")
    claim = Claim(turn_id=turn_id, agent=agent)
    arrived = TurnArrived(
        turn_id=turn_id, agent=agent, agent_class=AgentClass.NORMAL, kind=TurnKind.FINAL, limits=LimitPolicy()
    )
    return Pausing(
        lease=Lease(arrived, _to_nobody, _to_nobody),
        listener=_Listener(),
        clock=clock,
        claim_now=lambda _prompt_tokens, _written_tokens: claim,
        bounds=bounds_of(OutputPolicy(), engine.capabilities),
    )


def _to_nobody(_said: object) -> None: ...


def _nothing() -> None: ...


def _no_overflow(engine_message: str) -> ContextOverflow | None:
    return None
