"""The view model: unknown stays unknown, sums are honest, everything is bounded."""

from __future__ import annotations

import pytest

from governor import events
from governor.snapshot import AgentView, StoreView, TurnView
from governor.types import TurnState, Usage, Verdict
from tests.tui import pictures
from tests.tui.pictures import NOW
from tui import view_model
from tui.cells import Row, Table, Tone
from tui.client import Disconnected, Happened, Loaded
from tui.view_model import LOG_ROWS, Picture, duration, figure, latency, share, updated


def words(row: Row) -> list[str]:
    return [cell.text for cell in row]


def text(rows: tuple[Row, ...]) -> str:
    return "\n".join("  ".join(words(row)) for row in rows)


def column(table: Table, title: str) -> list[str]:
    index = [each.title for each in table.columns].index(title)
    return [row[index].text for row in table.rows]


def agent(**facts: object) -> dict[str, str]:
    """The row of an agent with these facts, by column."""
    view = AgentView(name="hermes", **facts)  # type: ignore[arg-type]
    table = view_model.agents(Picture(snapshot=pictures.snapshot(agents=(view,))))
    return {each.title: cell.text for each, cell in zip(table.columns, table.rows[0], strict=True)}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (999, "999"),
        (9_999, "9,999"),
        (10_000, "10.0K"),
        (99_949, "99.9K"),
        (99_951, "100K"),
        (999_499, "999K"),
        (999_501, "1.00M"),
        (5_120_000, "5.12M"),
        (2_500_000_000_000, "2500G"),
    ],
)
def test_figure(value: int | None, shown: str) -> None:
    assert figure(value) == shown


def test_figure_of_which_a_part_is_unreported() -> None:
    assert figure(12_345, at_least=True) == "12.3K+"
    assert figure(None, at_least=True) == "-"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3, "0s"), (0.9, "0s"), (99.9, "99s"), (320, "5m20"), (5999, "99m59"), (6000, "1h40"), (400_000, "4d")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_latency() -> None:
    assert [latency(ms) for ms in (None, 0.0, 480.0, 9_949.0, 48_200.0)] == ["-", "0.0s", "0.5s", "9.9s", "48s"]


def test_share() -> None:
    assert [share(None, 10), share(5, None), share(0, 0), share(0, 10), share(9, 10)] == ["-", "-", "-", "0%", "90%"]


def test_unknown_zero_and_measured_cache_are_three_things() -> None:
    usage = Usage(prompt_tokens=100, completion_tokens=5)
    facts = {"turns": {TurnState.OK: 1}, "prompt_tokens": 100, "completion_tokens": 5, "last_usage": usage}
    assert agent(**facts, cached_tokens=None)["cached"] == "-"
    assert agent(**facts, cached_tokens=0)["cached"] == "0%"
    assert agent(**facts, cached_tokens=75)["cached"] == "75%"


def test_an_agent_without_any_report_has_unknown_sums() -> None:
    row = agent(turns={TurnState.OK: 2}, unreported=2, last_seen=NOW)
    assert (row["prompt"], row["cached"], row["out"], row["ttft"]) == ("-", "-", "-", "-")
    assert (row["turns"], row["fail"], row["state"]) == ("2", "0", "idle")


def test_sums_say_when_they_are_not_all() -> None:
    facts = {"prompt_tokens": 900, "completion_tokens": 5, "last_usage": Usage(prompt_tokens=900)}
    refused = agent(**facts, turns={TurnState.OK: 1, TurnState.REFUSED: 1}, unreported=1)
    assert (refused["prompt"], refused["fail"]) == ("900", "1"), "a refused turn has nothing to report"
    aborted = agent(**facts, turns={TurnState.OK: 1, TurnState.CLIENT_ABORTED: 1}, unreported=1)
    assert (aborted["prompt"], aborted["out"]) == ("900+", "5+")


@pytest.mark.parametrize(
    ("phases", "state"),
    [
        (("waiting",), "waiting"),
        (("waiting", "prefill"), "prefill"),
        (("prefill", "decode"), "decode"),
        (("paused", "waiting"), "paused"),
        (("resting",), "resting"),
        ((), "unseen"),
    ],
)
def test_state_of_an_agent(phases: tuple[str, ...], state: str) -> None:
    turns = tuple(TurnView(turn_id="t", agent="hermes", route="/", phase=phase, since=NOW) for phase in phases)
    other = TurnView(turn_id="t", agent="other", route="/", phase="decode", since=NOW)
    snapshot = pictures.snapshot(agents=(AgentView(name="hermes"),), turns=(*turns, other))
    assert column(view_model.agents(Picture(snapshot=snapshot)), "state") == [state]


