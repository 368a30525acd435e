"""One agent of *incident* and *soak*: a conversation that grows by what it wrote and by what its tools brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from governor.errors import UpstreamError
from governor.measure.answer import Answer
from governor.measure.checks import require_usage, why_short
from governor.measure.prompts import Prompt
from governor.measure.session import Session


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, as its agent saw it."""

    answer: Answer
    new_tokens: int
    """Of its prompt, that this agent had neither asked nor been answered before."""

    @property
    def stall_s(self) -> float:
        """Longest time without anything: to the first token, or between two events."""
        return max([self.answer.ttft_s, *self.answer.gaps_s()])

    @property
    def prefilled_tokens(self) -> int | None:
        cached = self.answer.cached_tokens
        return None if cached is None else self.answer.prompt_tokens - cached


class Agent:
    """Asks one turn after the other.

    Where prompts are texts it is a chat, with the answers in it, as a governor wants to see it. Where they are tokens
    the next prompt is the last one and new tokens: an answer's own tokens are not told, and as many new ones do.
    """

    def __init__(self, session: Session, name: str, context_tokens: int) -> None:
        self.name = name
        self.turns: list[Turn] = []
        self._session = session
        self._context_tokens = context_tokens
        self._prompt: Prompt | None = None
        self._messages: list[dict[str, Any]] = []
        self._last: Answer | None = None
        self._conversations = 0

    @property
    def context_tokens(self) -> int:
        return 0 if self._last is None else self._last.prompt_tokens + self._last.written_tokens

    async def turn(self, output_tokens: int, growth_tokens: int) -> Turn | None:
        """``None``: it failed, and was thrown out."""
        session, last = self._session, self._last
        if last is None:
            self._conversations += 1
        try:
            if session.facts.prompts == "text":
                answer = await self._chat(output_tokens, growth_tokens)
            else:
                answer = await self._tokens(output_tokens, growth_tokens)
        except UpstreamError as error:
            session.throw(self.name, error.message)
            return None
        require_usage(answer)
        reason = why_short(answer)
        if reason is not None:
            session.note(f"An agent's answer was short: {reason}.")
        known = 0 if last is None else last.prompt_tokens
        if self._messages and last is not None:
            known += last.written_tokens
        turn = Turn(answer=answer, new_tokens=max(0, answer.prompt_tokens - known))
        self.turns.append(turn)
        self._last = answer
        return turn

    def begin_anew(self) -> None:
        """The next turn is the first of another conversation."""
        self._prompt, self._last, self._messages = None, None, []

    async def _tokens(self, output_tokens: int, growth_tokens: int) -> Answer:
        prompts, before = self._session.prompts, self._prompt
        if before is None:
            prompt = await prompts.fresh(f"{self.name} {self._conversations}", self._context_tokens)
        else:
            prompt = await prompts.extended(before, f"{self.name} {len(self.turns)}", growth_tokens)
        answer = await self._session.target.ask(prompt, output_tokens)
        self._prompt = prompt
        return answer

    async def _chat(self, output_tokens: int, growth_tokens: int) -> Answer:
        tokens = growth_tokens if self._messages else self._context_tokens
        added = await self._session.prompts.fresh(f"{self.name} {self._conversations}/{len(self.turns)}", tokens)
        asked = [*self._messages, {"role": "user", "content": added.text}]
        answer = await self._session.target.ask_messages(asked, output_tokens)
        self._messages = [*asked, {"role": "assistant", "content": answer.text}]
        return answer


def prefilled_per_new(agents: Sequence[Agent]) -> float | None:
    """Over all turns; ``None`` where the engine does not tell what it cached."""
    turns = [turn for agent in agents for turn in agent.turns]
    prefilled = [turn.prefilled_tokens for turn in turns]
    new = sum(turn.new_tokens for turn in turns)
    if not new or any(each is None for each in prefilled):
        return None
    return sum(each or 0 for each in prefilled) / new
