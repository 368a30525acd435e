"""What the log says about turns: measured apart from estimated, unknown apart from zero (W58, W59, W70)."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from governor.store.database import sqlite_url
from governor.store.errors import StoreUnreadable
from governor.store.model import StoredTurn
from governor.store.query import TurnLogReader, UsageSummary
from governor.types import AgentName, TurnId, TurnState, Usage
from tests.store_records import T0, closed, opened, turn_log

DAY = 86_400.0


def only(summaries: list[UsageSummary]) -> UsageSummary:
    [summary] = summaries
    return summary


@pytest.fixture
def reader(url: URL) -> TurnLogReader:
    return TurnLogReader(url)


def test_recent_turns_are_newest_first_and_filtered(url: URL, reader: TurnLogReader) -> None:
    with turn_log(url) as log:
        for number in range(6):
            log.opened(opened(f"t{number}", agent="ada" if number % 2 else "bob", at=T0 + number))
        log.closed(closed("t3", TurnState.REFUSED))
        log.closed(closed("t5"))
        log.closed(closed("stray", at=T0 + 2.5))
        assert log.flush(10)

        def ids(turns: list[StoredTurn]) -> list[str]:
            return [turn.turn_id for turn in turns]

        assert ids(reader.recent()) == ["t5", "t4", "t3", "stray", "t2", "t1", "t0"]
        assert ids(reader.recent(limit=2)) == ["t5", "t4"]
        assert ids(reader.recent(agent="ada")) == ["t5", "t3", "t1"]
        assert ids(reader.recent(state=TurnState.OPEN)) == ["t4", "t2", "t1", "t0"]
        assert ids(reader.recent(agent="ada", state=TurnState.REFUSED)) == ["t3"]
        assert ids(reader.recent(since=T0 + 1, until=T0 + 4)) == ["t3", "stray", "t2", "t1"]
        one = reader.turn(TurnId("t3"))
        assert one is not None
        assert one.closed == closed("t3", TurnState.REFUSED)
        assert reader.turn(TurnId("none")) is None


def test_unknown_zero_and_measured_cache_figures_are_three_things(url: URL, reader: TurnLogReader) -> None:
    split = Usage(
        prompt_tokens=100, cached_tokens=60, cached_device_tokens=30, cached_host_tokens=20, cached_storage_tokens=10
    )
    with turn_log(url) as log:
        for agent, usage in {
            "absent": Usage(prompt_tokens=100),
            "zero": Usage(prompt_tokens=100, cached_tokens=0),
            "split": split,
        }.items():
            log.opened(opened(agent, agent=agent))
            log.closed(closed(agent, usage=usage))
        assert log.flush(10)
    by_agent = {summary.agent: summary for summary in reader.usage()}
    absent, zero, measured = (by_agent[AgentName(name)] for name in ("absent", "zero", "split"))
    assert (absent.cached_tokens, absent.hit_share, absent.new_tokens) == (None, None, None)
    assert (zero.cached_tokens, zero.hit_share, zero.new_tokens) == (0, 0.0, 100)
    assert (measured.cached_tokens, measured.hit_share, measured.new_tokens) == (60, 0.6, 40)
    tiers = (measured.cached_device_tokens, measured.cached_host_tokens, measured.cached_storage_tokens)
    assert tiers == (30, 20, 10)
    assert (zero.cached_device_tokens, zero.cached_host_tokens, zero.cached_storage_tokens) == (None, None, None)


def test_reported_and_estimated_tokens_are_never_mixed(url: URL, reader: TurnLogReader) -> None:
    with turn_log(url) as log:
        for turn_id in ("reported", "silent", "aborted", "open"):
            log.opened(opened(turn_id))
        log.closed(
            closed(
                "reported",
                usage=Usage(prompt_tokens=1000, completion_tokens=40, cached_tokens=900, reasoning_tokens=43),
                prompt_tokens_counted=990,
                completion_tokens_estimated=38,
            )
        )
        log.closed(closed("silent", prompt_tokens_counted=500, completion_tokens_estimated=7))
        log.closed(
            closed("aborted", TurnState.CLIENT_ABORTED, prompt_tokens_counted=20, completion_tokens_estimated=40)
        )
        assert log.flush(10)
        summary = only(reader.usage())
    assert summary.turns == 4
    assert summary.states == {TurnState.OK: 2, TurnState.CLIENT_ABORTED: 1, TurnState.OPEN: 1}
    assert (summary.prompt_tokens, summary.prompt_reported_turns, summary.prompt_tokens_estimated) == (1000, 1, 520)
    assert (summary.completion_tokens, summary.completion_tokens_estimated) == (40, 47)
    assert summary.reasoning_tokens == 43, "as reported, though more than the completion it is a part of"
    assert (summary.new_tokens, summary.hit_share) == (100, 0.9)


def test_nothing_reported_is_no_sum_at_all(url: URL, reader: TurnLogReader) -> None:
    with turn_log(url) as log:
        log.opened(opened("t"))
        log.closed(closed("t", TurnState.UPSTREAM_ERROR))
        assert log.flush(10)
    summary = only(reader.usage())
    figures = (summary.prompt_tokens, summary.prompt_tokens_estimated, summary.completion_tokens, summary.hit_share)
    assert figures == (None, None, None, None)
    assert (summary.ttft_p50_ms, summary.ttft_p95_ms) == (None, None)


def test_the_hit_share_counts_only_turns_that_report_both_figures(url: URL, reader: TurnLogReader) -> None:
    with turn_log(url) as log:
        for turn_id, usage in {
            "both": Usage(prompt_tokens=100, cached_tokens=50),
            "prompt only": Usage(prompt_tokens=900),
            "more cached than sent": Usage(prompt_tokens=100, cached_tokens=110),
        }.items():
            log.opened(opened(turn_id))
            log.closed(closed(turn_id, usage=usage))
        assert log.flush(10)
    summary = only(reader.usage())
    assert summary.hit_share == pytest.approx(0.8)
    assert summary.new_tokens == 50


@pytest.mark.parametrize(("count", "p50", "p95"), [(1, 1.0, 1.0), (2, 1.0, 2.0), (20, 10.0, 19.0), (100, 50.0, 95.0)])
def test_ttft_percentiles_are_nearest_rank(url: URL, reader: TurnLogReader, count: int, p50: float, p95: float) -> None:
    with turn_log(url) as log:
        for number in range(count, 0, -1):
            log.opened(opened(f"t{number}"))
            log.closed(closed(f"t{number}", ttft_ms=float(number)))
        log.opened(opened("no first token"))
        assert log.flush(10)
    summary = only(reader.usage())
    assert (summary.ttft_p50_ms, summary.ttft_p95_ms) == (p50, p95)


def test_usage_by_agent_by_day_and_between_times(url: URL, reader: TurnLogReader) -> None:
    midnight = 19_700 * DAY
    with turn_log(url) as log:
        for turn_id, agent, at in (
            ("late", "ada", midnight - 1),
            ("early", "ada", midnight),
            ("next", "bob", midnight + DAY),
        ):
            log.opened(opened(turn_id, agent=agent, at=at))
            log.closed(closed(turn_id, at=at, ttft_ms=at - midnight))
        log.closed(closed("stray", at=midnight))
        assert log.flush(10)
    first = date.fromordinal(date(1970, 1, 1).toordinal() + 19_699)
    second, third = date.fromordinal(first.toordinal() + 1), date.fromordinal(first.toordinal() + 2)

    def table(summaries: list[UsageSummary]) -> list[tuple[str | None, date | None, int]]:
        return [(summary.agent, summary.day, summary.turns) for summary in summaries]

    assert table(reader.usage()) == [("ada", None, 2), ("bob", None, 1), (None, None, 1)]
    assert table(reader.usage(by_day=True)) == [
        ("ada", first, 1),
        ("ada", second, 1),
        ("bob", third, 1),
        (None, second, 1),
    ]
    assert [summary.ttft_p50_ms for summary in reader.usage(agent="ada", by_day=True)] == [-1.0, 0.0]
    assert table(reader.usage(agent="ada", by_day=True, utc_offset_s=3600)) == [("ada", second, 2)]
    assert table(reader.usage(since=midnight, until=midnight + DAY)) == [("ada", None, 1), (None, None, 1)]


def test_an_empty_log_has_nothing_to_say(url: URL, reader: TurnLogReader) -> None:
    with turn_log(url) as log:
        assert log.flush(10)
        assert reader.recent() == []
        assert reader.usage() == []
        assert reader.turn(TurnId("t")) is None


def test_a_log_that_is_not_there_or_not_one_says_so(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    with pytest.raises(StoreUnreadable, match="no turn log"):
        TurnLogReader(sqlite_url(path)).recent()
    assert not path.exists()
    path.write_text("something else" * 100)
    with pytest.raises(StoreUnreadable, match="not a database"):
        TurnLogReader(sqlite_url(path)).usage()


def test_odd_characters_in_the_path_are_no_part_of_the_address(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%20ü" / "turns.db"
    with turn_log(sqlite_url(path)) as log:
        log.closed(closed("t"))
        assert log.flush(10)
    assert len(TurnLogReader(sqlite_url(path)).recent()) == 1
    assert [file.name for file in path.parent.iterdir() if file.suffix == ".db"] == ["turns.db"]


def test_reading_does_not_wait_for_a_writer_nor_hold_it_up(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "turns.db")
    reader = TurnLogReader(url)
    with turn_log(url) as log:
        for number in range(200):
            log.opened(opened(f"t{number}"))
            log.closed(closed(f"t{number}", ttft_ms=1.0))
            if number % 20 == 0:
                assert log.flush(10)
                assert only(reader.usage()).turns == number + 1
        assert log.flush(10)
        assert log.health().last_error is None
