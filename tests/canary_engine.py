"""An engine with three tiers in a few dictionaries, honest or lying as told. Implements the canary's port.

It stores checkpoints by SGLang's rules, written down here a second time from the engine's side, so that the canary's
expected depths are checked by something that does not share its code.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Collection, Mapping

import msgspec

from governor.errors import UpstreamError
from serve.canary.model import (
    Checkpoints,
    Choice,
    EngineFacts,
    OutputToken,
    Probe,
    Question,
    Split,
    Tier,
    Tokens,
    Written,
)

PAGE = 64
ROUNDING = 0.004
"""How far a hit lies from a cold run, as on the real engine with the tiny model."""
_VOCABULARY = 1000

Key = tuple[str, Tokens]


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    empty: frozenset[Tier] = frozenset()
    """Takes what is written and gives nothing back."""
    claims: frozenset[Tier] = frozenset()
    """Says that it served what was computed anew."""
    garbled: Mapping[Tier, float] = {}
    """Its pages are another's: logprobs are off by this much; NaN for pages that are no numbers."""
    other_output: frozenset[Tier] = frozenset()
    """Right until the prompt's end, then another token."""
    fails: frozenset[Tier] = frozenset()
    """An engine that breaks on what the tier gives back."""
    ignores_temperature: bool = False
    claims_unseen: bool = False
    """Says that half of each prompt was reused."""
    tells_no_split: bool = False
    is_busy: bool = False
    noise: float = 0.0
    """Two equal runs are this far apart."""
    extra_slots: int = 0
    """States that L1 keeps beyond those it tells of."""


def facts_of(checkpoints: Checkpoints, **changes: object) -> EngineFacts:
    facts = EngineFacts(
        checkpoints=checkpoints,
        page_tokens=1 if checkpoints is Checkpoints.NO_BUFFER else PAGE,
        device_tokens=8192,
        window_tokens=8192,
        state_slots=None if checkpoints is Checkpoints.ATTENTION else 32,
        host_tier=True,
        host_tokens=3 * 8192,
        host_states=None if checkpoints is Checkpoints.ATTENTION else 96,
        storage="file",
    )
    return msgspec.structs.replace(facts, **changes)


class TierEngine:
    """See :class:`serve.canary.model.CanaryEngine`. Writes through; L1 forgets by least recent use."""

    def __init__(self, facts: EngineFacts, faults: Faults = Faults()) -> None:  # noqa: B008 - a frozen value
        self._facts = facts
        self._faults = faults
        self._device: OrderedDict[Key, None] = OrderedDict()
        self._host: set[Key] = set()
        self._storage: set[Key] = set()
        self._kv: set[Key] = set()
        self._noise = random.Random(0)  # noqa: S311 - repeatable
        self.asked: list[Question] = []
        self.restarts = 0

    async def facts(self) -> EngineFacts:
        return msgspec.structs.replace(self._facts, written=await self.settle())

    async def ask(self, question: Question) -> Probe:
        self.asked.append(question)
        prompt, space = question.prompt, question.namespace or ""
        longest = len(prompt) - 1 if question.score_from is None else min(len(prompt) - 1, question.score_from)
        depth, tier = self._match(space, prompt, longest)
        if tier in self._faults.fails:
            raise UpstreamError("illegal memory access")
        self._store(space, prompt, depth, longest)
        split = Split(**{_NAMES[tier]: depth}) if tier is not None else Split()
        cached = depth
        if self._faults.claims_unseen and tier is None:
            cached, split = len(prompt) // 2, Split(device=len(prompt) // 2)
        return Probe(
            cached_tokens=cached,
            split=None if self._faults.tells_no_split else split,
            ttft_ms=1.0 if tier else 10.0,
            scores=self._scores(question, tier),
            output=self._output(question, tier),
        )

    async def settle(self) -> Written:
        host = sum(len(tokens) for _, tokens in self._host)
        return Written(host_tokens=host, storage_tokens=sum(len(tokens) for _, tokens in self._storage))

    async def flush(self) -> None:
        if self._faults.is_busy:
            raise UpstreamError("The engine did not flush its cache (400): it is at work.")
        self._forget()

    async def restart(self) -> None:
        self.restarts += 1
        self._forget()

    def _forget(self) -> None:
        self._device.clear()
        self._host.clear()
        self._kv.clear()

    def _match(self, space: str, prompt: Tokens, longest: int) -> tuple[int, Tier | None]:
        best: tuple[int, Tier | None] = (0, None)
        holders: tuple[tuple[Tier, Collection[Key]], ...]
        holders = ((Tier.L1, self._device), (Tier.L2, self._host), (Tier.L3, self._storage))
        for tier, held in holders:
            depths = [
                len(tokens)
                for owner, tokens in held
                if owner == space and len(tokens) <= longest and prompt[: len(tokens)] == tokens
            ]
            if tier not in self._faults.empty and max(depths, default=0) > best[0]:
                best = max(depths), tier
        return best

    def _store(self, space: str, prompt: Tokens, depth: int, longest: int) -> None:
        grid = PAGE
        match self._facts.checkpoints:
            case Checkpoints.ATTENTION:
                ends = list(range(grid, len(prompt) + 1, grid))
            case Checkpoints.NO_BUFFER:
                ends = [len(prompt)]
            case Checkpoints.EXTRA_BUFFER:
                known = max((k for k in range(0, longest + 1, grid) if (space, prompt[:k]) in self._kv), default=0)
                branch = known if known > depth else None
                end = depth + (len(prompt) - depth) // grid * grid
                ends = [branch] if branch else [end] if end > depth else []
        self._kv.update((space, prompt[:k]) for k in range(grid, len(prompt) + 1, grid))
        for end in [depth, *ends] if depth else ends:
            key = (space, prompt[:end])
            self._device[key] = None
            self._device.move_to_end(key)
            self._host.add(key)
            self._storage.add(key)
        slots = self._facts.state_slots or self._facts.device_tokens // grid
        while len(self._device) > slots + self._faults.extra_slots:
            self._device.popitem(last=False)

    def _scores(self, question: Question, tier: Tier | None) -> tuple[float | None, ...]:
        if question.score_from is None:
            return ()
        scores: list[float | None] = []
        for at in range(question.score_from + 1, len(question.prompt)):
            source = random.Random(f"{question.prompt[: at + 1]}")  # noqa: S311 - repeatable
            score = -4.0 + 3 * source.random() + self._noise.uniform(-1, 1) * self._faults.noise / 2
            if tier is not None and tier not in self._faults.claims:
                score += ROUNDING * (source.random() - 0.5)
                score += self._faults.garbled.get(tier, 0.0)
            scores.append(None if math.isnan(score) else score)
        return tuple(scores)

    def _output(self, question: Question, tier: Tier | None) -> tuple[OutputToken, ...]:
        if question.score_from is None:
            return ()
        source = random.Random(f"{question.prompt}")  # noqa: S311 - repeatable
        made = []
        for at in range(question.new_tokens):
            tokens = source.sample(range(_VOCABULARY), 4)
            if at == 3 and tier in self._faults.other_output:
                tokens.reverse()
            best = tuple(Choice(token, -1.0 - 2.0 * rank) for rank, token in enumerate(tokens))
            made.append(OutputToken(best[self._noise.randrange(4) if self._faults.ignores_temperature else 0], best))
        return tuple(made)


_NAMES = {Tier.L1: "device", Tier.L2: "host", Tier.L3: "storage"}
