"""``python -m bench.compress``: what planning a compression costs, and what it frees, on histories of every shape.

Sizes are the estimate's, since it is the slower of the two counters on messages that it has not seen; messages that the
client sent were counted before and cost nothing here, as in the gateway.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections.abc import Sequence

import msgspec
from rich.console import Console

from bench.histories import SHAPES
from bench.report import Sheet, figure, machine, markdown, print_sheets
from governor.compress.limits import Limits
from governor.compress.plan import NoPlan, Plan, plan
from governor.policy.model import CompressionPolicy
from governor.tokens.counter import EstimateCounter
from governor.tokens.digests import decode_fields
from governor.tokens.estimate import estimate_text

GOAL_MS = 20.0
GOAL_TOKENS = 150_000
GOAL_MEMORY = 3.0
"""Peak memory of planning over the size of the messages."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One shape, once under one target."""

    shape: str
    target: float
    messages: int
    body_bytes: int
    before_tokens: int
    made: Plan | NoPlan
    cpu_ms: float
    """The best of the runs: what the code costs, not what else the machine did."""
    peak_bytes: int

    @property
    def memory(self) -> float:
        return self.peak_bytes / self.body_bytes

    @property
    def ms_at_goal(self) -> float:
        """For a history of the goal's size, the cost being linear."""
        return self.cpu_ms * GOAL_TOKENS / self.before_tokens


_COUNTER = EstimateCounter()


def size_of(raw: bytes) -> int:
    """As the estimate has it, but with reasoning, of which it cannot tell whether a template shows it."""
    tokens = _COUNTER.message(raw).usual
    if b'"reasoning_content"' in raw:
        tokens += estimate_text(str((decode_fields(raw) or {}).get("reasoning_content")).encode()).usual
    return round(tokens)


def limits_at(tokens: int, target_tokens: int) -> Limits:
    """Limits under which a history of so many tokens is just over its trigger; all else is in proportion."""
    return Limits(
        trigger_tokens=tokens,
        target_tokens=target_tokens,
        gain_tokens=tokens // 10,
        recent_tokens=int(target_tokens * 0.3),
        oversized_tokens=int(target_tokens * 0.5),
    )


def measure(shape: str, target: float, runs: int) -> Measured:
    """Plan for ``shape`` so that ``target`` of its tokens are left."""
    messages, policy = SHAPES[shape](), CompressionPolicy()
    sizes = [size_of(raw) for raw in messages]
    tokens = sum(sizes)
    limits = limits_at(tokens, int(tokens * target))

    def run() -> Plan | NoPlan:
        return plan(messages, sizes, size_of=size_of, fixed_tokens=0, policy=policy, limits=limits)

    made, best = run(), float("inf")
    for _ in range(runs):
        gc.collect()
        began = time.process_time()
        run()
        best = min(best, time.process_time() - began)
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Measured(
        shape=shape,
        target=target,
        messages=len(messages),
        body_bytes=sum(map(len, messages)),
        before_tokens=tokens,
        made=made,
        cpu_ms=best * 1000,
        peak_bytes=peak,
    )


def sheet(all_measured: Sequence[Measured]) -> Sheet:
    rows = [
        (
            each.shape,
            f"{each.target:.0%}",
            f"{each.messages:,}",
            f"{each.body_bytes / 1000:,.0f}",
            f"{each.before_tokens:,}",
            f"{each.made.after_tokens:,}" if isinstance(each.made, Plan) else "-",
            _freed(each),
            figure(each.cpu_ms),
            figure(each.ms_at_goal),
            figure(each.memory, 2),
        )
        for each in all_measured
    ]
    return Sheet(
        title="Planning a compression",
        columns=(
            "history",
            "target",
            "messages",
            "KB",
            "tokens\nbefore",
            "tokens\nafter",
            "freed by",
            "ms of CPU",
            "ms at\n150K",
            "peak memory\n/ body",
        ),
        rows=rows,
        note=f"Goals: {GOAL_MS:g} ms at {GOAL_TOKENS:,} tokens, memory within {GOAL_MEMORY:g}x the body.",
    )


def _freed(each: Measured) -> str:
    if isinstance(each.made, NoPlan):
        return f"no plan: {each.made.held_tokens:,} tokens are protected"
    return ", ".join(f"{stage.value} {tokens:,}" for stage, tokens in each.made.freed_by_stage.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compress", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="runs of each; the best counts")
    parser.add_argument("--markdown", action="store_true", help="print the table as the documentation keeps it")
    options = parser.parse_args()
    where = machine("bench.compress")
    sheets = [sheet([measure(shape, target, options.runs) for shape in SHAPES for target in (0.5, 0.25)])]
    if options.markdown:
        Console().print(markdown(sheets, where), soft_wrap=True, markup=False, highlight=False)
    else:
        print_sheets(sheets, where, Console())


if __name__ == "__main__":
    main()
