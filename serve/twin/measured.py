"""What was measured of one engine on one machine: rows of a bench, and the settings they were measured with.

This is what a machine of the twin is fitted from (``fit.py``). A file is TOML or JSON with the fields of
:class:`Measured`; ``docs/design/twin-cost.md`` shows one. Times are seconds, sizes tokens, rates tokens a second, and
each is of the whole engine, whatever the number of its ranks.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from serve.errors import ServeError
from serve.twin.engine_model import EngineSettings
from serve.twin.machine import named_field

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
MachineName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Depth = Annotated[int, msgspec.Meta(ge=0)]

CostField = Literal[
    "prefill_token_s",
    "prefill_square_s",
    "prefill_step_s",
    "decode_step_s",
    "decode_request_s",
    "decode_kv_token_s",
    "request_s",
    "request_token_s",
    "host_read_token_s",
    "host_read_s",
    "host_write_token_s",
    "storage_read_token_s",
    "storage_read_s",
    "storage_write_token_s",
]
"""A coefficient of :class:`~serve.twin.cost.Cost`."""


class HitTier(StrEnum):
    """The deepest tier that the prefix came from, as ``cached_tokens_details`` names it."""

    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"


class GapKind(StrEnum):
    """What lets a decode go on while another request is prefilled."""

    PLAIN = "plain"
    """Nothing."""
    INTERVAL = "interval"
    """``--prefill-decode-interval``: a decode step between two chunks."""
    MIXED = "mixed"
    """``--enable-mixed-chunk``: decodes ride along with the chunks."""


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all rows have."""

    name: str = ""
    """How tables call it; made of the figures where it is empty."""
    fitted: bool = True
    """``false``: the row is only checked, the fit does not look at it."""


class PrefillRow(Row, frozen=True, kw_only=True):
    """``[[prefill]]``: prompts of which nothing is cached, on an engine with nothing else to do."""

    context: Count
    """Of each prompt."""
    requests: Count = 1
    """At once."""
    seconds: Positive | None = None
    """To the first token, of the last of them."""
    rate: Positive | None = None
    """Or: prompt tokens, of all together, over these seconds."""

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.rate is None):
            raise ValueError("give either seconds or rate")

    @property
    def measured_s(self) -> float:
        return self.seconds or self.context * self.requests / (self.rate or 1.0)


class HitRow(Row, frozen=True, kw_only=True):
    """``[[hit]]``: one prompt of which most is cached, on an engine with nothing else to do."""

    tier: HitTier
    context: Count
    """Of the prompt, the tail included."""
    tail: Count
    """Tokens at its end that have to be computed: what is new, and what lies behind the last state or whole page."""
    seconds: Positive
    """To the first token."""

    def __post_init__(self) -> None:
        if self.tail > self.context:
            raise ValueError("tail is longer than context")


class DecodeRow(Row, frozen=True, kw_only=True):
    """``[[decode]]``: requests that write at once, prefills not counted."""

    requests: Count = 1
    context: Depth
    """Of each, when it begins to write."""
    output: Count
    """What each writes while it is measured."""
    rate: Positive | None = None
    """Of all together, in tokens as usage counts them (not in chunks of a stream)."""
    request_rate: Positive | None = None
    """Or: of each."""
    accept_length: Annotated[float, msgspec.Meta(ge=1)] | None = None
    """Tokens a step and request, with speculation; the engine's where it is not given."""

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.request_rate is None):
            raise ValueError("give either rate or request_rate")

    @property
    def measured_rate(self) -> float:
        return self.rate or (self.request_rate or 0.0) * self.requests


class GapRow(Row, frozen=True, kw_only=True):
    """``[[gap]]``: the longest silence of a stream while another prompt is prefilled. Checked, never fitted."""

    kind: GapKind
    context: Count
    """Of the other's prompt, of which nothing is cached."""
    seconds: Positive


class TogetherRow(Row, frozen=True, kw_only=True):
    """``[[together]]``: do these requests decode at once, or does one wait for another's end? Checked, never fitted."""

    requests: Count
    context: Count
    output: Count
    """``max_tokens`` of each."""
    fits: bool


class Assumption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[assume]]``: a coefficient for the case that no row tells it. Where a row does, this is not used."""

    field: CostField
    value: Annotated[float, msgspec.Meta(ge=0)]
    reason: Annotated[str, msgspec.Meta(min_length=1)]
    """What it was taken from."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of measurements."""

    name: MachineName
    """Of the machine; what follows ``twin:`` in ``--profile``."""
    summary: str
    sources: tuple[str, ...] = ()
    """Who measured it, on what."""
    assumed: tuple[str, ...] = ()
    """What is in here and nobody has measured: settings, depths, tails."""
    model: str = "twin"
    """Served name."""
    engine: EngineSettings
    prefill: tuple[PrefillRow, ...] = ()
    hit: tuple[HitRow, ...] = ()
    decode: tuple[DecodeRow, ...] = ()
    gap: tuple[GapRow, ...] = ()
    together: tuple[TogetherRow, ...] = ()
    assume: tuple[Assumption, ...] = ()


def read_measured(path: Path) -> Measured:
    """A file of measurements, TOML or (``.json``) JSON. Raises :class:`~serve.errors.ServeError`, naming the field."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ServeError(f"{path} cannot be read ({error.strerror}). Give a file of measurements.") from error
    return parse_measured(raw, str(path), is_json=path.suffix == ".json")


def shipped_measured(name: str) -> Measured:
    """What the shipped machine ``name`` is fitted from. Raises :class:`~serve.errors.ServeError`."""
    source = resources.files("serve.twin").joinpath("machines", "measured", f"{name}.toml")
    if not source.is_file():
        raise ServeError(f"No measurements are shipped for {name!r}; governor twin machines lists what there is.")
    return parse_measured(source.read_bytes(), name)


def parse_measured(raw: bytes, origin: str, *, is_json: bool = False) -> Measured:
    """``origin`` is how errors call the file. Raises :class:`~serve.errors.ServeError`, naming the field."""
    try:
        if is_json:
            return msgspec.json.decode(raw, type=Measured)
        return msgspec.toml.decode(raw, type=Measured)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServeError(f"{origin}: {named_field(error)}. Correct it and fit again.") from error
