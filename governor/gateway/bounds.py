"""What the policy bounds of an answer while it is written: the tokens of its reasoning, and text that repeats itself.

:class:`Bounds` is told all that is shown. Who generates asks it when to stop; how that is done stands in
``docs/design/bounds.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from governor.errors import UpstreamError
from governor.output.loops import AnswerLoops, Loop
from governor.output.thinking import ThinkingBudget
from governor.policy.model import OutputPolicy
from governor.wire.answer import ChatReader, PlainChoice, Seen
from governor.wire.seam import Kind
from governor.wire.sse import SseSplitter
from governor.wire.usage import merged
from serve.engine import Capabilities, Continuation

log = logging.getLogger(__name__)

_REASONING, _TEXT = "reasoning", "text"  # an enum's member is ten times as slow a key
_USAGE_S = 2.0
"""How long an engine may take to end a generation that it was told to end."""


class Bounds:
    """Of one answer. A :class:`governor.wire.joined.Watch`."""

    def __init__(self, *, thinking_tokens: int | None, loop_chars: int) -> None:
        self.loop: Loop | None = None
        """What is repeated, once it is found."""
        self._loops_in_reasoning = False
        self._loops = AnswerLoops(loop_chars) if loop_chars else None
        self._budget = None if thinking_tokens is None else ThinkingBudget(thinking_tokens)
        self._end: tuple[int, ...] | None = None
        self._due = asyncio.Event()
        """There is something to be counted, or a loop was found."""

    def on_text(self, kind: Kind, text: str) -> None:
        """Shown to the client."""
        if self._budget is not None:
            if kind is not Kind.REASONING:
                self._budget = None  # it has come to its answer by itself
            elif self._budget.on_text(text):
                self._due.set()
        if self._loops is not None:
            self._look(_REASONING if kind is Kind.REASONING else _TEXT, text)

    def on_call(self, call: Any) -> None:
        """A piece of a tool call was shown."""
        self._budget = None
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if self._loops is not None and isinstance(arguments, str):
            index = call.get("index")
            self._look(index if type(index) is int else 0, arguments)

    def _look(self, part: str | int, text: str) -> None:
        if self._loops is None or self.loop is not None:
            return
        self.loop = self._loops.feed(part, text)
        if self.loop is not None:
            self._loops_in_reasoning = part == _REASONING
            self._due.set()

    async def reached(self, continuation: Continuation) -> None:
        """Returns when the generation is to be stopped."""
        while True:
            await self._due.wait()
            if self.loop is not None:
                return
            self._due.clear()
            if self._budget is not None and await self._is_used_up(self._budget, continuation):
                return

    async def _is_used_up(self, budget: ThinkingBudget, continuation: Continuation) -> bool:
        try:
            if not await self._ensure_end(continuation):
                self._budget = None  # a phase that cannot be closed is not cut either
                return False
            text = budget.take_uncounted()
            budget.on_counted(text, len(await continuation.tokens_of(text)))
        except UpstreamError as error:
            log.warning("the engine did not count an answer's reasoning: %s", error)
        return budget.is_used_up

    async def _ensure_end(self, continuation: Continuation) -> tuple[int, ...]:
        """See :meth:`serve.engine.Continuation.thinking_end`; asked once."""
        if self._end is None:
            self._end = await continuation.thinking_end()
        return self._end

    async def ends_answer(self, continuation: Continuation, *, reasoning: bool) -> bool:
        """Whether the generation that was stopped is the last one. ``reasoning``: it was stopped in that."""
        if self.loop is None:
            return False
        if not self._loops_in_reasoning:
            return True
        if not reasoning:  # it has come to its answer by itself
            self.loop = None
            return False
        try:
            return not await self._ensure_end(continuation)
        except UpstreamError as error:
            log.warning("the engine did not tell how its model ends its reasoning: %s", error)
            return True

    async def closing(self, continuation: Continuation, kept_tokens: int) -> tuple[int, ...]:
        """What closes the thinking of a generation that was stopped in it and of which so many tokens are kept; empty:
        it is to go on."""
        budget, used_up = self._budget, False
        if budget is not None:
            used_up = budget.is_used_up  # counted in parts it may have seemed so a few tokens before
            budget.on_kept(kept_tokens)
            used_up = used_up or budget.is_used_up
        return await self._ensure_end(continuation) if used_up or self.loop is not None else ()

    def on_closed(self) -> None:
        """What follows is the answer."""
        self._budget, self.loop = None, None


def bounds_of(output: OutputPolicy, capabilities: Capabilities) -> Bounds | None:
    """``None`` where there is nothing to look at. An engine that takes a thinking budget keeps it by itself."""
    thinking_tokens = output.thinking if capabilities.thinking_budget_field is None else None
    if thinking_tokens is None and not output.loop_chars:
        return None
    return Bounds(thinking_tokens=thinking_tokens, loop_chars=output.loop_chars)


class LoopGuard:
    """Ends a streamed chat or text completion that repeats itself, of which there is one choice."""

    def __init__(
        self, loop_chars: int, note: Callable[[str], None], abort: Callable[[], Awaitable[None]] | None
    ) -> None:
        """``abort`` ends the generation, with its usage; ``None`` where only a closed connection does."""
        self._bounds = Bounds(thinking_tokens=None, loop_chars=loop_chars)
        self._note = note
        self._abort = abort
        self.reader = _LoopReader(self._bounds)
        """To be fed with the answer."""

    @property
    def has_cut(self) -> bool:
        """It repeats itself, and is to be ended."""
        return self._bounds.loop is not None

    async def usage_after(self, chunks: AsyncIterator[bytes], splitter: SseSplitter) -> bytes:
        """End the generation. Returns the data of the event that tells its usage; empty if none comes."""
        if self._bounds.loop is not None:
            self._note(self._bounds.loop.flag)
        if self._abort is None:
            return b""
        told, late = b"", ChatReader()
        with contextlib.suppress(TimeoutError, UpstreamError):
            async with asyncio.timeout(_USAGE_S):
                await self._abort()
                async for chunk in chunks:
                    for event in splitter.feed(chunk):
                        if event.data is not None and late.on_data(event.data) is Seen.USAGE_ONLY:
                            told = event.data
        answer = self.reader.answer
        answer.usage = merged(answer.usage, late.answer.usage)
        return told


class _LoopReader(ChatReader):
    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        self._bounds = bounds
        self._has_several = False
        """Choices: one that repeats itself does not end the others."""

    def _on_choice(self, choice: dict[str, Any]) -> None:
        super()._on_choice(choice)
        self._has_several = self._has_several or bool(choice.get("index"))
        if self._has_several:
            return
        delta = choice.get("delta")
        shown = delta if isinstance(delta, dict) else {}
        reasoning = shown.get("reasoning_content") or shown.get("reasoning")
        self._look(reasoning, shown.get("content") or choice.get("text"), shown.get("tool_calls"))

    def _on_plain(self, choice: PlainChoice) -> None:
        super()._on_plain(choice)
        self._has_several = self._has_several or bool(choice.index)
        if not self._has_several:
            delta = choice.delta
            self._look(delta.reasoning_content or delta.reasoning, delta.content, delta.tool_calls)

    def _look(self, reasoning: Any, text: Any, calls: Any) -> None:
        if reasoning and isinstance(reasoning, str):
            self._bounds.on_text(Kind.REASONING, reasoning)
        if text and isinstance(text, str):
            self._bounds.on_text(Kind.TEXT, text)
        for call in calls or ():
            self._bounds.on_call(call)
