"""Measuring an engine as people publish it: suites of cases, and a result that two people can compare."""

from governor.measure.result import Result, read_result, write_result
from governor.measure.run import run_suite

__all__ = ["Result", "read_result", "run_suite", "write_result"]
