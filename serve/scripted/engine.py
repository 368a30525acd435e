"""The scripted engine on a socket: paths, the order of answers, and the record of what arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self
from urllib.parse import unquote

import msgspec

from serve.scripted.ask import Ask, BadAsk, CallKind, Dialect, parse_ask
from serve.scripted.behaviour import Behaviour, Knobs
from serve.scripted.connection import Connection, Exchange, Hit
from serve.scripted.conversation import Conversation, Pool
from serve.scripted.errors import error_body
from serve.scripted.modes import MODES, ModeOptions
from serve.scripted.player import play
from serve.scripted.sources import AnswerQueue, Reaction, Setup, Source, parse_calls
from serve.scripted.tokens import Counting, count_tokens, token_ids

_DIALECTS = {dialect.value: dialect for dialect in Dialect}
_POLL_S = 0.005


class ScriptedEngine:
    """An engine that answers as it is told. Use it as an async context manager::

        async with ScriptedEngine([{"status": 200, ...}, ...], "record") as engine:
            await client.post(engine.url + "/v1/chat/completions", json=...)
        assert engine.hits[0].body == ...

    ``answers``: the nth generation call gets the nth, the last one repeats; without any the engine converses.
    ``summaries``: the same for a gateway's own requests for a summary, which then use up none of ``answers``.
    """

    def __init__(
        self,
        *answers: Source,
        by_path: Mapping[str, Sequence[Source]] | None = None,
        calls: Mapping[CallKind, Sequence[str | Behaviour]] | None = None,
        summaries: Sequence[Source] = (),
        knobs: Knobs | None = None,
        options: ModeOptions | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        on_answered: Callable[[Hit], None] | None = None,
    ) -> None:
        self.hits: list[Hit] = []
        """Generation calls and calls of ``by_path``, in order of arrival."""
        self.probes: list[Hit] = []
        """All other requests: model lists, health, counts, unknown paths."""
        self.knobs = knobs or Knobs()
        self._options = options or ModeOptions()
        self._host = host
        self._port = port
        self._answers = AnswerQueue(answers)
        self._by_path = {path: AnswerQueue(sources) for path, sources in (by_path or {}).items()}
        self._calls = parse_calls(calls or {})
        self._summaries = AnswerQueue(summaries)
        self._conversation = Conversation(self.knobs)
        self._mode_calls = dict.fromkeys(MODES, 0)
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._on_answered = on_answered
        self._open_hits = 0

    @classmethod
    def of(cls, setup: Setup, *, host: str = "127.0.0.1", port: int = 0, **rest: Any) -> Self:
        """The engine a :class:`Setup` describes. Raises :class:`~serve.scripted.script.BadScript`."""
        return cls(
            *setup.answers,
            by_path=setup.by_path,
            calls=setup.calls,
            summaries=setup.summaries,
            knobs=setup.knobs,
            options=setup.options,
            host=host,
            port=port,
            **rest,
        )

    @property
    def url(self) -> str:
        """Base address without ``/v1``."""
        return f"http://{self._host}:{self._port}"

    @property
    def pool(self) -> Pool:
        return self._conversation.pool

    @property
    def open_hits(self) -> int:
        """Requests whose answer is not over."""
        return self._open_hits

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Listen. A port of 0 is replaced by the one the system chose."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, self._host, self._port, backlog=1024)
        self._port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Stop listening and drop every connection. May be repeated."""
        if self._server is None:
            return
        self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()
        await self._server.wait_closed()
        self._server = None

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Wait until a condition on the record holds. Raises ``TimeoutError``."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 a condition may look at anything, so nothing can announce it
                await asyncio.sleep(_POLL_S)

    async def wait_idle(self, timeout_s: float = 5.0) -> None:
        """Wait until every answer is over. Raises ``TimeoutError``."""
        await self.wait_for(lambda: self._open_hits == 0, timeout_s)

    def _connection(self) -> Connection:
        return Connection(
            self._serve,
            self._connections,
            on_hit=self._record,
            on_answered=self._answer_is_over,
            keep_bodies=self.knobs.keep_bodies,
        )

    def _record(self, hit: Hit) -> None:
        self._open_hits += 1
        is_call = hit.path in self._by_path or (hit.method == "POST" and hit.path in _DIALECTS)
        (self.hits if is_call else self.probes).append(hit)

    def _answer_is_over(self, hit: Hit) -> None:
        self._open_hits -= 1
        if self._on_answered is not None:
            self._on_answered(hit)

    async def _serve(self, exchange: Exchange) -> None:
        hit = exchange.hit
        dialect = _DIALECTS.get(hit.path) if hit.method == "POST" else None
        queue = self._by_path.get(hit.path) or (self._answers if dialect is not None else None)
        if queue is None:
            await self._serve_built_in(exchange)
            return
        try:
            ask = parse_ask(dialect or Dialect.CHAT, hit.body)
        except BadAsk as error:
            reaction = queue.take()
            if not isinstance(reaction, tuple):
                body = error_body(dialect or Dialect.CHAT, str(error), "invalid_request_error", "bad_request")
                await exchange.reply(400, body)
                return
            # Written steps answer whatever was sent.
            ask = Ask(dialect=dialect or Dialect.CHAT, model="", messages=())
        else:
            is_summary = queue is self._answers and ask.kind() is CallKind.SUMMARY and not self._summaries.is_empty
            hit.kind = CallKind.SUMMARY.value if is_summary else hit.kind
            reaction = self._summaries.take() if is_summary else queue.take()
        await self._react(exchange, ask, reaction)

    async def _react(self, exchange: Exchange, ask: Ask, reaction: Reaction | None) -> None:
        if isinstance(reaction, tuple):
            await play(exchange, reaction, ask)
        elif isinstance(reaction, Behaviour):
            await self._conversation.answer(exchange, ask, reaction)
        elif isinstance(reaction, str):
            number = self._mode_calls[reaction]
            self._mode_calls[reaction] += 1
            await self._conversation.answer(exchange, ask, MODES[reaction](ask, number, self._options))
        else:
            kind = ask.kind()
            exchange.hit.kind = kind.value
            script = self._calls.get(kind)
            await self._conversation.answer(exchange, ask, Behaviour() if script is None else script.take())

    async def _serve_built_in(self, exchange: Exchange) -> None:
        hit = exchange.hit
        path = hit.path
        if hit.method == "GET" and path == "/health":
            await exchange.reply(200, b'{"status":"ok"}')
        elif hit.method == "GET" and path == "/v1/models":
            await exchange.reply(200, msgspec.json.encode({"object": "list", "data": [self._model_card()]}))
        elif hit.method == "GET" and unquote(path) == f"/v1/models/{self.knobs.model}":
            await exchange.reply(200, msgspec.json.encode(self._model_card()))
        elif hit.method == "POST" and self.knobs.count_endpoints and path in _COUNTERS:
            await self._count(exchange)
        else:
            await exchange.reply(404, error_body(Dialect.CHAT, f"no such path: {path}", "NotFoundError", 404))

    def _model_card(self) -> dict[str, Any]:
        card: dict[str, Any] = {"id": self.knobs.model, "object": "model", "created": 0, "owned_by": "scripted"}
        return card | {"max_model_len": self.knobs.window_tokens} if self.knobs.advertise_window else card

    async def _count(self, exchange: Exchange) -> None:
        try:
            text = _countable_text(exchange.hit)
        except BadAsk as error:
            await exchange.reply(400, error_body(Dialect.CHAT, str(error), "invalid_request_error", "bad_request"))
            return
        count = count_tokens(text, self.knobs.counting)
        if exchange.hit.path == _COUNT_TOKENS:
            await exchange.reply(200, msgspec.json.encode({"input_tokens": count}))
            return
        answer: dict[str, Any] = {"count": count, "max_model_len": self.knobs.window_tokens}
        if self.knobs.counting is Counting.WORDS:
            answer["tokens"] = token_ids(text)
        await exchange.reply(200, msgspec.json.encode(answer))


_COUNT_TOKENS = "/v1/messages/count_tokens"
_COUNTERS = frozenset({"/tokenize", "/v1/tokenize", _COUNT_TOKENS})


def _countable_text(hit: Hit) -> str:
    """What a counting request asks about: plain text, or the prompt its messages render to. Raises ``BadAsk``."""
    if hit.path == _COUNT_TOKENS:
        return parse_ask(Dialect.MESSAGES, hit.body).prompt()
    try:
        raw = msgspec.json.decode(hit.body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadAsk(str(error)) from error
    for key in ("prompt", "content"):
        if isinstance(raw.get(key), str):
            return str(raw[key])
    return parse_ask(Dialect.CHAT, hit.body).prompt()
