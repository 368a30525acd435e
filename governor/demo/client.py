"""One streamed chat as a client of the gateway makes it, over a socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec

from governor.demo.conversation import Message
from governor.settings import Secret

CHAT_PATH = "/v1/chat/completions"


class Refused(Exception):
    """The gateway, or the engine behind it, has answered with an error, or the connection broke."""


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    index: int = 0
    id: str | None = None
    function: _Function = _Function()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class Answer(msgspec.Struct, kw_only=True):
    """What has come."""

    content: str = ""
    calls: list[Message] = []
    finish_reason: str | None = None
    prompt_tokens: int = 0
    written_tokens: int = 0


def chat_client(url: str, key: Secret, patience_s: float) -> httpx.AsyncClient:
    """Each request has a connection of its own: one that the server is about to close would lose a request.
    ``patience_s``: longest silence, in the loop's seconds."""
    return httpx.AsyncClient(
        base_url=url,
        headers={"authorization": f"Bearer {key.reveal()}", "content-type": "application/json"},
        timeout=httpx.Timeout(patience_s),
        limits=httpx.Limits(max_keepalive_connections=0),
        trust_env=False,
    )


async def stream_chat(
    client: httpx.AsyncClient, body: Mapping[str, Any], on_token: Callable[[], None], patience_s: float
) -> Answer:
    """Raises :class:`Refused`, and ``httpx.TimeoutException`` when nothing has come for ``patience_s``."""
    answer, decoder = _Gathering(), msgspec.json.Decoder(_Chunk)
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        content = msgspec.json.encode(request)
        async with client.stream("POST", CHAT_PATH, content=content, timeout=patience_s) as response:
            if response.status_code != httpx.codes.OK:
                raise Refused(f"{response.status_code}: {(await response.aread()).decode(errors='replace')}")
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = decoder.decode(line[6:])
                if chunk.error is not None:
                    raise Refused(str(chunk.error))
                if answer.take(chunk):
                    on_token()
    except httpx.TimeoutException:
        raise
    except httpx.HTTPError as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    return answer.whole()


async def plain_chat(client: httpx.AsyncClient, body: Mapping[str, Any], patience_s: float) -> str:
    """The answer's text, in one piece. Raises as :func:`stream_chat`."""
    try:
        response = await client.post(CHAT_PATH, content=msgspec.json.encode(body), timeout=patience_s)
    except httpx.TimeoutException:
        raise
    except httpx.HTTPError as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    if response.status_code != httpx.codes.OK:
        raise Refused(f"{response.status_code}: {response.text}")
    return str(response.json()["choices"][0]["message"]["content"] or "")


class _Gathering:
    """Puts pieces together."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._calls: dict[int, tuple[str, str, list[str]]] = {}
        self._answer = Answer()

    def take(self, chunk: _Chunk) -> bool:
        """Whether the model has written something in it."""
        if chunk.usage is not None:
            self._answer.prompt_tokens = chunk.usage.prompt_tokens
            self._answer.written_tokens = chunk.usage.completion_tokens
        wrote = False
        for choice in chunk.choices:
            self._answer.finish_reason = choice.finish_reason or self._answer.finish_reason
            delta = choice.delta
            wrote = wrote or bool(delta.content or delta.reasoning_content or delta.tool_calls)
            if delta.content:
                self._content.append(delta.content)
            for call in delta.tool_calls or ():
                self._take_call(call)
        return wrote

    def whole(self) -> Answer:
        self._answer.content = "".join(self._content)
        self._answer.calls = _called(list(self._calls.values()))
        return self._answer

    def _take_call(self, call: _Call) -> None:
        call_id, name, arguments = self._calls.get(call.index, ("", "", []))
        arguments.append(call.function.arguments or "")
        self._calls[call.index] = (call.id or call_id, call.function.name or name, arguments)


def _called(calls: Sequence[tuple[str, str, list[str]]]) -> list[Message]:
    return [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
        for call_id, name, arguments in calls
    ]
