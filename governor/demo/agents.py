"""An agent of the incident as a real client of the gateway: it sends its history, reads its answer's stream, uses a
tool for a while, and asks again. One that compacts does so as Hermes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httpx

from governor.demo.client import Answer, Refused, chat_client, plain_chat, stream_chat
from governor.demo.conversation import SUMMARY_ASKED, TOOL, TOOLS, Conversation
from governor.demo.figures import StallWatch
from governor.settings import Secret
from governor.simulate.behaviour import hermes_compaction
from serve.twin.trace import Agent, PieceKind, Script, Turn, new_tokens

log = logging.getLogger(__name__)

_TRIES = 4
_AGAIN_S = 5.0
_TOKEN_CHARS = 4
"""As clients estimate it."""


class DemoAgent:
    """One session. ``now`` and all waits are in the seconds of the event loop, which are the twin's."""

    def __init__(
        self,
        agent: Agent,
        script: Script,
        *,
        url: str,
        key: Secret,
        model: str,
        window_tokens: int,
        watch: StallWatch,
        now: Callable[[], float],
    ) -> None:
        """``now``: seconds since the incident has begun."""
        self._script = script
        self._url = url
        self._key = key
        self._model = model
        self._watch = watch
        self._now = now
        self._conversation = Conversation(agent.name, script.session.shared)
        self._own = agent.compaction
        share = None if agent.compaction is None else agent.compaction.threshold
        self._rules = hermes_compaction(window_tokens, None, share)

    async def live(self) -> None:
        """All turns, one after the other."""
        patience_s = max((turn.patience_s or 0.0 for turn in self._script.turns), default=0.0) or 900.0
        async with chat_client(self._url, self._key, patience_s) as client:
            await self._until(self._script.session.start_s)
            turns = self._script.turns
            for turn, after in zip(turns, [*turns[1:], None], strict=True):
                await self._until(max(self._now() + turn.after_s, turn.at_s or 0.0))
                if self._own is not None and self._is_long(turn):
                    await self._compact(client)
                self._conversation.add(turn.new)
                await self._ask(client, turn, calls=after is not None and _brings_result(after))

    async def _until(self, moment_s: float) -> None:
        await asyncio.sleep(max(0.0, moment_s - self._now()))

    async def _ask(self, client: httpx.AsyncClient, turn: Turn, *, calls: bool) -> None:
        """One turn, asked again where it was refused."""
        wish: dict[str, Any] = {"tokens": turn.output_tokens, "calls": []}
        if calls:
            wish["calls"] = [{"name": TOOL, "arguments": {"path": f"src/part_{len(self._conversation.messages)}.py"}}]
        if turn.accept_length is not None:
            wish["accept_length"] = turn.accept_length
        answer: Answer | None = None
        for _ in range(_TRIES):
            self._watch.on_asked(self._now())
            try:
                answer = await stream_chat(client, self._body(wish), self._on_token, turn.patience_s or 900.0)
                break
            except (Refused, httpx.TimeoutException) as error:
                log.warning("%s: %s", self._script.session.agent, error)
                await asyncio.sleep(_AGAIN_S)
        written = 0 if answer is None else answer.written_tokens
        self._watch.on_ended(self._now(), ok=answer is not None, written_tokens=written)
        if answer is not None:
            self._conversation.answered(answer.content, answer.calls, written)

    def _body(self, wish: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": self._conversation.messages,
            "tools": TOOLS,
            "chat_template_kwargs": {"enable_thinking": False},
            "custom_params": {"twin": wish},
        }

    def _on_token(self) -> None:
        self._watch.on_token(self._now())

    def _is_long(self, turn: Turn) -> bool:
        goes_on = len(self._conversation.messages) > 1
        return goes_on and self._conversation.tokens + new_tokens(turn.new) >= self._rules.threshold_tokens

    async def _compact(self, client: httpx.AsyncClient) -> None:
        """A summary that does not come in time leaves the history as it was, so the next call compacts again."""
        rules, conversation = self._rules, self._conversation
        first, tail = rules.first_messages, rules.tail_messages
        text = conversation.middle_text(first, tail, rules.tool_result_tokens * _TOKEN_CHARS)
        writes = rules.summary_tokens if self._own is None else self._own.summary_output or rules.summary_tokens
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": SUMMARY_ASKED + text}],
            "chat_template_kwargs": {"enable_thinking": False},
            "custom_params": {"twin": {"tokens": writes}},
        }
        before = conversation.tokens
        try:
            conversation.compact(first, tail, await plain_chat(client, body, rules.patience_s))
        except (Refused, httpx.TimeoutException) as error:
            log.info("%s: no summary: %s", self._script.session.agent, type(error).__name__)
        self._watch.on_compacted(in_vain=conversation.tokens >= before)


def _brings_result(turn: Turn) -> bool:
    return any(piece.kind is PieceKind.TOOL for piece in turn.new)
