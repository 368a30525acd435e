"""What a simulated run leaves behind: a row a request, and a look at the engine every so often. Values only.

Times are seconds of virtual time from the trace's beginning, quantities tokens. Reports, plots and tests read this and
nothing else of the simulator.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from governor.types import AgentName, PromptShape, TurnKind


class TurnEnd(StrEnum):
    """How a request ended. The engine's own reasons come first, by its names."""

    STOP = "stop"
    LENGTH = "length"
    """At its cap."""
    TOO_LONG = "too_long"
    """The engine's 400: the window."""
    QUEUE_FULL = "queue_full"
    OUT_OF_MEMORY = "out_of_memory"
    OVERFLOW = "overflow"
    """The governor's 400: no room for an answer under the policy's ceiling."""
    REFUSED = "refused"
    """The governor's 429."""
    GAVE_UP = "gave_up"
    """The client hung up after too long a silence."""
    CUT_OFF = "cut_off"
    """The simulation ended first."""


GOOD_ENDS = frozenset({TurnEnd.STOP, TurnEnd.LENGTH})


class WaitPlace(StrEnum):
    """Who made a turn wait."""

    GOVERNOR = "governor"
    """Before it was granted, or while it was paused."""
    ENGINE = "engine"
    """In the engine's queue."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One wait of a turn and its reason, in words."""

    at_s: float
    seconds: float
    place: WaitPlace
    reason: str
    behind: tuple[AgentName, ...] = ()
    """Whose turns ran on the engine when this wait began."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One stay on the engine. A turn that nobody pauses has one; a retraction does not end it."""

    granted_s: float
    admitted_s: float | None
    ended_s: float
    output_tokens: int
    """Written in this stay."""
    cached_device: int = 0
    cached_host: int = 0
    cached_storage: int = 0
    prefilled_tokens: int = 0
    """Computed at its (first) admission: prompt, and what was written before, less what a tier had."""


class TurnRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request. A client's retry is another one."""

    turn_id: str
    agent: AgentName
    session: str
    kind: TurnKind
    shape: PromptShape
    attempt: int = 1
    """1; a client's retry is the next row with one more."""
    asked_s: float
    """When its first attempt arrived."""
    arrived_s: float
    granted_s: float | None
    """First let to the engine."""
    admitted_s: float | None
    """First taken up by the engine: its prefill began."""
    first_token_s: float | None
    ended_s: float
    longest_silence_s: float
    """Longest time without a token: from ``asked_s`` (earlier attempts brought none either) to the first one, between
    tokens, or until it ended without one."""
    prompt_tokens: int
    new_tokens: int
    """Of the prompt: beyond all that anybody had had computed from its beginning on."""
    cached_device: int
    cached_host: int
    cached_storage: int
    """Of its first admission."""
    reprefilled_tokens: int
    """Computed though computed before: at its first admission, after each pause and after each retraction."""
    output_tokens: int
    wanted_tokens: int
    """Where the model would have stopped by itself."""
    cap_requested: int | None
    cap_tokens: int
    """What the engine was told."""
    waits: tuple[Wait, ...]
    slices: tuple[Slice, ...]
    retractions: int
    end: TurnEnd
    detail: str = ""
    """A refusal's reason, in words."""

    @property
    def ttft_s(self) -> float | None:
        """From arrival to the first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.arrived_s

    @property
    def cached_tokens(self) -> int:
        return self.cached_device + self.cached_host + self.cached_storage


class CompactionEnd(StrEnum):
    """What came of a client's compaction."""

    SUMMARY = "summary"
    """The middle of its history is a summary now."""
    FALLBACK = "fallback"
    """The summary call was refused and a text of the client's own stands there: the middle is lost."""
    ABANDONED = "abandoned"
    """The summary did not come in time, or there was nothing to cut: the history is as it was."""


class CompactionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A client has compacted its conversation: what its next prompt holds instead."""

    at_s: float
    agent: AgentName
    session: str
    before_tokens: int
    after_tokens: int
    threshold_tokens: int
    end: CompactionEnd

    @property
    def in_vain(self) -> bool:
        """It will compact again at once."""
        return self.after_tokens >= self.threshold_tokens


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A look at everything at one moment."""

    at_s: float
    running: int
    """On the engine, prefill or decode."""
    waiting: int
    """In the engine's queue."""
    held: int
    """At the governor."""
    l1_used_tokens: int
    """Locked by running requests."""
    l1_tokens: int
    """With what is only cached."""
    l2_tokens: int
    l3_tokens: int
    l1_used_slots: int
    l1_slots: int
    l2_slots: int


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine has of each."""

    window_tokens: int
    l1_tokens: int
    l1_slots: int
    l2_tokens: int
    l2_slots: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    trace: str
    machine: str
    governed: bool
    seed: int
    capacity: Capacity
    ended_s: float
    """Makespan: when the last turn ended."""
    turns: tuple[TurnRow, ...]
    """By arrival."""
    compactions: tuple[CompactionRow, ...]
    samples: tuple[Sample, ...]

    def of(self, agent: str) -> list[TurnRow]:
        """One agent's rows."""
        return [row for row in self.turns if row.agent == agent]
