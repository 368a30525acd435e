"""``python -m bench.stable``: what keeping a prefix stable costs a turn that needs nothing, and turns that need it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console

from bench.report import Sheet, figure, machine, markdown, print_sheets
from governor.output.stable import Stabiliser
from governor.policy.model import Interleaved, RequestPolicy, SystemBytes, ToolOrder
from governor.types import AgentName, SessionId
from governor.wire.request import GenerationRequest, parse
from serve.engine import Endpoint

GOAL_MS = 1.0
"""Of a turn that needs nothing."""
OFF = RequestPolicy()
ON = RequestPolicy(system_bytes=SystemBytes.PIN, tool_order=ToolOrder.BY_NAME, interleaved=Interleaved.REPAIR)
_STEPS = 105
_TOOLS = 40


def request(*, clock: str = "12:00", steered: bool = False, by_name: bool = True, tiny: int = 0) -> GenerationRequest:
    """600 KB: a system prompt of 48 KB with a clock in one of its lines, 40 tools, a chain of calls and results; or,
    with ``tiny``, so many messages of a few characters."""
    rules = "You are a helper; rules may apply, and other things too.\n" * 420
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"{rules}It is {clock}.\n{rules}"}]
    messages += [{"role": "user", "content": "hi"}] * tiny
    for number in range(0 if tiny else _STEPS):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "t00", "arguments": "{}"}}
        messages.append({"role": "user", "content": "x y z\n" * 300})
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages += [{"role": "user", "content": "stop"}] if steered else []
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "lorem ipsum\n" * 200})
    tools = [_tool(f"t{number:02}") for number in range(_TOOLS)]
    body = {"model": "m", "messages": messages, "tools": tools if by_name else tools[::-1]}
    return parse(Endpoint.CHAT, msgspec.json.encode(body))


def _tool(name: str) -> dict[str, Any]:
    properties = {f"p{number}": {"description": "x " * 20, "type": "string"} for number in range(6)}
    parameters = {"properties": properties, "required": ["p0"], "type": "object"}
    return {
        "type": "function",
        "function": {"name": name, "description": "does a thing " * 60, "parameters": parameters},
    }


def cost_ms(requests: Sequence[GenerationRequest], policy: RequestPolicy, runs: int) -> float:
    """Of the last of these turns, which a session sends again and again; the best of the runs."""
    stabiliser, best = Stabiliser(), float("inf")
    for _ in range(runs + 1):
        for sent in requests:
            began = time.process_time()
            stabiliser.stabilised(AgentName("a"), SessionId("s"), sent, policy)
            last = time.process_time() - began
        best = min(best, last)
    return best * 1000


def sheet(runs: int) -> Sheet:
    usual, later = request(), request(clock="12:01")
    cases = (
        ("nothing to do, as shipped", (usual,), OFF),
        ("nothing to do, all switched on", (usual,), ON),
        ("nothing to do, 5,000 tiny messages, all switched on", (request(tiny=5000),), ON),
        ("the clock moved, as shipped", (usual, later), OFF),
        ("the clock moved, pinned", (usual, later), ON),
        ("tools the other way round, all switched on", (request(by_name=False),), ON),
        (f"{_STEPS} words between calls and results, all switched on", (request(steered=True),), ON),
    )
    rows = [
        (what, f"{len(sent[0].json.body) / 1000:,.0f}", figure(cost_ms(sent, policy, runs), 3))
        for what, sent, policy in cases
    ]
    note = f"Goal: {GOAL_MS:g} ms where nothing is to do. What changes a request reads it once more."
    return Sheet(title="Keeping a prefix stable", columns=("turn", "KB", "ms of CPU"), rows=rows, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stable", description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="runs of each; the best counts")
    parser.add_argument("--markdown", action="store_true", help="print the table as the documentation keeps it")
    options = parser.parse_args()
    where = machine("bench.stable")
    sheets = [sheet(options.runs)]
    if options.markdown:
        Console().print(markdown(sheets, where), soft_wrap=True, markup=False, highlight=False)
    else:
        print_sheets(sheets, where, Console())


if __name__ == "__main__":
    main()
