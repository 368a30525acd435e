"""Takes an engine through the stages: cold, L1, pushed out to L2, flushed to L3, restarted. Asks; judges nothing."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from governor.errors import UpstreamError
from serve.canary.cases import NEW_TOKENS, Case, Flood, Plan, make_plan
from serve.canary.judge import Answer, judge
from serve.canary.model import (
    CanaryEngine,
    EngineFacts,
    Failed,
    Probe,
    Question,
    Report,
    Restart,
    Shape,
    Stage,
    Written,
)

log = logging.getLogger(__name__)

OnStep = Callable[[str], None]
"""Told what is about to happen, for a person who waits."""


def _silent(_step: str) -> None:
    """Nobody waits."""


async def run_canary(
    engine: CanaryEngine,
    *,
    seed: str | None = None,
    quick: bool = False,
    restart: Restart | None = None,
    on_step: OnStep = _silent,
) -> Report:
    """Prove each tier. Pushes what others have stored out of L1 and flushes L1 and L2, so agents that are at work pay
    with prefills. A prompt is new to the engine only once: without ``seed`` each run has its own.

    Raises :class:`~governor.errors.UpstreamError` when the engine fails before any tier is in question, and
    :class:`~serve.canary.cases.NoRoom`.
    """
    facts = await engine.facts()
    plan = make_plan(facts, seed or secrets.token_hex(6), quick=quick)
    run = _Run(engine, facts, plan, restart, on_step)
    await run.all_stages()
    return judge(facts, plan, run.answers, run.skipped, run.written, run.notes)


class _Run:
    def __init__(
        self, engine: CanaryEngine, facts: EngineFacts, plan: Plan, restart: Restart | None, on_step: OnStep
    ) -> None:
        self._engine = engine
        self._facts = facts
        self._plan = plan
        self._restart = restart
        self._say = on_step
        self.answers: list[Answer] = []
        self.skipped: dict[Stage, str] = {}
        self.written = Written()
        self.notes: list[str] = []

    async def all_stages(self) -> None:
        await self._cold()
        await self._l1()
        await self._l2()
        before, after = self._facts.written, await self._engine.settle()
        self.written = Written(
            _grown(before.host_tokens, after.host_tokens), _grown(before.storage_tokens, after.storage_tokens)
        )
        await self._l3()

    async def _cold(self) -> None:
        self._say(f"cold: {len(self._plan.cases)} prompts of {len(self._plan.cases[0].prompt):,} tokens")
        for case in self._plan.cases:
            probe = await self._engine.ask(_question(case, namespace=f"canary-{self._plan.seed}"))
            self.answers.append(Answer(Stage.COLD, case.shape, probe))
        for case in self._plan.cases:
            for prompt in case.stored:
                await self._engine.ask(Question(prompt=prompt))

    async def _l1(self) -> None:
        if not self._facts.radix_cache:
            self.skipped[Stage.L1] = "the engine keeps no prefixes in L1 (--disable-radix-cache)"
            return
        for stage in (Stage.L1, Stage.L1_AGAIN):
            await self._ask_all(stage)

    async def _l2(self) -> None:
        reason = None if self._facts.host_tier else "the engine has no L2 (--enable-hierarchical-cache)"
        reason = reason or self._plan.host_shortage(self._facts, self._plan.floods[0])
        if reason is not None:
            self.skipped[Stage.L2] = reason
            return
        await self._engine.settle()
        left: tuple[Case, ...] = self._plan.cases
        outcomes: dict[Shape, Probe | Failed] = {}
        for flood in self._plan.floods:
            if self._plan.host_shortage(self._facts, flood) is not None:
                break
            await self._push_out(flood)
            self._say(_asking(Stage.L2))
            outcomes |= {case.shape: await self._outcome(case) for case in left}
            left = tuple(case for case in left if _stayed(outcomes[case.shape]))
            if not left:
                break
        self.answers += [Answer(Stage.L2, shape, outcome) for shape, outcome in outcomes.items()]

    async def _push_out(self, flood: Flood) -> None:
        self._say(f"push out of L1: {flood.prompts:,} prompts of {flood.prompt_tokens:,} tokens")
        for number in range(flood.prompts):
            await self._engine.ask(Question(prompt=flood.prompt(self._plan.seed, number)))

    async def _l3(self) -> None:
        if self._facts.storage is None:
            self.skipped[Stage.L3] = "the engine has no L3 (--hicache-storage-backend)"
            return
        self._say("flush L1 and L2")
        try:
            await self._engine.flush()
        except UpstreamError as error:
            self.skipped[Stage.L3] = error.message
        else:
            await self._ask_all(Stage.L3)
        if self._restart is None:
            self.notes.append("L3 was asked after a flush, not after a restart: the engine was not ours to restart")
            return
        await self._engine.settle()
        self._say("restart the engine")
        await self._restart()
        await self._ask_all(Stage.RESTART)

    async def _ask_all(self, stage: Stage) -> None:
        self._say(_asking(stage))
        for case in self._plan.cases:
            self.answers.append(Answer(stage, case.shape, await self._outcome(case)))

    async def _outcome(self, case: Case) -> Probe | Failed:
        try:
            return await self._engine.ask(_question(case))
        except UpstreamError as error:
            log.warning("the engine failed a %s case", case.shape, exc_info=True)
            return Failed(error.message)


def _asking(stage: Stage) -> str:
    return f"{stage}: the same prompts"


def _question(case: Case, namespace: str | None = None) -> Question:
    return Question(prompt=case.prompt, new_tokens=NEW_TOKENS, score_from=case.depth_tokens, namespace=namespace)


def _stayed(outcome: Probe | Failed) -> bool:
    """All that was reused came from L1."""
    if isinstance(outcome, Failed) or outcome.split is None:
        return False
    return outcome.split.device > 0 and not (outcome.split.host or outcome.split.storage)


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)
