"""Live proof that each cache tier of a running engine gives back what was put in."""

from serve.canary.cases import NoRoom
from serve.canary.model import CanaryEngine, Report, Tier, Verdict
from serve.canary.run import run_canary

__all__ = ["CanaryEngine", "NoRoom", "Report", "Tier", "Verdict", "run_canary"]
