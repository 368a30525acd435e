"""Values of the engine model: its settings, what it is asked, what it tells. No behaviour.

Names and defaults are SGLang 0.5.23's. Times are seconds of the model's own clock, which nothing but its caller moves.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from serve.twin.tiers_key import Key
from serve.twin.tiers_model import TierSettings


class QueuePolicy(StrEnum):
    """``--schedule-policy``: who of those that wait is looked at first."""

    FCFS = "fcfs"
    LPM = "lpm"
    """Longest matched prefix."""
    SHORTEST_PREFILL = "shortest-prefill-first"


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine: its tiers and its scheduler's rules."""

    tiers: TierSettings
    context_tokens: int
    """Window: prompt + output of one request."""
    max_running_requests: int = 8
    max_queued_requests: int | None = None
    chunked_prefill_tokens: int = 4096
    max_prefill_tokens: int = 16384
    """Of one prefill batch, over all its requests."""
    mixed_chunk: bool = False
    """Decodes ride along with a chunk of prefill."""
    prefill_decode_interval: int | None = None
    """Decode steps between two chunks of prefill while somebody decodes; ``None``: a prefill is not interrupted."""
    queue_policy: QueuePolicy = QueuePolicy.FCFS
    priority_scheduling: bool = False
    priority_preemption: bool = True
    """Only with priorities; ``--disable-priority-preemption`` takes it away, and with it the look at the queue at every
    step."""
    lower_priority_first: bool = False
    schedule_conservativeness: float = 1.0
    accept_length: float = 1.0
    """Tokens one decode step yields per request: above 1 with speculation."""

    @property
    def preempts(self) -> bool:
        """``enable_priority_preemption`` (``scheduler.py:1469``)."""
        return self.priority_scheduling and self.priority_preemption


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request, with what the model will write, which the scheduler does not know."""

    rid: str
    prompt: Key
    output: Key
    """What will be written; as long as ``writes_tokens`` at least."""
    writes_tokens: int
    """Where the model stops by itself."""
    max_new_tokens: int
    priority: int = 0
    accept_length: float | None = None
    """Over the engine's; how well this text can be guessed."""
    ignore_eos: bool = False
    """It cannot end before ``max_new_tokens``, and admission of others counts on that."""


class Cached(msgspec.Struct, frozen=True):
    """Prompt tokens that were not computed, by the tier that had them (``cached_tokens_details``)."""

    device: int = 0
    host: int = 0
    storage: int = 0

    @property
    def tokens(self) -> int:
        return self.device + self.host + self.storage


class EndReason(StrEnum):
    """``finish_reason.type``; errors are SGLang's status of the same meaning."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TOO_LONG = "too_long"
    """400: prompt and output do not fit the window, or the prompt does not fit L1."""
    QUEUE_FULL = "queue_full"
    """503."""
    OUT_OF_MEMORY = "out_of_memory"
    """500: alone, and it still does not fit (``retract_decode``)."""


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """Its first chunk goes to the engine. Said again after a retraction."""

    at: float
    rid: str
    cached: Cached
    waited_s: float


class Wrote(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens ``[start, stop)`` of its output are there. Of several steps at once ``at`` is the last one's time."""

    at: float
    rid: str
    start: int
    stop: int
    first_at: float | None = None
    """The first step's time; ``None``: there was one."""


class Retracted(msgspec.Struct, frozen=True, kw_only=True):
    """Pushed out of L1 by those it decoded with; waits again, at the queue's end."""

    at: float
    rid: str


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Comes once for each request."""

    at: float
    rid: str
    reason: EndReason
    prompt_tokens: int
    completion_tokens: int
    cached: Cached
    """Of its first admission, as SGLang's usage."""
    prefilled_tokens: int = 0
    """Computed in all its prefills, of its prompt and, after a retraction, of what it had written."""


EngineEvent = Admitted | Wrote | Retracted | Ended


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """Who was looked at last and did not fit (``NO_TOKEN``), by the figures of that look; all behind it wait, too,
    whatever they need."""

    rid: str
    wanted_tokens: int
    """Of L1: to compute, expected to be written, and a page."""
    free_tokens: int
    """Free or evictable, less what the running ones are expected to write."""
    is_full: bool = False
    """Nobody is looked at before somebody leaves, whatever has become free since (``batch_is_full``): not this one, nor
    who was passed over while L3 was read for it, nor who has come since."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A look at it now (``/v1/loads``)."""

    running: int
    waiting: int
    used_tokens: int
    """Of L1's KV, held by running requests or not evictable."""
    held_tokens: int
    """Of L1's KV, cache included."""
    capacity_tokens: int
    used_slots: int
    capacity_slots: int
    new_token_ratio: float
