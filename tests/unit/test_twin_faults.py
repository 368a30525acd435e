"""Faults strike by their counters."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from serve.twin_server.faults import (
    Cut,
    DeadScheduler,
    Delay,
    ErrorFrame,
    Fault,
    Faults,
    HttpError,
    KvGap,
    LostAbort,
    RequestFault,
    SlowStart,
    read_faults,
)

_PAGE = Path(__file__).parents[2] / "docs" / "design" / "twin-content.md"


def struck(fault: Fault, occasions: int) -> list[int]:
    return [number for number in range(1, occasions + 1) if fault.strikes_at(number)]


def test_when_a_fault_strikes() -> None:
    assert struck(Cut(), 3) == [1, 2, 3]
    assert struck(Cut(every=3), 9) == [3, 6, 9]
    assert struck(Cut(every=3, first=1), 9) == [1, 4, 7]
    assert struck(Cut(first=4), 6) == [4, 5, 6]
    assert struck(Cut(every=2, times=2), 9) == [2, 4]
    assert struck(Cut(first=2, times=1), 9) == [2]


def test_each_kind_counts_its_own_occasions() -> None:
    faults = Faults([Cut(every=2), Delay(seconds=1, every=3), LostAbort(every=2), KvGap(every=2), SlowStart(seconds=5)])
    assert [faults.on_request() for _ in range(4)] == [
        [],
        [Cut(every=2)],
        [Delay(seconds=1, every=3)],
        [Cut(every=2)],
    ]
    assert [faults.on_abort() for _ in range(4)] == [False, True, False, True]
    assert [faults.on_kv_batch() for _ in range(4)] == [False, True, False, True]
    assert faults.not_ready_s == 5
    assert not faults.is_dead


def test_a_gap_may_be_several_batches() -> None:
    faults = Faults([KvGap(first=2, times=1, batches=3)])
    assert [faults.on_kv_batch() for _ in range(6)] == [False, True, True, True, False, False]


def test_a_rules_faults_are_counted_under_its_name() -> None:
    cut: tuple[RequestFault, ...] = (Cut(every=2),)
    faults = Faults(cut)
    assert faults.on_request(cut, "a") == []
    assert faults.on_request(cut, "b") == [Cut(every=2)]
    assert faults.on_request(cut, "a") == [Cut(every=2)]
    assert faults.on_request(cut, "b") == [Cut(every=2), Cut(every=2)]


def test_a_dead_scheduler_stays_dead() -> None:
    faults = Faults([DeadScheduler(first=2, times=1), HttpError()])
    assert faults.on_request() == [HttpError()]
    assert not faults.is_dead
    for _ in range(3):
        assert faults.on_request() == [DeadScheduler(first=2, times=1)]
        assert faults.is_dead
    faults.replace([])
    assert not faults.is_dead
    assert faults.on_request() == []


def test_replacing_counts_anew() -> None:
    faults = Faults([Cut(every=2)])
    faults.on_request()
    faults.replace([Cut(every=2), Cut(every=2)])
    assert faults.all == (Cut(every=2),)
    assert faults.on_request() == []
    assert faults.on_request() == [Cut(every=2)]


def test_as_json() -> None:
    faults: tuple[Fault, ...] = (
        Delay(seconds=1),
        Cut(after_tokens=3, every=5),
        ErrorFrame(),
        HttpError(status=429, retry_after_s=3),
        DeadScheduler(),
        LostAbort(),
        SlowStart(seconds=2),
        KvGap(),
    )
    assert read_faults(msgspec.json.encode(faults)) == faults
    assert read_faults(b'[{"kind": "cut", "after_tokens": 3, "every": 5}]') == (faults[1],)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'[{"kind": "cut", "every": 0}]', r">= 1 - at `\$\[0\].every`"),
        (b'[{"kind": "delay", "seconds": -1}]', "seconds"),
        (b'[{"kind": "http_error", "status": 200}]', "status"),
        (b'[{"kind": "flood"}]', "'flood'"),
        (b'[{"kind": "cut", "tokens": 3}]', "unknown field `tokens`"),
    ],
)
def test_a_bad_fault_is_named(data: bytes, says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        read_faults(data)


def test_every_fault_is_on_the_page() -> None:
    page = _PAGE.read_text().partition("## Faults")[2]
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    common = {"every", "first", "times"}
    assert len(rows) == len(get_args(Fault))
    for kind in get_args(Fault):
        row = rows[kind.__struct_config__.tag]
        assert all(f"`{field}`" in row for field in kind.__struct_fields__ if field not in common)
    assert all(f"`{field}`" in page.rpartition("|")[2] for field in common)
