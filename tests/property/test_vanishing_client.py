"""Cancel at every await: whoever leaves at whatever moment of a turn, nothing of it is left behind.

A moment is reached on every route, streamed and not, then the client vanishes with a FIN or a RST (or the governor
stops, or the engine dies). Each time the engine's connection must close within a second, the counters go back to zero,
and the turn has exactly one row, in the right state. Real sockets on both sides.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from governor.runtime import RuntimeConfig
from governor.schedule.events import EngineMode
from governor.store.query import TurnLogReader
from governor.types import TurnState
from serve.engine import Endpoint
from serve.scripted import Behaviour, Ending, Knobs, ScriptedEngine
from serve.scripted.sources import Source
from tests.harness import Governed, governed
from tests.rawhttp import Answer, RawSocket, answers_in, connected, request_bytes

States: TypeAlias = Collection[TurnState | None]
"""States a turn may have ended in; ``None``: it may have no row."""
CLOSED_WITHIN_S = 1.0
POLL_S = 0.002
JSON_HEAD = {"status": 200, "headers": {"Content-Type": "application/json"}}
SSE_HEAD = {"status": 200, "headers": {"Content-Type": "text/event-stream"}}
HANG = {"hang": 60}


class Kind(msgspec.Struct, frozen=True):
    """A way to ask for an answer."""

    endpoint: Endpoint
    stream: bool = False

    @property
    def name(self) -> str:
        return self.endpoint.rpartition("/")[2] + ("-stream" if self.stream else "")

    def body(self) -> bytes:
        fields: dict[str, Any] = {"model": "m"}
        match self.endpoint:
            case Endpoint.COMPLETIONS:
                fields["prompt"] = "hi"
            case Endpoint.RESPONSES:
                fields["input"] = "hi"
            case _:
                fields["messages"] = [{"role": "user", "content": "hi"}]
        if self.endpoint is Endpoint.MESSAGES:
            fields["max_tokens"] = 64
        if self.stream:
            fields["stream"] = True
        return msgspec.json.encode(fields)

    def request(self, gov: Governed) -> bytes:
        return request_bytes(self.endpoint, self.body(), key=gov.keys["alice"])


GENERATING = [Kind(endpoint, stream) for endpoint in Endpoint for stream in (False, True)]
GENERATING.remove(Kind(Endpoint.COUNT_TOKENS, True))
COUNT = Kind(Endpoint.COUNT_TOKENS)
GENERATING.remove(COUNT)
ALL = [*GENERATING, COUNT]
STREAMS = [kind for kind in ALL if kind.stream]


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - counters announce nothing
            await asyncio.sleep(POLL_S)


class Stage:
    """An engine and a governor, on which clients come and vanish."""

    def __init__(self, engine: ScriptedEngine, gov: Governed) -> None:
        self.engine = engine
        self.gov = gov
        self._rows = 0
        self._tasks = len(asyncio.all_tasks())

    async def check(self, states: States, what: str) -> None:
        """After a client has vanished: ``None`` among the states means that there need not be a row."""
        try:
            await self.engine.wait_idle(CLOSED_WITHIN_S)
        except TimeoutError:
            raise AssertionError(f"{what}: the engine still works on it") from None
        await self.gov.assert_idle()
        rows = (await self.gov.rows())[self._rows :]
        self._rows += len(rows)
        found: list[TurnState | None] = [row.state for row in rows]
        assert len(found) <= 1, f"{what}: {found}"
        state = found[0] if found else None
        assert state in states, f"{what}: {state}, not one of {states}"

    async def check_no_task_is_left(self) -> None:
        await until(lambda: len(asyncio.all_tasks()) <= self._tasks, timeout_s=1.0)


@asynccontextmanager
async def stage(
    root: Path,
    *answers: Source,
    by_path: Mapping[str, Sequence[Source]] | None = None,
    knobs: Knobs | None = None,
    policy: str = "",
    **options: Any,
) -> AsyncIterator[Stage]:
    chosen = knobs or Knobs(model="m")
    async with (
        ScriptedEngine(*answers, by_path=by_path, knobs=chosen) as engine,
        governed(engine.url, root, policies={"alice": policy} if policy else {}, **options) as gov,
    ):
        found = Stage(engine, gov)
        yield found
        await found.check_no_task_is_left()


async def read_one(raw: RawSocket) -> Answer:
    """One whole answer from a connection that stays open."""
    seen = b""
    while True:
        piece = await raw.read()
        seen += piece
        try:
            [answer] = answers_in(seen)
        except (AssertionError, ValueError):
            assert piece, f"the connection ended after {seen!r}"
            continue
        return answer


Reach = Callable[[Stage, Kind, RawSocket], Awaitable[None]]


async def vanish(
    at: Stage, kinds: list[Kind], reach: Reach, states: States, resets: tuple[bool, ...] = (False, True)
) -> None:
    """Send a client of each kind to the moment, twice, and let it vanish there."""
    for kind in kinds:
        for reset in resets:
            async with connected(at.gov.url) as raw:
                await reach(at, kind, raw)
                raw.leave(reset=reset)
                await at.check(states, f"{kind.name}, {'RST' if reset else 'FIN'}")


async def reach_engine(at: Stage, kind: Kind, raw: RawSocket) -> None:
    """The request has arrived at the engine, which the governor asks for its slots from time to time."""

    def hits() -> int:
        return sum(hit.path != SLOTS for hit in at.engine.hits)

    before = hits()
    await raw.send(kind.request(at.gov))
    await at.engine.wait_for(lambda: hits() > before)


async def reach_queue(at: Stage, kind: Kind, raw: RawSocket) -> None:
    await raw.send(kind.request(at.gov))
    await until(lambda: at.gov.governor.admission.waiting == 1)


SLOTS = "/slots"
ABORTED: States = {TurnState.CLIENT_ABORTED}


async def test_while_the_request_is_being_sent(tmp_path: Path) -> None:
    async with stage(tmp_path) as at:
        rng = random.Random(1)  # noqa: S311 - places to stop at

        async def reach(at: Stage, kind: Kind, raw: RawSocket) -> None:
            request = kind.request(at.gov)
            await raw.send(request[: rng.randrange(1, len(request))])
            await asyncio.sleep(rng.choice((0, 0.01)))

        await vanish(at, ALL, reach, {None})
        assert not at.engine.hits


async def test_while_queued_for_an_engine_that_is_coming(tmp_path: Path) -> None:
    async with stage(tmp_path) as at:
        at.gov.governor.admission.set_engine(EngineMode.COMING)
        await vanish(at, GENERATING, reach_queue, ABORTED)
        assert not at.engine.hits


async def test_while_queued_behind_the_agents_own_turn(tmp_path: Path) -> None:
    async with (
        stage(tmp_path, Behaviour(hang_s=60), policy="limits.concurrency = 1") as at,
        connected(at.gov.url) as occupant,
    ):
        await reach_engine(at, GENERATING[0], occupant)
        for kind in GENERATING:
            for reset in (False, True):
                async with connected(at.gov.url) as raw:
                    await reach_queue(at, kind, raw)
                    raw.leave(reset=reset)
                    await until(lambda: at.gov.governor.admission.waiting == 0, CLOSED_WITHIN_S)
                    await until(lambda: at.gov.governor.book.open_turns == 1, CLOSED_WITHIN_S)
        assert len(at.engine.hits) == 1
        occupant.leave()
        await at.gov.assert_idle()
        assert [row.state for row in await at.gov.rows()] == [TurnState.CLIENT_ABORTED] * (2 * len(GENERATING) + 1)


COUNTING = {
    Endpoint.CHAT: "/v1/chat/completions/input_tokens",
    Endpoint.RESPONSES: "/v1/responses/input_tokens",
    Endpoint.MESSAGES: "/v1/messages/count_tokens",
}


def llamacpp_paths(counting: Source) -> dict[str, list[Source]]:
    """What makes the scripted engine look like llama.cpp, with this answer to a question for a count."""
    slots: Source = [JSON_HEAD, {"json": [{"id": 0}, {"id": 1}]}]
    return {SLOTS: [slots]} | {path: [counting] for path in COUNTING.values()}


async def test_while_the_prompt_is_counted(tmp_path: Path) -> None:
    small = Knobs(model="m", window_tokens=70)  # the cap does not fit, so an exact count is asked for
    async with stage(tmp_path, by_path=llamacpp_paths([HANG]), knobs=small, engine_kind="llamacpp") as at:

        async def reach(at: Stage, kind: Kind, raw: RawSocket) -> None:
            await reach_engine(at, kind, raw)
            assert [hit.path for hit in at.engine.hits if hit.path != SLOTS][-1] == COUNTING[kind.endpoint]

        await vanish(at, [kind for kind in GENERATING if kind.endpoint in COUNTING], reach, ABORTED)


async def test_while_the_engine_holds_its_head(tmp_path: Path) -> None:
    held: Source = Behaviour(hang_s=60)
    async with stage(tmp_path, held, by_path={Endpoint.COUNT_TOKENS.value: [held]}) as at:
        await vanish(at, ALL, reach_engine, ABORTED)


async def test_while_the_engine_does_not_read_its_request(tmp_path: Path) -> None:
    """The body is larger than all buffers on the way, so that sending it hangs."""
    body_bytes = 24_000_000
    asked, read_on, received = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop().create_future()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            listing = b'{"data":[{"id":"m"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(listing) + listing)
        else:
            asked.set()
            await read_on.wait()
            size = 0
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(1 << 20):
                    size += len(piece)
            received.set_result(size)
        writer.close()

    async with await asyncio.start_server(deaf, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with governed(url, tmp_path) as gov:
            async with connected(gov.url) as raw:
                text = "x" * body_bytes
                body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}]})
                await raw.send(request_bytes(Endpoint.CHAT, body, key=gov.keys["alice"]))
                await asked.wait()
                raw.leave()
                await gov.assert_idle()
                read_on.set()
                async with asyncio.timeout(CLOSED_WITHIN_S):
                    assert await received < body_bytes
            assert (await gov.end()).state is TurnState.CLIENT_ABORTED


@pytest.mark.parametrize("events", [0, 1, 3])
async def test_mid_stream(tmp_path: Path, events: int) -> None:
    paced = Knobs(model="m", answer_tokens=200, decode_tokens_per_s=100)
    async with stage(tmp_path, knobs=paced) as at:

        async def reach(at: Stage, kind: Kind, raw: RawSocket) -> None:
            await raw.send(kind.request(at.gov))
            seen = b""
            while seen.count(b"\n\n") < events + 1:
                seen += await raw.read()

        await vanish(at, STREAMS, reach, ABORTED)
        assert all(hit.tokens_sent < 200 for hit in at.engine.hits)


async def test_mid_body(tmp_path: Path) -> None:
    half: Source = [JSON_HEAD, {"text": '{"object":"chat.completion",', "flush": True}, HANG]
    async with stage(tmp_path, half, by_path={Endpoint.COUNT_TOKENS.value: [half]}) as at:

        async def reach(at: Stage, kind: Kind, raw: RawSocket) -> None:
            await reach_engine(at, kind, raw)
            await at.engine.wait_for(lambda: at.engine.hits[-1].bytes_sent > 0)

        await vanish(at, [kind for kind in ALL if not kind.stream], reach, ABORTED)


async def test_between_the_engines_head_and_its_first_event(tmp_path: Path) -> None:
    async with stage(tmp_path, [SSE_HEAD, {"text": ": wait\n\n", "flush": True}, HANG]) as at:

        async def reach(at: Stage, kind: Kind, raw: RawSocket) -> None:
            await reach_engine(at, kind, raw)
            await at.engine.wait_for(lambda: at.engine.hits[-1].bytes_sent > 0)

        await vanish(at, STREAMS, reach, ABORTED)


async def test_while_a_held_stream_is_kept_alive(tmp_path: Path) -> None:
    quick = "stream.keepalive_after_s = 0.02\nstream.keepalive_every_s = 0.02"
    async with stage(tmp_path, Behaviour(hang_s=60), policy=quick) as at:

        async def reach(at: Stage, kind: Kind, raw: RawSocket) -> None:
            await raw.send(kind.request(at.gov))
            seen = b""
            while seen.count(b"\n\n") < 3:
                seen += await raw.read()

        await vanish(at, STREAMS, reach, ABORTED)


async def test_right_after_the_last_byte(tmp_path: Path) -> None:
    async with stage(tmp_path, knobs=Knobs(model="m", answer_tokens=5)) as at:

        async def reach(at: Stage, kind: Kind, raw: RawSocket) -> None:
            await raw.send(kind.request(at.gov))
            seen = await raw.read()
            while not (seen.endswith((b"0\r\n\r\n", b"}}", b"}")) and b"\r\n\r\n" in seen):
                seen += await raw.read()

        await vanish(at, ALL, reach, {TurnState.OK})


async def test_at_any_moment(tmp_path: Path) -> None:
    """Seeded: a client leaves after any time, from before its request is read to after its answer has ended."""
    rng = random.Random(20_261_129)  # noqa: S311 - moments, not secrets
    lively = Knobs(model="m", answer_tokens=6, decode_tokens_per_s=200, head_delay_s=0.005)
    policy = "limits.concurrency = 2\nstream.keepalive_after_s = 0.01\nstream.keepalive_every_s = 0.01"
    async with stage(tmp_path, knobs=lively, policy=policy) as at:
        started = 0

        async def one() -> None:
            nonlocal started
            kind, reset, patience_s = rng.choice(ALL), rng.random() < 0.5, rng.random() * 0.06
            async with connected(at.gov.url) as raw:
                await raw.send(kind.request(at.gov))
                started += 1
                if patience_s > 0.05:
                    await read_one(raw)
                else:
                    await asyncio.sleep(patience_s)
                raw.leave(reset=reset)

        for _ in range(40):
            await asyncio.gather(*(one() for _ in range(6)))
        await at.engine.wait_idle(CLOSED_WITHIN_S)
        await at.gov.assert_idle()
        states = {row.state for row in await at.gov.rows()}
        assert len(await at.gov.rows()) <= started
        assert states == {TurnState.OK, TurnState.CLIENT_ABORTED}
        sent = [hit for hit in at.engine.hits if hit.peer_closed_at is not None]
        assert all(hit.tokens_sent_after_close == 0 for hit in sent)


async def everyone(at: Stage, kinds: list[Kind], stack: AsyncExitStack) -> list[RawSocket]:
    """A client of each kind, all at once, each with its request on its way."""
    raws = []
    for kind in kinds:
        raw = await stack.enter_async_context(connected(at.gov.url))
        await raw.send(kind.request(at.gov))
        raws.append(raw)
    return raws


def states_in(root: Path) -> list[TurnState]:
    return [row.state for row in TurnLogReader(f"sqlite:///{root}/turns.db").recent(limit=1000)]


MANY = "limits.concurrency = 100"
STOPS_AT_ONCE = RuntimeConfig(stop_within_s=0)


@pytest.mark.parametrize("moment", ["queued", "counting", "head held", "mid stream", "mid body"])
async def test_the_governor_stops(tmp_path: Path, moment: str) -> None:
    """Every turn's row says ``interrupted``; the clients are told, in the way that is still open."""
    held: Source = Behaviour(hang_s=60)
    half: Source = [JSON_HEAD, {"text": '{"a":', "flush": True}, HANG]
    kinds = ALL
    setup: dict[str, Any] = {}
    answers: list[Source] = [held]
    match moment:
        case "queued":
            kinds = GENERATING
        case "counting":
            kinds = [kind for kind in GENERATING if kind.endpoint in {Endpoint.CHAT, Endpoint.RESPONSES}]
            setup = {"by_path": llamacpp_paths([HANG]), "engine_kind": "llamacpp"}
            setup["knobs"] = Knobs(model="m", window_tokens=70)
        case "mid stream":
            kinds, answers = STREAMS, []
            setup["knobs"] = Knobs(model="m", answer_tokens=500, decode_tokens_per_s=50)
        case "mid body":
            kinds, answers = [kind for kind in ALL if not kind.stream], [half]
    setup.setdefault("by_path", {Endpoint.COUNT_TOKENS.value: [half if moment == "mid body" else held]})
    async with AsyncExitStack() as clients, stage(tmp_path, *answers, config=STOPS_AT_ONCE, policy=MANY, **setup) as at:
        if moment == "queued":
            at.gov.governor.admission.set_engine(EngineMode.COMING)
        hits = len(at.engine.hits)  # what the governor asked when it met the engine
        raws = await everyone(at, kinds, clients)
        if moment == "queued":
            await until(lambda: at.gov.governor.admission.waiting == len(kinds))
        else:
            await at.engine.wait_for(lambda: len(at.engine.hits) == hits + len(kinds))
        begun = [await raw.read_until(b"data:") for raw in raws] if moment == "mid stream" else [b""] * len(raws)
        assert at.gov.governor.book.open_turns == len(kinds)
        at.gov.stop()
        told = [seen + await raw.read_to_end() for seen, raw in zip(begun, raws, strict=True)]
        await at.engine.wait_idle(CLOSED_WITHIN_S)
    assert states_in(tmp_path) == [TurnState.INTERRUPTED] * len(kinds)
    for kind, seen in zip(kinds, told, strict=True):
        [answer] = answers_in(seen)
        assert answer.status == (200 if moment == "mid stream" else 503), kind.name
        assert b"stopping" in answer.body, kind.name
        assert b"[DONE]" not in answer.body


