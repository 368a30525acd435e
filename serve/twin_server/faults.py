"""What goes wrong on purpose, and when: typed values, and counters instead of chance.

The same values come by the admin route and in a script's rules. ``{"kind": "cut", "after_tokens": 3, "every": 5}`` cuts
the answer of each fifth request that is asked of it. Seconds are those of the engine's clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias, TypeVar

import msgspec

_Ordinal: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
_ErrorStatus: TypeAlias = Annotated[int, msgspec.Meta(ge=400, le=599)]


class _Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    every: _Ordinal = 1
    """Strikes at each so-manieth occasion."""
    first: _Ordinal | None = None
    """The occasion it strikes at first, from 1; ``None``: ``every``."""
    times: _Ordinal | None = None
    """How often it strikes; ``None``: no end."""

    def strikes_at(self, occasion: int) -> bool:
        """Occasions are counted from 1."""
        since = occasion - (self.first or self.every)
        return since >= 0 and since % self.every == 0 and (self.times is None or since // self.every < self.times)


class Delay(_Fault, frozen=True, tag="delay"):
    """Silence before the answer's head."""

    seconds: _Seconds


class Cut(_Fault, frozen=True, tag="cut"):
    """The connection breaks."""

    after_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0


class ErrorFrame(_Fault, frozen=True, tag="error_frame"):
    """The stream ends with an error event."""

    after_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    message: str = "an error inside the engine"
    status: _ErrorStatus = 500


class HttpError(_Fault, frozen=True, tag="http_error"):
    """Refused before anything is done."""

    status: _ErrorStatus = 503
    message: str = "refused on purpose"
    retry_after_s: int | None = None


class DeadScheduler(_Fault, frozen=True, tag="dead_scheduler"):
    """From this request on none is answered, and the loads stay what they were, until the faults are replaced."""


class LostAbort(_Fault, frozen=True, tag="lost_abort"):
    """An abort is answered and has no effect."""


class SlowStart(_Fault, frozen=True, tag="slow_start"):
    """Not ready for so long after the start."""

    seconds: _Seconds


class KvGap(_Fault, frozen=True, tag="kv_gap"):
    """Batches of KV events are numbered and not published."""

    batches: _Ordinal = 1


RequestFault = Delay | Cut | ErrorFrame | HttpError | DeadScheduler
Fault = RequestFault | LostAbort | SlowStart | KvGap

_Struck = TypeVar("_Struck", bound=_Fault)


def read_faults(data: bytes) -> tuple[Fault, ...]:
    """A JSON list, as the admin route has it. Raises :class:`msgspec.ValidationError`, :class:`msgspec.DecodeError`."""
    return msgspec.json.decode(data, type=tuple[Fault, ...])


class Faults:
    """Those in force, with their counters."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.replace(faults)

    def replace(self, faults: Iterable[Fault]) -> None:
        """All that was is over, and everything is counted anew."""
        self.all = tuple(dict.fromkeys(faults))
        self._occasions: dict[tuple[str, _Fault], int] = {}
        self._dead: DeadScheduler | None = None
        self._unpublished = 0

    @property
    def is_dead(self) -> bool:
        return self._dead is not None

    @property
    def not_ready_s(self) -> float:
        return max((fault.seconds for fault in self.all if isinstance(fault, SlowStart)), default=0.0)

    def on_request(self, scripted: Iterable[RequestFault] = (), rule: str = "") -> list[RequestFault]:
        """What happens to this request, by what holds for all and by the script's rule of that name."""
        if self._dead is None:
            general = self._struck(fault for fault in self.all if isinstance(fault, RequestFault))
            struck = [*general, *self._struck(scripted, rule)]
            self._dead = next((fault for fault in struck if isinstance(fault, DeadScheduler)), None)
            if self._dead is None:
                return struck
        return [self._dead]

    def on_abort(self) -> bool:
        """Whether this abort is lost."""
        return bool(self._struck(fault for fault in self.all if isinstance(fault, LostAbort)))

    def on_kv_batch(self) -> bool:
        """Whether this batch is not published."""
        gaps = self._struck(fault for fault in self.all if isinstance(fault, KvGap))
        self._unpublished = max([self._unpublished, *(gap.batches for gap in gaps)])
        is_lost = self._unpublished > 0
        self._unpublished -= is_lost
        return is_lost

    def _struck(self, faults: Iterable[_Struck], rule: str = "") -> list[_Struck]:
        """Count an occasion of each."""
        struck = []
        for fault in faults:
            occasion = self._occasions[rule, fault] = self._occasions.get((rule, fault), 0) + 1
            if fault.strikes_at(occasion):
                struck.append(fault)
        return struck
