"""How clients behave towards an endpoint: patience, retries, compaction. Figures only; the loops that follow them are
in ``agents`` and ``compaction``.

Hermes is 0.19.0, OpenClaw 2026.9.6, as recorded against a stub ("seen", with the run's name) or read in their source
("src"). Plain is the OpenAI SDK for Python with its defaults.
"""

from __future__ import annotations

from random import Random

import msgspec

from governor.policy.model import KeepAlive
from governor.simulate.result import TurnEnd
from serve.twin.trace import Client

OVERFLOWS = frozenset({TurnEnd.TOO_LONG, TurnEnd.OVERFLOW})
_BROKEN = frozenset({TurnEnd.QUEUE_FULL, TurnEnd.OUT_OF_MEMORY})


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """Of one kind of failure."""

    attempts: int
    """In total."""
    waits_s: tuple[float, ...]
    """Before the second, the third, ...; the last one again from there on."""
    jitter: float = 0.0
    """Share by which a wait is made shorter or longer."""
    obeys_up_to_s: float = 0.0
    """Retry-After counts up to this; 0: it is not read."""

    def wait_s(self, attempt: int, retry_after_s: int | None, random: Random) -> float | None:
        """Before the attempt after this one; ``None``: there is none."""
        if attempt >= self.attempts:
            return None
        if retry_after_s is not None and self.obeys_up_to_s:
            return min(float(retry_after_s), self.obeys_up_to_s)
        wait = self.waits_s[min(attempt, len(self.waits_s)) - 1]
        return wait * (1 + self.jitter * random.uniform(-1, 1))


class ClientRules(msgspec.Struct, frozen=True, kw_only=True):
    """One client."""

    patience_s: float
    """Silence after which it hangs up."""
    keepalive: KeepAlive
    """The least that it takes for a sign of life."""
    refused: Retries
    """429."""
    broken: Retries
    """5xx."""
    silent: Retries
    """It has hung up before the first token."""
    rewrites_on_retry: bool = False
    """A retry's last message has other words."""
    continuations: int = 0
    """How often it asks to go on after an answer that was cut at its cap."""
    continuation_cap: int | None = None
    """It doubles its cap for these, up to this."""
    clamps_cap: bool = False
    """It asks for no more than it believes is left in the window, down to 1."""

    def retries(self, end: TurnEnd) -> Retries | None:
        """``None``: such an end is final."""
        if end is TurnEnd.REFUSED:
            return self.refused
        if end is TurnEnd.GAVE_UP:
            return self.silent
        return self.broken if end in _BROKEN else None


_PLAIN_RETRIES = Retries(attempts=3, waits_s=(0.5, 1.0), jitter=0.25, obeys_up_to_s=60.0)
_HERMES_BACKOFF = Retries(attempts=3, waits_s=(3.0, 5.0))

RULES = {
    Client.PLAIN: ClientRules(
        patience_s=600.0,
        keepalive=KeepAlive.COMMENT,  # its timer is the socket's
        refused=_PLAIN_RETRIES,
        broken=_PLAIN_RETRIES,
        silent=_PLAIN_RETRIES,
    ),
    Client.HERMES: ClientRules(
        patience_s=900.0,  # src: "stale", on a local address; counts parsed chunks
        keepalive=KeepAlive.CHUNK,
        refused=Retries(attempts=3, waits_s=(3.0, 5.0), obeys_up_to_s=600.0),  # seen hermes-31
        broken=_HERMES_BACKOFF,  # seen hermes-32; Retry-After is ignored
        silent=Retries(attempts=3, waits_s=(1.0,)),  # src: HERMES_STREAM_RETRIES=2
        continuations=4,  # src
        continuation_cap=32_768,
    ),
    Client.OPENCLAW: ClientRules(
        patience_s=300.0,  # docs: self-hosted
        keepalive=KeepAlive.CHUNK,
        refused=Retries(attempts=10, waits_s=(1, 2, 4, 8, 16, 30), jitter=0.2, obeys_up_to_s=600.0),  # seen openclaw-36
        broken=Retries(attempts=8, waits_s=(1, 2, 4, 8, 16, 30), jitter=0.2, obeys_up_to_s=90.0),  # seen openclaw-37
        silent=Retries(attempts=3, waits_s=(1.0,), jitter=0.4),  # seen: 0.5 to 1.4 s; how often was not
        rewrites_on_retry=True,  # seen: every retry
        clamps_cap=True,  # seen openclaw-32
    ),
}

REWRITE_TOKENS = 40
"""OpenClaw's words around a message that it sends again."""
GO_ON_TOKENS = 60
"""Hermes' message after a truncated answer."""


class CompactionRules(msgspec.Struct, frozen=True, kw_only=True):
    """How one client makes its history shorter."""

    threshold_tokens: int
    only_before_user: bool
    """``False``: before any call."""
    first_messages: int
    """Kept at the beginning, the first time."""
    tail_tokens: int
    tail_messages: int
    """Kept at the end: so much of both at least."""
    tool_result_tokens: int
    """Of each tool result that the summary is made from."""
    summary_tokens: int
    """Most that it aims at."""
    cap: int | None
    patience_s: float
    streams: bool
    tries: int
    """Of the summary call, where it is refused."""
    calls: int = 1
    """Summary calls, one after the other, each over its part."""
    flushes: bool = False
    """It lets the model save its memory first: the whole history under another system prompt."""
    falls_back: bool = False
    """After a refused summary call the middle is replaced all the same."""


SUMMARY_SHARE = 0.2
SUMMARY_LEAST = 2000
FALLBACK_TOKENS = 500
INSTRUCTION_TOKENS = 600
FLUSH_HEAD_TOKENS = 5000
FLUSH_TOKENS = 200
PER_TURN = 3
"""Compactions at most for one request that overflows (Hermes src, OpenClaw seen openclaw-31)."""


def hermes_compaction(window_tokens: int, cap: int | None, share: float | None) -> CompactionRules:
    """Threshold: 0.75 of the window less its own ``max_tokens``, at least 64,000, and where that is not less than the
    base, 0.85 of the base (src; 65,536 with 8,192 gives 48,742, instrumented)."""
    base = window_tokens - (cap or 0)
    threshold = max(int(base * (share or 0.75)), 64_000)
    if threshold >= base:
        threshold = int(base * 0.85)
    return CompactionRules(
        threshold_tokens=threshold,
        only_before_user=False,
        first_messages=3,
        tail_tokens=threshold // 5,
        tail_messages=8,
        tool_result_tokens=1500,  # 6,000 characters
        summary_tokens=min(window_tokens // 20, 10_000),
        cap=None,
        patience_s=120.0,
        streams=False,
        tries=2,
        falls_back=True,  # seen hermes-24
    )


def openclaw_compaction(window_tokens: int, share: float | None) -> CompactionRules:
    """Threshold: the window less ``min(20000, window / 4)`` (65,536 gives 49,152, seen)."""
    own = window_tokens - min(20_000, window_tokens // 4)
    return CompactionRules(
        threshold_tokens=own if share is None else int(window_tokens * share),
        only_before_user=True,
        first_messages=0,
        tail_tokens=20_000,
        tail_messages=6,  # three turns of a question and an answer
        tool_result_tokens=1500,
        summary_tokens=2500,
        cap=4096,
        patience_s=180.0,
        streams=True,
        tries=3,
        calls=2,  # seen: two or three
        flushes=True,
    )
