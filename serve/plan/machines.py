"""Published measurements of real machines, by the profile that stands for them. Data.

What people posted of their engines: capacities as the engine printed them, times to the first token. A plan shows them
beside its own figures, and decides by them where the profile is the one that was measured.
"""

from __future__ import annotations

import msgspec

from serve.plan.cost import CostTable, fit_line, fit_prefill
from serve.plan.known import QWEN_27B
from serve.plan.shape import ModelShape


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Capacities as an engine printed them at its start; ``None`` is unknown."""

    source: str
    kv_tokens: int | None = None
    state_slots: int | None = None
    host_kv_tokens: int | None = None
    host_state_slots: int | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    shape: ModelShape
    """Of the model that ran."""
    hardware: str
    capacity: Measured
    costs: CostTable


_CONTEXTS = (65_536, 122_880, 196_608)
_AM5_L1 = tuple(zip(_CONTEXTS, (0.431, 0.711, 1.055), strict=True))
_AM5_L2 = tuple(zip(_CONTEXTS, (0.546, 0.896, 1.406), strict=True))
_AM5_COLD = tuple(zip(_CONTEXTS, (50.78, 121.49, 243.81), strict=True))

BY_PROFILE = {
    "rx7900xtx-tp2": Machine(
        id="2x7900xtx-am5",
        shape=QWEN_27B,
        hardware="2x RX 7900 XTX 24 GB, Ryzen 9600X, 64 GB DDR5, NVMe PCIe 3.0 x4",
        # With --hicache-size 20, which is the profile's.
        capacity=Measured(source="2x7900xtx-am5", kv_tokens=231_914, host_kv_tokens=423_593),
        costs=CostTable(
            source="2x7900xtx-am5", prefill=fit_prefill(_AM5_COLD), l1=fit_line(_AM5_L1), l2=fit_line(_AM5_L2)
        ),
    ),
    "rtx4090-48g": Machine(
        id="4090-48g",
        shape=QWEN_27B,
        hardware="RTX 4090 48 GB, 62 GB RAM",
        capacity=Measured(source="4090-48g", kv_tokens=270_278, host_kv_tokens=504_447),
        costs=CostTable(source="4090-48g"),
    ),
    "rtx5090-32g": Machine(
        id="5090-32g",
        shape=QWEN_27B,
        hardware="RTX 5090 32 GB, 128 GB RAM, WSL2",
        capacity=Measured(source="5090-32g", kv_tokens=121_000),
        costs=CostTable(source="5090-32g", prefill=fit_prefill([(50_000, 7.73)]), l1=fit_line([(50_000, 0.44)])),
    ),
}


def machine_for(profile: str, shape: ModelShape) -> Machine | None:
    """The machine that ran this profile with a model of this shape."""
    machine = BY_PROFILE.get(profile)
    if machine is None:
        return None
    same = (
        shape.kv_bytes_per_token() == machine.shape.kv_bytes_per_token()
        and shape.state_bytes() == machine.shape.state_bytes()
        and shape.quantisable_parameters == machine.shape.quantisable_parameters
    )
    return machine if same else None
