"""Which suites there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from governor.measure.options import Options
from governor.measure.session import Session, Step
from governor.measure.suites import concurrency, decode, tiers


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """``steps`` makes the parts of a run; what cannot be measured on this engine it skips in the session."""

    name: str
    summary: str
    """For the command's help."""
    steps: Callable[[Session, Options], Sequence[Step]]


SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        suite.name: suite
        for suite in (
            Suite(name="tiers", summary="time to a first token, cold and from L1, L2, L3", steps=tiers.steps),
            Suite(name="decode", summary="decode rate by depth, accept length", steps=decode.steps),
            Suite(name="concurrency", summary="1, 2, 4, 8 requests at once", steps=concurrency.steps),
        )
    }
)
