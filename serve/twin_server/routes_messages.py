"""``/v1/messages`` and its counter: the chat route in another dialect, as in SGLang."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve.twin_server.anthropic_ask import MessagesAsk, chat_ask
from serve.twin_server.asks import body_of, check_chat
from serve.twin_server.errors import Refused, json_response
from serve.twin_server.generator import Generator
from serve.twin_server.routes_chat import ChatRoutes
from serve.twin_server.wire_messages import MessageStream, whole_message


class MessagesRoutes:
    """Takes no name and no ids of a request: what it generates ends with its connection."""

    def __init__(self, chat: ChatRoutes, generator: Generator) -> None:
        self._chat = chat
        self._generator = generator

    def routes(self) -> list[Route]:
        return [
            Route("/v1/messages", self._messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self._count, methods=["POST"]),
        ]

    async def _messages(self, request: Request) -> Response:
        try:
            ask = chat_ask(await body_of(request, MessagesAsk))
            batch, mischief = self._chat.begin(ask, request)
            if not ask.stream:
                return await self._generator.whole(
                    request, batch, mischief, lambda: whole_message(self._chat.whole(ask, batch))
                )
            events = _in_dialect(self._chat.events(ask, batch), ask.model)
            return await self._generator.stream(request, batch, mischief, events)
        except Refused as refused:
            return refused.anthropic_response()

    async def _count(self, request: Request) -> Response:
        try:
            ask = chat_ask(await body_of(request, MessagesAsk))
            check_chat(ask, self._generator.planner.window_tokens)
            tokens = len(self._generator.planner.chat_ids(ask))
        except Refused as refused:
            return refused.anthropic_response()
        return json_response({"input_tokens": tokens})


async def _in_dialect(chat_events: AsyncIterator[bytes], model: str) -> AsyncIterator[bytes]:
    stream = MessageStream(model)
    async for chunk in chat_events:
        for told in stream.read(chunk):
            yield told
