"""One run of a suite: asks, checks each answer, keeps what counts and says what does not, and tells how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Protocol

import msgspec

from governor.errors import UpstreamError
from governor.measure import checks
from governor.measure.answer import Answer
from governor.measure.prompts import Prompt, PromptMaker
from governor.measure.result import Case, EngineFacts, Left, Measure, Metric, Served
from governor.measure.stats import quantile
from governor.measure.target import Target
from serve.twin.measured import HitTier

_JOINED_EVENTS = 1.2
"""Tokens an event: below it, events were joined once or twice on their way."""


class Step(msgspec.Struct, frozen=True):
    """A part of a suite. ``weight`` is how long it takes beside the others: seconds of a usual machine, roughly."""

    name: str
    weight: float
    run: Callable[[], Awaitable[None]]


class Watcher(Protocol):
    """Somebody who looks at a run. Must not wait."""

    def on_steps(self, total_weight: float) -> None: ...

    def on_step(self, step: Step) -> None: ...

    def on_step_done(self, step: Step) -> None: ...

    def on_measure(self, measure: Measure) -> None:
        """Anew each time that a value has been added."""
        ...

    def on_left(self, left: Left) -> None: ...


class Unwatched:
    """Nobody looks."""

    def on_steps(self, total_weight: float) -> None: ...

    def on_step(self, step: Step) -> None: ...

    def on_step_done(self, step: Step) -> None: ...

    def on_measure(self, measure: Measure) -> None: ...

    def on_left(self, left: Left) -> None: ...


class Session:
    """What suites work with. Raises :class:`~governor.measure.errors.NoUsage` at the first answer without usage."""

    def __init__(self, target: Target, prompts: PromptMaker, *, repeats: int, watcher: Watcher | None = None) -> None:
        self.target = target
        self.prompts = prompts
        self.repeats = repeats
        self.thrown: list[Left] = []
        self.skipped: list[Left] = []
        self.notes: list[str] = []
        self._watcher = watcher or Unwatched()
        self._values: dict[tuple[Case, Metric], list[float]] = {}
        self._served: dict[tuple[Case, Metric], list[Served]] = {}

    @property
    def facts(self) -> EngineFacts:
        return self.target.facts

    @property
    def measures(self) -> tuple[Measure, ...]:
        return tuple(self._measure(*key) for key in self._values)

    async def take(self, steps: Sequence[Step]) -> None:
        """One after the other."""
        self._watcher.on_steps(sum(step.weight for step in steps))
        for step in steps:
            self._watcher.on_step(step)
            await step.run()
            self._watcher.on_step_done(step)

    # What was found

    def add(self, case: Case, metric: Metric, value: float, *answers: Answer) -> None:
        key = (case, metric)
        self._values.setdefault(key, []).append(value)
        self._served.setdefault(key, []).extend(answer.served for answer in answers)
        self._watcher.on_measure(self._measure(*key))

    def throw(self, what: Case | str, reason: str) -> None:
        """An answer that does not count."""
        self.thrown.append(Left(what=str(what), reason=reason))
        self._watcher.on_left(self.thrown[-1])

    def skip(self, what: Case | str, reason: str) -> None:
        """A case that is not asked."""
        left = Left(what=str(what), reason=reason)
        if left not in self.skipped:
            self.skipped.append(left)
            self._watcher.on_left(left)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def fits(self, case: Case, tokens: int) -> bool:
        """A prompt of so many tokens and its output fit the window; skips the case where they do not."""
        room = self.facts.window_tokens
        if tokens + case.output_tokens < room:
            return True
        self.skip(case, f"{tokens:,} tokens and {case.output_tokens:,} of output do not fit the window of {room:,}")
        return False

    # Questions

    async def ask(self, what: Case | str, prompt: Prompt, output_tokens: int = 1) -> Answer | None:
        """``None``: it failed or ended early, and was thrown out."""
        try:
            answer = await self.target.ask(prompt, output_tokens)
        except UpstreamError as error:
            self.throw(what, error.message)
            return None
        checks.require_usage(answer)
        self._look_at(prompt, answer)
        reason = checks.why_short(answer)
        if reason is not None:
            self.throw(what, reason)
            return None
        return answer

    async def cold(self, what: Case | str, prompt: Prompt, output_tokens: int = 1) -> Answer | None:
        """``None`` also where any of it was cached."""
        answer = await self.ask(what, prompt, output_tokens)
        return self._checked(what, answer, lambda each: checks.why_not_cold(each, self.facts))

    async def hit(
        self, what: Case | str, prompt: Prompt, tier: HitTier, depth_tokens: int, output_tokens: int = 1
    ) -> Answer | None:
        """``None`` also where ``tier`` did not serve it."""
        answer = await self.ask(what, prompt, output_tokens)
        return self._checked(what, answer, lambda each: checks.why_not_served(each, tier, depth_tokens))

    async def together(self, what: Case | str, prompts: Sequence[Prompt], output_tokens: int) -> list[Answer] | None:
        """All at once; ``None`` unless all count."""
        answers = await asyncio.gather(*(self.ask(what, prompt, output_tokens) for prompt in prompts))
        whole = [answer for answer in answers if answer is not None]
        return whole if len(whole) == len(prompts) else None

    def _checked(
        self, what: Case | str, answer: Answer | None, why_not: Callable[[Answer], str | None]
    ) -> Answer | None:
        if answer is None or (reason := why_not(answer)) is None:
            return answer
        self.throw(what, reason)
        return None

    def _look_at(self, prompt: Prompt, answer: Answer) -> None:
        if answer.cached_tokens is None:
            self.note(
                "The engine does not tell cached_tokens: that cold prompts were cold, and hits hits, is not proven."
            )
        if prompt.ids is not None and answer.prompt_tokens != prompt.tokens:
            self.note(f"The engine counts {answer.prompt_tokens - prompt.tokens:+,} tokens to a prompt.")
        if len(answer.marks) > 1 and answer.tokens_per_event > _JOINED_EVENTS:
            self.note(
                "Events of the stream carry several tokens; rates are by usage, and gaps between events are not times "
                "between tokens."
            )

    def _measure(self, case: Case, metric: Metric) -> Measure:
        values = self._values[case, metric]
        return Measure(
            case=case,
            metric=metric,
            better=metric.better,
            values=tuple(values),
            median=median(values),
            q1=quantile(values, 0.25),
            q3=quantile(values, 0.75),
            served=tuple(self._served[case, metric]),
        )
