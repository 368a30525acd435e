"""One request on its way through the engine model: what it asked, what it has written, what it holds of the tiers."""

from __future__ import annotations

from serve.twin.engine_model import Ask, Cached, EndReason, EngineSettings
from serve.twin.engine_prefetch import StorageRead
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import BrokenBooks
from serve.twin.tiers_prefetch import Prefetch
from serve.twin.tiers_request import Request

ESTIMATE_TOKENS = 4096
"""``SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION``: admission expects no request to write more than this."""
RESERVED_TOKENS = 5
"""Of the window, which no prompt may take (``tp_worker.py:572``)."""


class Job:
    """A request from its arrival to its end."""

    __slots__ = (
        "accept_length",
        "ask",
        "asked_from",
        "asks",
        "cached",
        "carry",
        "context",
        "entered_at",
        "is_aborted",
        "limit_tokens",
        "matched_tokens",
        "prefilled",
        "read",
        "request",
        "staged",
        "staged_refusals",
        "storage_start",
        "storage_tokens",
        "total_tokens",
        "written",
    )

    def __init__(self, ask: Ask, settings: EngineSettings) -> None:
        self.ask = ask
        self.context = ask.prompt
        """What a prefill has to compute: the prompt, and after a retraction what was written, too."""
        self.limit_tokens = output_limit(ask, settings)
        """``max_new_tokens``, cut to what window and L1 have room for."""
        self.total_tokens = min(ask.writes_tokens, self.limit_tokens)
        """What it will have written at its end."""
        self.accept_length = ask.accept_length or settings.accept_length
        self.is_aborted = False
        self.written = 0
        self.prefilled = 0
        """Tokens computed in its prefills."""
        self.carry = 0.0
        """Of a token, from steps that yield a fraction on average."""
        self.entered_at = 0.0
        """When it came into the queue, the last time."""
        self.matched_tokens = 0
        """In L1 and L2, as the queue saw it last; only policies that ask for it know."""
        self.request: Request | None = None
        """While it runs."""
        self.cached: Cached | None = None
        """Of its first admission."""
        self.read: StorageRead | None = None
        """While L3 is asked for its prefix, or read."""
        self.staged: Prefetch | None = None
        """What was read for it, until it is admitted (``buffer_only``)."""
        self.staged_refusals = 0
        """How often L1 had no room for that."""
        self.asked_from = 0
        """What L1 and L2 had of it when L3 was asked."""
        self.asks = 0
        """How often L3 was asked anew."""
        self.storage_start = 0
        self.storage_tokens = 0
        """Of its context, what a read from L3 has brought to L2."""

    @property
    def held(self) -> Request:
        """What it holds of the tiers, of a job that runs."""
        if self.request is None:
            raise BrokenBooks(f"{self.ask.rid} does not run")
        return self.request

    @property
    def left_tokens(self) -> int:
        """Until its own limit, which is all that admission knows of its future."""
        return max(self.limit_tokens - self.written, 0)

    @property
    def expected_tokens(self) -> int:
        return min(self.left_tokens, ESTIMATE_TOKENS)

    def reserved_tokens(self, ratio: float) -> float:
        """What admission keeps for it while it runs (``_get_running_request_total_token_offset``)."""
        return self.expected_tokens * (1.0 if self.ask.ignore_eos else ratio)

    @property
    def is_done(self) -> bool:
        return self.written >= self.total_tokens

    @property
    def end_reason(self) -> EndReason:
        """A stop token beats the limit where both come at once, an abort beats both (``schedule_batch.py:2011``)."""
        if self.is_aborted:
            return EndReason.ABORT
        return EndReason.STOP if self.ask.writes_tokens <= self.limit_tokens else EndReason.LENGTH

    def output(self, start: int, stop: int) -> Key:
        return self.ask.output.cut(start, stop)

    def abort(self) -> None:
        """It still runs one decode step (``to_finish`` of ``scheduler.py:5800``)."""
        self.is_aborted = True
        self.total_tokens = min(self.total_tokens, self.written + 1)

    def retract(self) -> None:
        """It has lost what it held, and what it has written is to be computed again."""
        self.request = None
        self.context = self.ask.prompt + self.output(0, self.written)
        self.carry = 0.0
        self.asks = 0


def longest_request_tokens(settings: EngineSettings) -> int:
    """``max_req_len`` (``tp_worker.py:568``)."""
    return min(settings.context_tokens, settings.tiers.page_floor(settings.tiers.device_tokens)) - 1


def is_too_long(ask: Ask, settings: EngineSettings) -> bool:
    """Whether it is answered with 400 (``utils.py:272``, ``tokenizer_manager.py:1356``). An engine takes a prompt that
    leaves less than a page of L1, too, and looks at it for ever; that one is refused here."""
    prompt_tokens = len(ask.prompt)
    tiers = settings.tiers
    if prompt_tokens >= longest_request_tokens(settings) - RESERVED_TOKENS:
        return True
    if prompt_tokens + tiers.page_tokens >= tiers.page_floor(tiers.device_tokens):
        return True
    return prompt_tokens + ask.max_new_tokens > settings.context_tokens


def output_limit(ask: Ask, settings: EngineSettings) -> int:
    """``init_req_max_new_tokens`` (``scheduler.py:2693``): a request fits an empty L1 whatever it asks."""
    tiers, prompt_tokens = settings.tiers, len(ask.prompt)
    window = longest_request_tokens(settings) - prompt_tokens - 1
    room = tiers.page_floor(tiers.device_tokens) - tiers.page_ceil(prompt_tokens) - tiers.page_tokens - 1
    return max(0, min(ask.max_new_tokens, window, room))
