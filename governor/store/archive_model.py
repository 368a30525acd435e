"""The archive's values and its port: what left prompts, the heads that stand in their place, and what each compaction
came to."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from governor.compress.heads import Covering
from governor.types import AgentName, SessionId, TurnId


class LeftText(msgspec.Struct, frozen=True, kw_only=True):
    """Something that left a prompt."""

    handle: str
    """``gov-`` and 16 hexadecimal digits, as the prompt names it."""
    body: bytes
    """As it came from the client: one content or several messages, as JSON."""
    what: str
    """One line for a person."""


class Head(Covering, frozen=True, kw_only=True):
    """The beginning of a conversation, behind its instructions, as the engine is sent it in place of the client's.
    Never changed once made."""

    agent: AgentName
    session: SessionId
    made_at: float
    """Unix time in seconds."""
    before_tokens: int
    after_tokens: int
    """Of the whole prompts with which it was made."""


class CompactedBy(StrEnum):
    GOVERNOR = "governor"
    CLIENT = "client"


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """One try to make a conversation shorter, by us or by the client. ``None`` is unknown."""

    turn_id: TurnId
    """The turn whose prompt it was."""
    agent: AgentName
    session: SessionId
    at: float
    """Unix time in seconds."""
    by: CompactedBy
    outcome: str
    """``accepted``, ``would`` (observed only) or the name of a miss."""
    before_tokens: int | None
    after_tokens: int | None
    stages: str = ""
    """What each stage freed, for a person."""
    detail: str = ""
    """Why it missed, with numbers."""
    took_ms: float | None = None
    summary_turn: TurnId | None = None
    """The turn that wrote its summary."""


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """What the archive has under a handle."""

    left: LeftText
    agent: AgentName
    session: SessionId
    turn_id: TurnId
    """The turn that made it leave."""
    left_at: float


class ArchiveHealth(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    pending: int
    """Records that wait to be written."""
    dropped: int
    """Given up since the start."""
    bytes_kept: int | None = None
    last_error: str | None = None


class Archive(Protocol):
    """Where what left prompts is kept. The methods that write return at once and raise nothing; those that read may
    take as long as a database does and answer nothing where it is away."""

    def keep(self, head: Head, left: tuple[LeftText, ...], compaction: Compaction) -> None:
        """An accepted compaction, in one transaction: a head never names a handle that is not kept with it."""
        ...

    def note(self, compaction: Compaction) -> None:
        """A compaction that left nothing behind."""
        ...

    async def heads(self, agent: AgentName, session: SessionId) -> tuple[Head, ...]:
        """The newest last. What was given to :meth:`keep` and waits to be written counts."""
        ...

    async def recall(self, handle: str, agent: AgentName | None = None) -> Recalled | None:
        """``agent``: of this one only."""
        ...

    async def compactions(self, agent: AgentName | None = None, most: int = 100) -> tuple[Compaction, ...]:
        """The newest first."""
        ...

    def health(self) -> ArchiveHealth: ...
