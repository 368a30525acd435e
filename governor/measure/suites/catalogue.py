"""Which suites there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from governor.measure.options import Options
from governor.measure.session import Session, Step
from governor.measure.suites import capacity, concurrency, decode, image, incident, interference, shapes, soak, tiers


def _fit_steps(session: Session, options: Options) -> list[Step]:
    """What a twin is fitted from. Decode rates by depth are those of one request in *concurrency* as well; their cases
    are told apart by their contexts."""
    return [
        *tiers.steps(session, options),
        *decode.steps(session, options),
        *concurrency.steps(session, msgspec.structs.replace(options, contexts=None)),
    ]


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
            Suite(name="shapes", summary="what is reused of a continuation, a branch, a repeat", steps=shapes.steps),
            Suite(name="decode", summary="decode rate by depth, accept length", steps=decode.steps),
            Suite(name="concurrency", summary="1, 2, 4, 8 requests at once", steps=concurrency.steps),
            Suite(name="interference", summary="longest silence of A while B is prefilled", steps=interference.steps),
            Suite(name="capacity", summary="longest context of which N decode at once", steps=capacity.steps),
            Suite(name="incident", summary="a hog beside three small agents, in small", steps=incident.steps),
            Suite(name="soak", summary="four agents for minutes or hours; what leaks", steps=soak.steps),
            Suite(name="image", summary="coming back to an image, where the model takes them", steps=image.steps),
            Suite(name="fit", summary="tiers, decode, concurrency: what governor twin fit wants", steps=_fit_steps),
        )
    }
)
