"""The twin's tiers against SGLang's own cache classes, answer by answer.

All steps together are about 17,000; ``python -m tests.sglang.oracle`` plays 10,000 on each configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from serve.twin.tiers_model import EvictionPolicy, WritePolicy
from tests.sglang.oracle import Driver, play
from tests.twin.cases import CASES, MORE_CASES, Case

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with Driver() as driver:
        yield driver


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_the_engine_as_it_is_by_default(driver: Driver, case: Case) -> None:
    report = play(driver, case, 1500)
    assert not report.differences, f"{report.line()}\n{report.first}"
    assert report.matches >= 300
    assert min(report.served["L1"], report.served["L2"], report.served["miss"], report.from_storage) >= 5, report.line()


@pytest.mark.parametrize("case", MORE_CASES, ids=lambda case: case.name)
def test_agrees_with_what_the_engine_can_be_told(driver: Driver, case: Case) -> None:
    report = play(driver, case, 1500 if case.is_buffer_only else 400)
    assert not report.differences, f"{report.line()}\n{report.first}"
    assert report.served["L1"] >= 5, report.line()
    assert not case.is_buffer_only or report.served["L3"] >= 5, report.line()


@pytest.mark.parametrize(
    "wrong",
    [
        {"track_interval_tokens": 128},
        {"eviction": EvictionPolicy.LFU},
        {"write_policy": WritePolicy.SELECTIVE},
        {"states_per_path": 1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_model_is_found_out(driver: Driver, wrong: dict[str, Any]) -> None:
    """An agreement that nothing could break would show nothing."""
    report = play(driver, CASES[-1], 1000, but=wrong)
    assert report.agreed < report.matches


def test_a_wrong_model_of_staging_is_found_out(driver: Driver) -> None:
    """Reads that hold nothing of L1."""
    case = next(case for case in MORE_CASES if case.is_buffer_only)
    report = play(driver, case, 3000, but={"window_tokens": case.device_tokens})
    assert report.differences
