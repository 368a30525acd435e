"""Says what is wrong with a machine and an engine profile before the engine finds out."""

from serve.doctor.case import Case
from serve.doctor.diagnose import diagnose, suggested_profile
from serve.doctor.facts import Facts
from serve.doctor.findings import Finding, Severity
from serve.doctor.probe_gpu import probe_gpus
from serve.doctor.survey import survey
from serve.doctor.system import LocalSystem, System

__all__ = [
    "Case",
    "Facts",
    "Finding",
    "LocalSystem",
    "Severity",
    "System",
    "diagnose",
    "probe_gpus",
    "suggested_profile",
    "survey",
]
