"""One agent of *incident* and *soak*: a conversation that grows by what it wrote and by what its tools brought."""

from __future__ import annotations

import msgspec

from governor.errors import UpstreamError
from governor.measure.answer import Answer
from governor.measure.checks import require_usage
from governor.measure.prompts import Prompt
from governor.measure.session import Session
from governor.measure.target import Until


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, as its agent saw it."""

    answer: Answer
    new_tokens: int
    """Of its prompt, that this agent had not asked before."""

    @property
    def stall_s(self) -> float:
        """Longest time without anything: to the first token, or between two events."""
        return max([self.answer.ttft_s, *self.answer.gaps_s()])

    @property
    def prefilled_tokens(self) -> int | None:
        cached = self.answer.cached_tokens
        return None if cached is None else self.answer.prompt_tokens - cached


def _never() -> bool:
    return False


class Agent:
    """Asks one turn after the other. A prompt is the last one and new tokens: with token prompts the answer's own text
    is not known as tokens, so as many new ones stand for it."""

    def __init__(self, session: Session, name: str, context_tokens: int) -> None:
        self.name = name
        self.turns: list[Turn] = []
        self._session = session
        self._context_tokens = context_tokens
        self._prompt: Prompt | None = None
        self._conversations = 0

    @property
    def context_tokens(self) -> int:
        return 0 if self._prompt is None else self._prompt.tokens

    async def turn(self, output_tokens: int, growth_tokens: int, until: Until = _never) -> Turn | None:
        """``None``: it failed, and was thrown out."""
        prompts, before = self._session.prompts, self._prompt
        if before is None:
            self._conversations += 1
            prompt = await prompts.fresh(f"{self.name} {self._conversations}", self._context_tokens)
        else:
            prompt = await prompts.extended(before, f"{self.name} {len(self.turns)}", growth_tokens)
        try:
            answer = await self._session.target.ask(prompt, output_tokens, until)
        except UpstreamError as error:
            self._session.throw(self.name, error.message)
            return None
        require_usage(answer)
        turn = Turn(answer=answer, new_tokens=prompt.tokens - (before.tokens if before is not None else 0))
        self.turns.append(turn)
        self._prompt = prompt
        return turn

    def begin_anew(self) -> None:
        """The next turn is the first of another conversation."""
        self._prompt = None


def prefilled_per_new(agents: list[Agent]) -> float | None:
    """Over all turns; ``None`` where the engine does not tell what it cached."""
    turns = [turn for agent in agents for turn in agent.turns]
    prefilled = [turn.prefilled_tokens for turn in turns]
    new = sum(turn.new_tokens for turn in turns)
    if not new or any(each is None for each in prefilled):
        return None
    return sum(each or 0 for each in prefilled) / new
