"""An agent's sums since the governor started."""

from __future__ import annotations

from collections import Counter

import msgspec

from governor.events import PrefixLost
from governor.snapshot import LossView
from governor.store.model import TurnClosed
from governor.types import TurnState, Usage


class Lost(msgspec.Struct):
    """Of one cause."""

    count: int = 0
    tokens: int = 0
    seconds: float | None = None
    unmeasured: int = 0


class Totals(msgspec.Struct):
    """Of one agent."""

    turns: Counter[TurnState] = msgspec.field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0
    unreported: int = 0
    last_usage: Usage | None = None
    last_ttft_ms: float | None = None
    last_seen: float | None = None
    lost: dict[str, Lost] = msgspec.field(default_factory=dict)
    """By cause."""

    def on_closed(self, record: TurnClosed) -> None:
        usage = record.usage
        self.turns[record.state] += 1
        self.last_seen = record.closed_at
        self.last_ttft_ms = record.ttft_ms if record.ttft_ms is not None else self.last_ttft_ms
        if usage.prompt_tokens is None:
            self.unreported += 1
            return
        self.last_usage = usage
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens or 0
        if usage.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + usage.cached_tokens

    def on_lost(self, record: PrefixLost) -> None:
        lost = self.lost.setdefault(record.cause, Lost())
        lost.count += 1
        lost.tokens += record.tokens or 0
        lost.unmeasured += record.tokens is None
        if record.seconds is not None:
            lost.seconds = (lost.seconds or 0.0) + record.seconds

    def losses(self) -> tuple[LossView, ...]:
        """The dearest cause first."""
        return tuple(
            LossView(
                cause=cause,
                count=lost.count,
                tokens=lost.tokens,
                seconds=None if lost.seconds is None else round(lost.seconds, 3),
                unmeasured=lost.unmeasured,
            )
            for cause, lost in sorted(self.lost.items(), key=lambda item: -item[1].tokens)
        )
