"""What the canary speaks in: an engine's facts, a question and its answer, verdicts. Values and one port; no I/O.

The governor proves tiers rather than trusting them because each has been seen to return nothing, or wrong output,
without an error (SGLang issues 33713, 39147, 39830).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Protocol

import msgspec

Tokens = tuple[int, ...]


class Tier(StrEnum):
    L1 = "L1"
    """GPU memory; ``device`` in the engine's words."""
    L2 = "L2"
    """Host memory; ``host``."""
    L3 = "L3"
    """Disk; ``storage``."""


class Stage(StrEnum):
    """When a case was asked."""

    COLD = "cold"
    """In a namespace of its own, where nothing was stored: the reference."""
    L1 = "L1"
    L1_AGAIN = "L1 again"
    """The same hit once more: how far two equal answers lie apart on this engine."""
    L2 = "L2"
    """After other prompts pushed it out of L1."""
    L3 = "L3"
    """After L1 and L2 were emptied."""
    RESTART = "L3 restart"
    """After the engine was started anew."""

    @property
    def tier(self) -> Tier | None:
        """The one that should serve; ``None`` if none should."""
        return _TIERS.get(self)


_TIERS = {Stage.L1: Tier.L1, Stage.L1_AGAIN: Tier.L1, Stage.L2: Tier.L2, Stage.L3: Tier.L3, Stage.RESTART: Tier.L3}


class Verdict(StrEnum):
    SERVED = "SERVED"
    """It served, and its output is right."""
    EMPTY = "EMPTY"
    """It returned nothing."""
    WRONG = "WRONG"
    """What it returned makes other output."""
    SKIPPED = "SKIPPED"
    """Nothing was proven; the reason says why."""


class Shape(StrEnum):
    """How the prompt relates to what was stored before. See ``governor.types.PromptShape``."""

    CONTINUATION = "continuation"
    BRANCH = "branch"
    REPEAT = "repeat"
    ALIGNED = "aligned repeat"
    """Whole pages to the last token. Such prompts were never matched once (SGLang issue 30882)."""


class Checkpoints(StrEnum):
    """Where an engine can resume a prefix."""

    ATTENTION = "attention"
    """At each page: there is no state."""
    EXTRA_BUFFER = "extra_buffer"
    """Where a state was stored: at the last grid point of each prefill, and at branches that were missed once."""
    NO_BUFFER = "no_buffer"
    """Where a request ended, or a chunk of its prefill did."""


class Written(msgspec.Struct, frozen=True):
    """KV tokens the engine has copied into lower tiers since its start; ``None``: it does not tell."""

    host_tokens: int | None = None
    storage_tokens: int | None = None


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a running engine says of its cache. ``None`` is unknown or unlimited."""

    version: str = "unknown"
    model: str = "unknown"
    checkpoints: Checkpoints
    page_tokens: int
    device_tokens: int
    """KV tokens of L1."""
    window_tokens: int
    state_slots: int | None = None
    """States of L1, of a hybrid model."""
    radix_cache: bool = True
    """L1 keeps prefixes."""
    host_tier: bool = False
    host_tokens: int | None = None
    host_states: int | None = None
    storage: str | None = None
    """Kind of L3; ``None``: there is none."""
    written: Written = Written()
    """Before the canary came."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt by its tokens, answered at temperature 0."""

    prompt: Tokens
    new_tokens: int = 1
    score_from: int | None = None
    """Logprobs of the prompt's tokens after this one are wanted. The engine reuses nothing beyond this position."""
    namespace: str | None = None
    """Prompts of another namespace are not reused."""


class Choice(msgspec.Struct, frozen=True):
    """One token and its logprob; ``None`` where the engine has no number (NaN)."""

    token: int
    logprob: float | None


class OutputToken(msgspec.Struct, frozen=True):
    chosen: Choice
    best: tuple[Choice, ...]
    """The most probable ones, the first is the greedy one."""


class Split(msgspec.Struct, frozen=True):
    """Prompt tokens by the tier that served them."""

    device: int = 0
    host: int = 0
    storage: int = 0

    def of(self, tier: Tier) -> int:
        return {Tier.L1: self.device, Tier.L2: self.host, Tier.L3: self.storage}[tier]

    def __str__(self) -> str:
        named = ((Tier.L1, self.device), (Tier.L2, self.host), (Tier.L3, self.storage))
        return " + ".join(f"{tier} {tokens:,}" for tier, tokens in named if tokens) or "-"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """An answer."""

    cached_tokens: int
    split: Split | None
    """``None``: the engine does not tell."""
    ttft_ms: float
    scores: tuple[float | None, ...] = ()
    """Logprobs of the prompt's tokens after ``score_from``."""
    output: tuple[OutputToken, ...] = ()


class Failed(msgspec.Struct, frozen=True):
    """The engine failed to answer."""

    reason: str


class CanaryEngine(Protocol):
    """A running engine under test. Every method raises :class:`~governor.errors.UpstreamError`."""

    async def facts(self) -> EngineFacts:
        """Changes nothing."""
        ...

    async def ask(self, question: Question) -> Probe:
        """Generates, and stores the prompt in the engine's cache."""
        ...

    async def settle(self) -> Written:
        """Wait until copies into lower tiers have ended, for at most half a minute. Changes nothing."""
        ...

    async def flush(self) -> None:
        """Empty L1 and L2 and keep L3. Refused while the engine works."""
        ...


Restart = Callable[[], Awaitable[None]]
"""Start the engine anew with the same L3 and return when it is ready."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, judged."""

    stage: Stage
    shape: Shape
    prompt_tokens: int
    expected_tokens: int
    """Prompt tokens that should be reused."""
    served: Split | None
    ttft_ms: float | None
    max_dlogprob: float | None
    """Largest difference of a logprob to ``against``."""
    mean_dlogprob: float | None
    against: Stage | None
    """``L1``: a hit of the same depth; ``cold``: an answer with nothing reused."""
    verdict: Verdict
    reason: str = ""


class TierResult(msgspec.Struct, frozen=True, kw_only=True):
    tier: Tier
    verdict: Verdict
    reason: str = ""
    switch_off: str = ""
    """How to run without it; set where it is empty or wrong."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    facts: EngineFacts
    seed: str
    rows: tuple[Row, ...]
    tiers: tuple[TierResult, ...]
    problems: tuple[str, ...]
    """What is wrong with the engine apart from its tiers."""
    notes: tuple[str, ...]
    """What was not asked, and why."""
    noise: float
    """Largest difference between two equal hits in L1."""

    @property
    def passed(self) -> bool:
        bad = {Verdict.EMPTY, Verdict.WRONG}
        return not self.problems and not any(tier.verdict in bad for tier in self.tiers)
