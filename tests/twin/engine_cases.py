"""Small engines and requests for tests of the engine model, where every second can be told by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from serve.twin.cost import Cost
from serve.twin.engine import TwinEngine
from serve.twin.engine_model import Admitted, Ask, Ended, EngineEvent, EngineSettings, Retracted, Wrote
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import TierSettings
from serve.twin.tiers_storage import Storage

SECOND_A_TOKEN = Cost(
    prefill_token_s=1.0,
    prefill_square_s=0.0,
    decode_step_s=1.0,
    decode_request_s=0.0,
    decode_kv_token_s=0.0,
)
"""A token of a prompt is computed in a second, a decode step takes one."""


def engine(
    cost: Cost = SECOND_A_TOKEN,
    *,
    tiers: dict[str, Any] | None = None,
    storage: Storage | None = None,
    **settings: Any,
) -> TwinEngine:
    """1,000 tokens of L1 in pages of 10, a window as large; dense, with no L2."""
    pools = {"device_tokens": 1000, "page_tokens": 10, "state_chunk_tokens": 10, "track_interval_tokens": 20}
    given = {"context_tokens": 1000, "chunked_prefill_tokens": 10_000, "max_prefill_tokens": 100_000} | settings
    return TwinEngine(EngineSettings(tiers=TierSettings(**(pools | (tiers or {}))), **given), cost, storage)


def costing(**seconds: float) -> Cost:
    return msgspec.structs.replace(SECOND_A_TOKEN, **seconds)


def ask(rid: str, prompt: int | Key, writes: int, limit: int | None = None, **other: Any) -> Ask:
    """Its own text, unless ``prompt`` is given as one; ``limit``: ``max_new_tokens`` where it is not ``writes``."""
    source = sum(ord(letter) * 31**place for place, letter in enumerate(rid))
    return Ask(
        rid=rid,
        prompt=prompt if isinstance(prompt, Key) else Key([(2 * source, 0, prompt)]),
        output=Key([(2 * source + 1, 0, max(writes, limit or 0))]),
        writes_tokens=writes,
        max_new_tokens=writes if limit is None else limit,
        **other,
    )


def run_out(twin: TwinEngine) -> list[EngineEvent]:
    """Until there is nothing left to do, counting its books again at every stop."""
    events: list[EngineEvent] = []
    while (when := twin.next_at()) is not None:
        events += twin.run(when)
        twin.tiers.check_integrity()
    return events


def admitted(events: list[EngineEvent]) -> dict[str, float]:
    """When each was first admitted."""
    times: dict[str, float] = {}
    for event in events:
        if isinstance(event, Admitted):
            times.setdefault(event.rid, event.at)
    return times


def admitted_order(events: list[EngineEvent]) -> list[str]:
    return [event.rid for event in events if isinstance(event, Admitted)]


def ended(events: list[EngineEvent]) -> dict[str, Ended]:
    return {event.rid: event for event in events if isinstance(event, Ended)}


def end_times(events: list[EngineEvent]) -> dict[str, float]:
    return {rid: event.at for rid, event in ended(events).items()}


def retracted(events: list[EngineEvent]) -> list[str]:
    return [event.rid for event in events if isinstance(event, Retracted)]


def writes_of(events: list[EngineEvent], rid: str) -> list[tuple[float, int, int]]:
    return [(event.at, event.start, event.stop) for event in events if isinstance(event, Wrote) and event.rid == rid]
