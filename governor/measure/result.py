"""A result: what was measured, on what, and what was thrown out and why. Values, and the file they are kept in.

The file is ``result.json``; its schema is ``docs/bench-result.schema.json``, made from these types. Times are seconds
of the engine's clock (a twin at speed 60 says so in ``engine.speed``), rates tokens a second by ``usage``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from governor.measure.errors import MeasureFailed

SCHEMA_VERSION = 1


class Metric(StrEnum):
    """What a figure is; the name ends in its unit."""

    TTFT_S = "ttft_s"
    """From the request's first byte to the first event that carries a token."""
    TTFT_MAX_S = "ttft_max_s"
    """Of requests sent at once: the last one's."""
    PREFILL_RATE = "prefill_tokens_per_s"
    """Prompt tokens that were not cached, over the time to the (last) first token."""
    DECODE_RATE = "decode_tokens_per_s"
    """Output tokens of all together."""
    ITL_P50_MS = "itl_p50_ms"
    """Between two tokens: a gap between events, spread over the tokens that the later one brought."""
    ITL_P99_MS = "itl_p99_ms"
    ITL_MAX_MS = "itl_max_ms"
    GAP_P99_MS = "gap_p99_ms"
    """Between two events of a stream, however many tokens they carry: what somebody who looks at it sees."""
    GAP_MAX_S = "gap_max_s"
    TOKENS_PER_EVENT = "tokens_per_event"
    ACCEPT_LENGTH = "accept_length"
    """Tokens a decode step yields under speculative decoding, by the engine's own count."""
    CACHED_TOKENS = "cached_tokens"
    CONTEXT_TOKENS = "context_tokens"
    """The longest that fits."""
    AT_ONCE = "requests_at_once"
    """How many decoded before the first of them had ended."""
    STALL_S = "stall_s"
    """Longest time that an agent got nothing: to a first token, or between two events."""
    MAKESPAN_S = "makespan_s"
    PREFILLED_PER_NEW = "prefilled_per_new"
    """Prompt tokens computed for each that nobody had asked before."""
    MEMORY_MIB_PER_H = "memory_mib_per_h"
    KV_LEFT_TOKENS = "kv_left_tokens"
    """Held by running requests when none runs."""
    DRIFT_RATIO = "ttft_drift_ratio"
    """Median of the last third over that of the first."""

    @property
    def better(self) -> Literal["lower", "higher", "neither"]:
        if self in _HIGHER:
            return "higher"
        return "neither" if self in _NEITHER else "lower"


_HIGHER = {
    Metric.PREFILL_RATE,
    Metric.DECODE_RATE,
    Metric.ACCEPT_LENGTH,
    Metric.CACHED_TOKENS,
    Metric.CONTEXT_TOKENS,
    Metric.AT_ONCE,
}
_NEITHER = {Metric.TOKENS_PER_EVENT}


class Split(msgspec.Struct, frozen=True):
    """Cached prompt tokens by the tier that had them, in the engine's word; ``None``: it does not tell."""

    device: int | None = None
    host: int | None = None
    storage: int | None = None

    def __str__(self) -> str:
        named = (("L1", self.device), ("L2", self.host), ("L3", self.storage))
        return " + ".join(f"{name} {tokens:,}" for name, tokens in named if tokens) or "-"


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One answer's evidence, from its ``usage``."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """``None``: the engine does not tell, so nothing is proven of the cache."""
    split: Split | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked. Two figures of equal cases are of the same thing."""

    name: str
    """``cold``, ``L2``, ``decode``, ..."""
    context_tokens: int = 0
    """Of each prompt; its tail, if it has one, not counted."""
    requests: int = 1
    """At once."""
    output_tokens: int = 1
    """Of each."""

    def __str__(self) -> str:
        many = f"{self.requests} x " if self.requests > 1 else ""
        return f"{self.name} {many}{self.context_tokens:,}" if self.context_tokens else self.name


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one case: every repeat of it."""

    case: Case
    metric: Metric
    better: Literal["lower", "higher", "neither"]
    values: tuple[float, ...]
    """In the order they were measured; what was thrown out is not in here."""
    median: float
    q1: float
    q3: float
    served: tuple[Served, ...] = ()
    """Evidence of the answers behind the values."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not among the figures, and why."""

    what: str
    reason: str


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bench ran; that is the engine's machine where ``engine_is_local``."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    gpus: tuple[str, ...] = ()
    """Name, driver and clocks of each, as its vendor's tool prints them."""
    processor_mhz: float | None = None
    """Of the fastest core, when the run began."""
    processor_governor: str | None = None
    """``performance``, ``powersave``, ...: how the kernel sets that clock."""
    load_before: float
    """Load average of the last minute."""
    load_after: float
    engine_is_local: bool = True


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine said of itself. ``None`` is unknown or unlimited."""

    kind: Literal["sglang", "llamacpp", "openai"]
    version: str = "unknown"
    model: str
    model_hash: str | None = None
    """Of the weights' files, where they can be read from here: names, sizes, beginnings and ends."""
    flags: Mapping[str, str | int | float | bool | None] = {}
    """Its settings, without addresses, folders and secrets."""
    window_tokens: int
    page_tokens: int = 1
    device_tokens: int | None = None
    device_states: int | None = None
    """Of a hybrid model."""
    host_tokens: int | None = None
    host_states: int | None = None
    has_host: bool = False
    storage: str | None = None
    """Kind of L3."""
    slots: int | None = None
    """Requests it decodes at once."""
    prompts: Literal["tokens", "text"] = "text"
    """How prompts were given: as the engine's own tokens, or as a chat's text."""
    template_tokens: int = 0
    """What the engine puts around a text; the same in every prompt, so it may be cached."""
    takes_images: bool = False
    speed: float = 1.0
    """Seconds of the engine in one of the wall: above 1 for a twin only."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """``result.json``."""

    schema_version: int
    suite: str
    started_at: str
    """UTC."""
    took_s: float
    """Of the wall."""
    governor_version: str
    seed: str
    """The same seed asks the same prompts."""
    repeats: int
    protocol: Mapping[str, str]
    """The suite's choices, as a command line has them."""
    machine: MachineFacts
    engine: EngineFacts
    measures: tuple[Measure, ...]
    thrown: tuple[Left, ...] = ()
    """Answers that were asked and do not count."""
    skipped: tuple[Left, ...] = ()
    """Cases that were not asked."""
    notes: tuple[str, ...] = ()
    """What whoever reads the figures should know."""
    is_complete: bool = True
    """``false``: it was interrupted; what there is, is right."""


def write_result(result: Result, path: Path) -> None:
    """Raises :class:`OSError`."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def read_result(path: Path) -> Result:
    """Raises :class:`MeasureFailed`, naming the file and the field."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise MeasureFailed(f"{path} cannot be read ({error.strerror}). Give a result.json.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MeasureFailed(f"{path} is no result of governor bench: {error}") from error
    if result.schema_version != SCHEMA_VERSION:
        raise MeasureFailed(
            f"{path} has schema {result.schema_version}, this governor reads {SCHEMA_VERSION}. Measure again."
        )
    return result


def result_schema() -> bytes:
    """JSON Schema of the file."""
    schema = msgspec.json.schema(Result)
    return msgspec.json.format(msgspec.json.encode(schema, order="sorted"), indent=2) + b"\n"
