"""Random operations on the twin's tiers and on SGLang's own cache classes, answer by answer.

``python -m tests.sglang.oracle --steps 10000`` plays every configuration and prints how far the two agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import msgspec

from serve.install import InstalledEngine
from tests.sglang.engine import installed_engine
from tests.twin.cases import CASES, MORE_CASES, Case
from tests.twin.play import Answer, Operation, Play, Twin

DRIVER = Path(__file__).with_name("oracle_driver.py")
BATCH = 100
CHECK_EVERY = 20
AGREEMENT = 0.99
"""Of matches, below which the model is no model."""


class Driver:
    """The engine's side, a process in its own environment."""

    def __init__(self, engine: InstalledEngine | None = None) -> None:
        engine = engine or installed_engine()
        env = {**os.environ, **engine.env, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
        for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONWARNINGS"):
            env.pop(name, None)
        self._process = subprocess.Popen(
            [str(engine.python), str(DRIVER)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def build(self, case: Case) -> dict[str, int]:
        """A cache in place of the one before; what its pools came out as."""
        sizes: dict[str, int] = self._ask(case.pools())
        return sizes

    def do(self, operations: list[Operation]) -> list[Answer]:
        answers: list[Answer] = self._ask(msgspec.json.encode(operations))
        return answers

    def _ask(self, line: bytes) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the driver ended with {process.wait()}")
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(timeout=60)


class Report:
    """How far the two agreed."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.steps = 0
        self.matches = 0
        self.agreed = 0
        self.served: Counter[str] = Counter()
        """Matches by the engine's tier."""
        self.differences: Counter[str] = Counter()
        """By operation and field."""
        self.from_storage = 0
        """Prefetches that brought something from L3."""
        self.first: str | None = None
        self.books = 0
        """Steps after which all pools had the same free."""
        self.twin_s = 0.0
        self.engine_s = 0.0

    @property
    def rate(self) -> float:
        return self.agreed / self.matches if self.matches else 1.0

    def count(self, operation: Operation, engine: Answer, twin: Answer) -> None:
        self.steps += 1
        name = operation[0]
        failed = [side for side, answer in (("engine", engine), ("twin", twin)) if "error" in answer]
        fields = [field for field in engine if field not in ("free", "error") and engine[field] != twin.get(field)]
        if len(failed) == 1:
            fields.append(f"only the {failed[0]} failed")
        self.books += engine["free"] == twin["free"]
        if engine["free"] != twin["free"]:
            self.differences["books"] += 1
        for field in fields:
            self.differences[f"{name}: {field}"] += 1
        if name in ("match", "admit") and not failed:
            self.matches += 1
            self.agreed += all(engine[field] == twin[field] for field in ("device", "host"))
            self.served[_tier(engine, self.case)] += 1
        self.from_storage += engine.get("loaded", 0) > 0
        if self.first is None and (fields or engine["free"] != twin["free"]):
            self.first = f"step {self.steps}: {operation}\n  engine {engine}\n  twin   {twin}"

    def line(self) -> str:
        served = ", ".join(f"{name} {count}" for name, count in sorted(self.served.items()))
        return (
            f"{self.case.name:22s} {self.steps:6d} steps  {self.agreed}/{self.matches} matches ({self.rate:.2%})  "
            f"books {self.books / max(self.steps, 1):.2%}  [{served}; from L3 {self.from_storage}]  "
            f"engine {self.engine_s:.0f} s  "
            f"twin {self.twin_s:.1f} s  {dict(self.differences) or ''}"
        )


def play(
    driver: Driver, case: Case, steps: int, seed: int = 1, *, stops: bool = False, but: Mapping[str, Any] | None = None
) -> Report:
    """``stops``: at the first difference; ``but``: settings that the twin has and the engine has not."""
    report = Report(case)
    twin = Twin(msgspec.structs.replace(case.settings(driver.build(case)), **(but or {})))
    operations = Play(case, twin, Random(seed)).operations()  # noqa: S311 - a game, not a secret
    while report.steps < steps and not (stops and report.first):
        batch: list[Operation] = []
        answers: list[Answer] = []
        for _ in range(min(BATCH, steps - report.steps)):
            operation = next(operations)
            batch.append(operation)
            began = time.perf_counter()
            answers.append(twin.do(operation))
            report.twin_s += time.perf_counter() - began
            if len(batch) % CHECK_EVERY == 0:
                twin.tiers.check_integrity()
        began = time.perf_counter()
        for operation, engine, own in zip(batch, driver.do(batch), answers, strict=True):
            report.count(operation, engine, own)
        report.engine_s += time.perf_counter() - began
    return report


def _tier(answer: Answer, case: Case) -> str:
    if answer["host"] or answer.get("loads_state"):
        return "L3" if case.is_buffer_only else "L2"
    return "L1" if answer["device"] else "miss"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.oracle")
    parser.add_argument("cases", nargs="*", help="names; all if none is given")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stop", action="store_true", help="at the first difference")
    asked = parser.parse_args()
    worst = 1.0
    with Driver() as driver:
        for case in (*CASES, *MORE_CASES):
            if asked.cases and case.name not in asked.cases:
                continue
            report = play(driver, case, asked.steps, asked.seed, stops=asked.stop)
            worst = min(worst, report.rate)
            print(report.line(), flush=True)
            if report.first:
                print(report.first, flush=True)
    sys.exit(worst < AGREEMENT)


if __name__ == "__main__":
    main()