def test_open_turns_say_for_how_long_and_for_what() -> None:
    table = view_model.open_turns(Picture(snapshot=pictures.busy()), NOW + 3)
    assert column(table, "for") == ["5m23", "15s"]
    assert column(table, "waits for") == ["", "a slot: 1 of 1 in use"]
    assert column(table, "prompt") == ["124K", "-"]


def test_time_stands_still_while_nothing_is_heard() -> None:
    picture = updated(Picture(snapshot=pictures.busy()), Disconnected("no governor runs from this home", 1.0))
    assert column(view_model.open_turns(picture, NOW + 600), "for") == ["5m20", "12s"]
    first = text(view_model.head(picture, NOW + 600)).splitlines()[0]
    assert first.endswith("not connected, retrying  figures are 10m00 old  no governor runs from this home")


def test_connection_comes_and_goes() -> None:
    picture = Picture()
    assert text(view_model.head(picture, NOW)) == "governor  connecting"
    picture = updated(picture, Disconnected("nothing answers", 1.0))
    assert text(view_model.head(picture, NOW)) == "governor  not connected, retrying  nothing answers"
    picture = updated(picture, Loaded(pictures.snapshot()))
    assert text(view_model.head(picture, NOW)).startswith("governor  0.1.0  up 12m00  connected\n")
    assert "figures are 40s old" in text(view_model.head(picture, NOW + 40))


def test_a_store_that_cannot_write_and_many_alerts() -> None:
    store = StoreView(ok=False, pending=1_234, dropped=5, last_error="disk full")
    snapshot = pictures.snapshot(store=store, alerts=tuple(f"alert {n}" for n in range(64)))
    lines = text(view_model.head(Picture(snapshot=snapshot), NOW)).splitlines()
    assert lines[2] == "turn log  cannot write  1,234 pending  5 dropped  disk full"
    assert len(lines) == 7
    assert lines[-1].split() == ["alert", "and", "61", "more"]


def test_the_log_is_newest_first_and_bounded() -> None:
    picture = Picture(snapshot=pictures.snapshot())
    for number in range(LOG_ROWS + 50):
        picture = updated(
            picture, Happened(events.TurnEnded(at=NOW, turn_id="t", agent=f"a{number}", state=TurnState.OK))
        )
    table = view_model.log(picture)
    assert len(table.rows) == LOG_ROWS
    assert table.rows[0][1].text == f"a{LOG_ROWS + 49}"


def test_steps_of_a_turn_are_not_logged() -> None:
    picture = Picture(snapshot=pictures.snapshot())
    for event in (
        events.TurnStarted(at=NOW, turn_id="t", agent="a", route="/"),
        events.TurnQueued(at=NOW, turn_id="t", agent="a", reason="a slot"),
        events.TurnGranted(at=NOW, turn_id="t", agent="a", queued_ms=1),
        events.TurnFirstToken(at=NOW, turn_id="t", agent="a", ttft_ms=1),
        events.TurnPaused(at=NOW, turn_id="t", agent="a", reason="b has waited 5 s"),
        events.TurnResumed(at=NOW, turn_id="t", agent="a", paused_ms=1),
        events.TurnDecided(
            at=NOW, turn_id="t", agent="a", verdict=Verdict.QUEUED, why="a slot", waiting=1, running=1, booked_tokens=0
        ),
    ):
        assert updated(picture, Happened(event)) is picture


def test_every_kind_of_end_is_shown() -> None:
    for state in TurnState:
        end = events.TurnEnded(at=NOW, turn_id="t", agent="a", state=state, reason="why")
        (row,) = view_model.log(Picture(log=(end,))).rows
        assert row[2].text == state.value
        assert row[-1].text == "why"
        assert (row[2].tone is Tone.GOOD) == (state is TurnState.OK)


def test_a_gap_is_shown() -> None:
    (row,) = view_model.log(updated(Picture(), Happened(events.Gap(at=0.0, after=7)))).rows
    assert words(row) == ["", "", "gap", "earlier events are gone"]


@pytest.mark.parametrize("hostile", pictures.HOSTILE, ids=range(len(pictures.HOSTILE)))
def test_every_cell_is_printable(hostile: str) -> None:
    picture = Picture(snapshot=pictures.hostile(hostile), log=pictures.hostile_events(hostile))
    picture = updated(picture, Disconnected(hostile, 1.0))
    tables = (view_model.agents(picture), view_model.open_turns(picture, NOW), view_model.log(picture))
    rows = [*view_model.head(picture, NOW), *(row for table in tables for row in table.rows)]
    assert len(rows) > 40
    for row in rows:
        for cell in row:
            assert cell.text == "" or cell.text.isprintable()
            assert len(cell.text) < 2_500
