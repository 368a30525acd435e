"""W31 steer-between-call-and-result, compression's half: what stands between a call and its result stays or goes with
them, and is never the place of a cut. Passing it on, and repairing it, is the gateway's half.
"""

from __future__ import annotations

import msgspec
import pytest

from bench.histories import asks, call, message, prose, result, seeded
from governor.compress.messages import read_message
from governor.compress.plan import Plan
from governor.compress.rounds import rounds_of
from tests.compressing import check, limits_for, shorten
from tests.scenario import load_case

(VARIANT,) = load_case("W31").variants
assert VARIANT.request is not None
THE_CASE = [msgspec.json.encode(each) for each in VARIANT.request.body["messages"]]


def test_W31_the_group_is_one_unit() -> None:
    (only,) = rounds_of([read_message(raw) for raw in THE_CASE]).rounds
    assert [(unit.start, unit.end) for unit in only.units] == [(0, 1), (1, 4)]


@pytest.mark.parametrize("target", [0.8, 0.6, 0.4])
@pytest.mark.parametrize("results", [1, 2])
def test_W31_no_cut_inside(results: int, target: float) -> None:
    messages = [message("user", "search")]
    groups: list[range] = []
    for number in range(20):
        ids = [f"s{number}_{n}" for n in range(results)]
        texts = [result(each, prose(seeded(number), 120)) for each in ids]
        start = len(messages)
        messages += [asks(*map(call, ids)), *texts[:-1], message("user", "stop, use the other one"), texts[-1]]
        groups.append(range(start, len(messages)))
        messages.append(message("assistant", prose(seeded(number), 30)))
    messages.append(message("user", "and now?"))
    limits = limits_for(messages, target=target)
    made = shorten(messages, limits)
    assert isinstance(made, Plan)
    check(messages, made, limits)
    present = set(made.origins)
    for group in groups:
        assert len({index in present for index in group}) == 1
