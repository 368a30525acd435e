"""The engine that tests run on the CPU, as the twin's settings: as its profile has it, and with the tests' small pools.

Sizes are what the running engine says (its log, ``/server_info``): L2 is twice L1 and one page, or one state, more; a
file of L3 is 16,384 bytes for a page, 53,760 for a state.
"""

from __future__ import annotations

import msgspec

from serve.twin.engine_model import EngineSettings
from serve.twin.machine import Machine
from serve.twin.tiers_model import PrefetchPolicy, TierSettings

_PAGE_TOKENS = 64
_TOKEN_BYTES = 16_384 // _PAGE_TOKENS


def _tiers(device_tokens: int, device_slots: int) -> TierSettings:
    return TierSettings(
        device_tokens=device_tokens,
        device_slots=device_slots,
        host_tokens=2 * device_tokens + _PAGE_TOKENS,
        host_slots=2 * device_slots + 1,
        storage_tokens=4_000_000_000 // _TOKEN_BYTES,
        storage_state_tokens=53_760 // _TOKEN_BYTES,
        page_tokens=_PAGE_TOKENS,
        track_interval_tokens=64,
        prefetch_policy=PrefetchPolicy.WAIT_COMPLETE,
    )


PROFILE_ENGINE = EngineSettings(
    tiers=_tiers(147_456, 128),
    context_tokens=131_072,
    max_running_requests=4,
    chunked_prefill_tokens=2048,
    prefill_decode_interval=1,
    priority_scheduling=True,
    priority_preemption=False,
)


def small(machine: Machine) -> Machine:
    """The same machine with the pools of :class:`tests.sglang.server.ServerOptions`, which a few contexts fill."""
    engine = msgspec.structs.replace(
        machine.engine, tiers=_tiers(8192, 32), context_tokens=8192, chunked_prefill_tokens=1024
    )
    return msgspec.structs.replace(machine, engine=engine)
