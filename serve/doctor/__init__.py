"""Says what is wrong with a machine and an engine profile before the engine finds out."""

from serve.doctor.case import Case
from serve.doctor.diagnose import diagnose, suggested_profile
from serve.doctor.facts import Facts
from serve.doctor.findings import Finding, Severity
from serve.doctor.survey import survey

__all__ = ["Case", "Facts", "Finding", "Severity", "diagnose", "suggested_profile", "survey"]
