"""What the turn scheduler is told. Values only; all times are seconds of one monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from governor.budget.claim import Capacity, Claim, Sight
from governor.policy.model import LimitPolicy, SharePolicy, SlicePolicy
from governor.types import AgentClass, AgentName, TurnId, TurnKind


class TurnArrived(msgspec.Struct, frozen=True, kw_only=True):
    """A turn asks to run. The policies are the snapshot it began with."""

    turn_id: TurnId
    agent: AgentName
    agent_class: AgentClass
    kind: TurnKind
    limits: LimitPolicy
    share: SharePolicy = SharePolicy()
    slices: SlicePolicy = SlicePolicy()
    claim: Claim | None = None
    """What it needs of L1; ``None``: its size is not known, and only the engine's slots bound it."""
    new_tokens: int | None = None
    """Of its prompt, to be computed; ``None``: all of it."""
    resident_tokens: int = 0
    """Of its prompt, usable in L1 now. Would have to be fetched or computed again if others pushed it out."""
    session: str | None = None
    """Conversation that this turn continues; it waits for a running turn of the same one."""
    prompt: bytes = b""
    """Names its prompt, so that one that is asked for again is known; empty: it has no name."""
    context: str | None = None
    """Names what its prompt and its answer are a piece of, in the cache; ``None``: nothing that will go on."""
    prefix_tokens: int = 0
    """Of its prompt, what earlier turns have put into the cache."""
    fetches: bool = False
    """Nobody waits for it: it brings its ``context`` back into L1 before it is asked for, or, without one, does what
    can be done later as well. It is asked to stop when any other turn arrives."""

    @property
    def tokens(self) -> int:
        """Of KV, as if it ran alone; 1 where nobody knows, so that time counts."""
        return self.claim.tokens if self.claim else 1

    @property
    def prefill_tokens(self) -> int:
        if self.new_tokens is not None:
            return self.new_tokens
        return self.claim.prompt_tokens if self.claim else 0


class TurnStarted(msgspec.Struct, frozen=True):
    """The engine has sent the first token since the turn's last grant."""

    turn_id: TurnId


class TurnWrote(msgspec.Struct, frozen=True):
    """What the turn has written since its last grant, in tokens; may be an estimate, best a high one."""

    turn_id: TurnId
    tokens: int


class TurnPaused(msgspec.Struct, frozen=True, kw_only=True):
    """A running turn has stopped as asked and waits to go on. ``claim``: as it is now, its output so far a part of the
    prompt. ``confirmed``: the engine itself has ended it."""

    turn_id: TurnId
    claim: Claim | None
    confirmed: bool = True


class ClaimGrown(msgspec.Struct, frozen=True):
    """A running turn needs more of L1 than it has, to go on; it waits for the word whether it may have it at once."""

    claim: Claim


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn that was answered leaves in the cache."""

    tokens: int
    """Prompt and answer."""
    cached_tokens: int | None = None
    """Of the prompt, what the cache served, from wherever."""
    tool: str = ""
    """That its agent runs now; empty: none."""


class TurnEnded(msgspec.Struct, frozen=True):
    """A running turn has closed, or a waiting one is not waited for any more, however that came."""

    turn_id: TurnId
    confirmed: bool = True
    """The engine itself has ended it, or was never asked. Else its KV is held until the engine's load says so."""
    left: Left | None = None
    """``None``: nobody knows what it has left."""


class EngineMode(StrEnum):
    """What the scheduler needs to know of the engine's state."""

    READY = "ready"
    COMING = "coming"
    """Starting or restarting: turns are held."""
    DOWN = "down"
    """Gone, and nobody is starting it: turns are refused."""


class EngineChanged(msgspec.Struct, frozen=True):
    """The engine's state; ``slots`` bounds how many turns at once (``None``: no bound known)."""

    mode: EngineMode
    slots: int | None = None
    detail: str = ""
    capacity: Capacity = Capacity()
    pauses: bool = False
    """A running turn can be stopped and continued exactly."""
    anew: bool = False
    """It is another process than before: nothing of what was granted is in it."""


class EngineSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The engine was asked how it is."""

    sight: Sight
    served_share: float | None = None
    """Of the prompt tokens of lately ended turns, the part that came from cache where it could have; ``None``: too few
    turns to tell."""


class FloorsChanged(msgspec.Struct, frozen=True):
    """KV tokens that each of these agents can have at any time."""

    floors: Mapping[AgentName, int]


class AgentHeld(msgspec.Struct, frozen=True, kw_only=True):
    """The owner has paused an agent: its turns wait until it is released. May be repeated."""

    agent: AgentName
    reason: str
    """Which the agent's clients are told, too."""
    running: bool = False
    """Answers that have begun are paused as well, where they can be."""


class AgentReleased(msgspec.Struct, frozen=True):
    """An agent is held no more."""

    agent: AgentName


class SliceAsked(msgspec.Struct, frozen=True):
    """The owner has asked a running turn to pause, so that those that wait go first."""

    turn_id: TurnId
    reason: str


class TimePassed(msgspec.Struct, frozen=True):
    """Nothing but time has happened."""


SchedulerEvent = (
    TurnArrived
    | TurnStarted
    | TurnWrote
    | TurnPaused
    | ClaimGrown
    | TurnEnded
    | EngineChanged
    | EngineSeen
    | FloorsChanged
    | AgentHeld
    | AgentReleased
    | SliceAsked
    | TimePassed
)