@pytest.mark.parametrize("ending", [Ending.RST, Ending.CUT, Ending.FIN])
async def test_the_engine_breaks_off(tmp_path: Path, ending: Ending) -> None:
    """Before the head, and before every event but the last."""
    tokens = 3
    knobs = Knobs(model="m", answer_tokens=tokens)
    for number, after in enumerate([None, *range(tokens + 1)]):
        broken = Behaviour(break_after=after, ending=ending, ends_before_head=after is None)
        root = tmp_path / str(number)
        async with stage(root, broken, knobs=knobs) as at:
            for kind in GENERATING:
                if ending is Ending.FIN and not kind.stream:
                    continue  # a whole body that ends well is a whole answer
                async with connected(at.gov.url) as raw:
                    await raw.send(kind.request(at.gov))
                    raw_answer = await read_one(raw)
                    await at.check({TurnState.UPSTREAM_ERROR}, f"{kind.name}, {ending} after {after}")
                assert raw_answer.status in {200, 502}, kind.name
                assert b"error" in raw_answer.body, kind.name
                assert b"[DONE]" not in raw_answer.body


async def test_the_engine_dies(tmp_path: Path) -> None:
    """All at once: held heads, running streams, and one that waits."""
    paced = Knobs(model="m", answer_tokens=500, decode_tokens_per_s=50)
    count = {Endpoint.COUNT_TOKENS.value: [Behaviour(hang_s=60)]}
    async with AsyncExitStack() as clients, stage(tmp_path, by_path=count, knobs=paced, policy=MANY) as at:
        raws = await everyone(at, ALL, clients)
        await at.engine.wait_for(lambda: len(at.engine.hits) == len(ALL))
        for kind, raw in zip(ALL, raws, strict=True):
            if kind.stream:
                await raw.read_until(b"data:")
        await at.engine.aclose()
        await at.gov.assert_idle()
        assert [row.state for row in await at.gov.rows()] == [TurnState.UPSTREAM_ERROR] * len(ALL)
