"""Changes to foreign sources and to a model's configuration that a machine needs, each reversible."""

from serve.patches.gates import GATES, Gate, judge
from serve.patches.model import Facts, Look, Patch, Place, Status
from serve.patches.patcher import Change, Patcher, PatchReport, engine_version
from serve.patches.shelf import ALL, by_id

__all__ = [
    "ALL",
    "GATES",
    "Change",
    "Facts",
    "Gate",
    "Look",
    "Patch",
    "PatchReport",
    "Patcher",
    "Place",
    "Status",
    "by_id",
    "engine_version",
    "judge",
]
