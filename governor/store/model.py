"""The turn log's values and its port: what is recorded of a turn, and how the gateway hands it over."""

from __future__ import annotations

from typing import Protocol

import msgspec

from governor.events import PrefixLost, TurnDecided
from governor.types import AgentName, PromptShape, SessionId, TurnId, TurnKind, TurnState, Usage


class TurnOpened(msgspec.Struct, frozen=True, kw_only=True):
    """A turn was let in through the door: written before anything can go wrong with it."""

    turn_id: TurnId
    agent: AgentName
    route: str
    """The request path, from our own table of routes."""
    opened_at: float
    """Unix time in seconds."""


class TurnClosed(msgspec.Struct, frozen=True, kw_only=True):
    """A turn ended. Written exactly once per ``turn_id``. ``None`` is unknown and never becomes 0."""

    turn_id: TurnId
    state: TurnState
    closed_at: float
    """Unix time in seconds."""
    session: SessionId | None = None
    kind: TurnKind | None = None
    shape: PromptShape | None = None
    model: str | None = None
    stream: bool | None = None
    http_status: int | None = None
    """Status the client got; ``None`` if it left before."""
    error_code: str | None = None
    reason: str | None = None
    """One line for a person."""
    finish_reason: str | None = None
    usage: Usage = Usage()
    """As the engine reported; NULL in the row where it did not."""
    prompt_tokens_counted: int | None = None
    """Our own count before the turn, and its margin."""
    prompt_tokens_margin: int | None = None
    count_source: str | None = None
    completion_tokens_estimated: int | None = None
    """From the text relayed, where the engine reported no usage. Kept apart from the reported figure."""
    cap_requested: int | None = None
    cap_applied: int | None = None
    cap_reason: str | None = None
    window_tokens: int | None = None
    message_count: int | None = None
    shared_messages: int | None = None
    """Messages equal to what this session sent before, counted from the first."""
    broke_at: str | None = None
    """Where the prefix broke, if it did: message, byte, likely cause."""
    edits: tuple[str, ...] = ()
    """Fields we changed in the request."""
    flags: tuple[str, ...] = ()
    """Oddities: ``answer_lost_to_reasoning``, ``reasoning_exceeds_completion``, ..."""
    pieces: int | None = None
    """Generations that the answer was made of: 1 unless it was paused; ``None`` if none was begun."""
    paused_ms: float | None = None
    """Time in which it had given its place back."""
    queued_ms: float | None = None
    ttft_ms: float | None = None
    """From arrival to the first relayed token."""
    duration_ms: float | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None


class StoredTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as the log knows it. ``None`` is unknown."""

    turn_id: TurnId
    run_id: str
    """Which run of the governor wrote the row."""
    state: TurnState
    agent: AgentName | None
    """``None``, as ``route`` and ``opened_at``, where only the turn's end was recorded."""
    route: str | None
    opened_at: float | None
    closed: TurnClosed | None
    """``None`` while the turn is open, and for ever if it was interrupted."""
    losses: tuple[PrefixLost, ...] = ()
    """What of its prompt was computed again, and why; the dearest first."""


class StoreHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How the turn log fares. Displayed; nothing on the request path depends on it."""

    ok: bool
    pending: int
    """Turns with a record that waits to be written."""
    dropped: int
    """Records given up since the start: the bounded queue was full, or no database would take the record."""
    last_error: str | None = None
    """Why records cannot be written now, or why some were dropped; ``None`` while all is well."""
    url: str = ""
    """Without password."""
    anomalies: int = 0
    """Turns that were closed more than once; the first ending is the one recorded."""
    set_aside: tuple[str, ...] = ()
    """Damaged database files that were renamed to make place for a new one, since the start."""


class TurnLog(Protocol):
    """Where turns are recorded. Methods never block on the database and never raise: a broken store must not fail a
    user's request. Records are written in the order given, each once."""

    def opened(self, record: TurnOpened) -> None: ...

    def decided(self, record: TurnDecided) -> None:
        """Any number of a turn, before its end or after it."""
        ...

    def closed(self, record: TurnClosed) -> None: ...

    def lost(self, record: PrefixLost) -> None:
        """Any number of a turn, of each cause one; most of them soon after its end."""
        ...

    def health(self) -> StoreHealth: ...
