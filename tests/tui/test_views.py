"""What the screens show: unknown stays unknown, sums are honest, everything is bounded and printable."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from governor import events
from governor.pages import EngineLogPage
from governor.snapshot import (
    AgentView,
    CacheView,
    HolderView,
    PredictionView,
    ResidencyView,
    StoreView,
    TierView,
    TurnView,
)
from governor.types import TurnState, Usage, Verdict
from tests.tui import agent_pages, pictures
from tests.tui.hostile import hostile_picture
from tests.tui.pictures import HOSTILE, NOW
from tui.cells import Cell, Row, Table, Tone
from tui.client import Disconnected, Happened, Loaded
from tui.picture import LOG_ROWS, MOST_AGENTS, Fetched, NotFetched, Picture, turned_to, updated, updated_by_all
from tui.views import agent, agent_history, agents, engine, head, log, overview, queue
from tui.views.parts import cap_use, residency, served


def words(row: Row) -> list[str]:
    return [cell.text for cell in row]


def text(rows: tuple[Row, ...]) -> str:
    return "\n".join("  ".join(words(row)) for row in rows)


def column(table: Table, title: str) -> list[str]:
    index = [each.title for each in table.columns].index(title)
    return [row[index].text for row in table.rows]


def parts(cell: Cell) -> dict[str, float]:
    """Of a bar: amounts by glyph, those that are not nothing."""
    assert cell.bar is not None
    return {part.glyph: part.amount for part in cell.bar.parts if part.amount}


def row_of(**facts: object) -> dict[str, str]:
    """The row of an agent with these facts, by column."""
    view = AgentView(name="hermes", **facts)  # type: ignore[arg-type]
    table = agents.agents(Picture(snapshot=pictures.snapshot(agents=(view,))))
    return {each.title: cell.text for each, cell in zip(table.columns, table.rows[0], strict=True)}


def of_busy(name: str = "hermes") -> Picture:
    """Everything known of a busy governor, one of its agents looked at."""
    picture = updated_by_all(Picture(), (Happened(event) for event in pictures.happened()))
    picture = updated(picture, Loaded(pictures.busy()))
    return Picture(
        snapshot=picture.snapshot,
        log=picture.log,
        decisions=picture.decisions,
        ended=picture.ended,
        compacted=picture.compacted,
        lost=picture.lost,
        context=agent_pages.context(name, NOW),
        policy=agent_pages.policy(name),
    )


def all_tables(picture: Picture, name: str) -> Iterator[Table]:
    """Each table that any screen shows."""
    yield from (agents.agents(picture), agents.agents(picture, brief=True), agents.open_turns(picture, NOW))
    yield from (overview.tiers(picture), overview.news(picture), overview.tier_sizes(picture))
    yield from (queue.booked(picture), queue.leases(picture), queue.waiting(picture), queue.held(picture))
    yield from (engine.proven(picture, NOW), engine.notices(picture), engine.log_tail(picture))
    yield from (log.happenings(picture), log.happenings(picture, needle="t"), log.decisions(picture))
    yield from (agent.contents(picture, name), agent.largest(picture, name), agent.lines(picture, name))
    yield from (agent.policy(picture, name), agent_history.turns(picture, name))
    yield from (agent_history.compactions(picture, name), agent_history.breaks(picture, name))


def all_lines(picture: Picture, name: str) -> Iterator[Row]:
    yield head.link(picture, NOW)
    yield from head.trouble(picture, NOW)
    yield from overview.engine_lines(picture)
    yield from agent.head(picture, name)


def test_unknown_zero_and_measured_cache_are_three_things() -> None:
    """Case W70."""
    usage = Usage(prompt_tokens=100, completion_tokens=5)
    facts = {"turns": {TurnState.OK: 1}, "prompt_tokens": 100, "completion_tokens": 5, "last_usage": usage}
    assert row_of(**facts, cached_tokens=None)["hit"] == "-"
    assert row_of(**facts, cached_tokens=0)["hit"] == "0%"
    assert row_of(**facts, cached_tokens=75)["hit"] == "75%"


def test_what_served_a_prompt_is_measured_or_unknown() -> None:
    """Case W70: cached figures absent, null, 0, whole, and split over the tiers."""
    assert served(Usage()).text == "-"
    assert parts(served(Usage(prompt_tokens=100))) == {"?": 100}
    assert parts(served(Usage(prompt_tokens=100, cached_tokens=0))) == {"·": 100}
    assert parts(served(Usage(prompt_tokens=100, cached_tokens=60))) == {"▚": 60, "·": 40}
    assert parts(served(pictures.usage(100, 30, 20, 10))) == {"█": 30, "▓": 20, "▒": 10, "·": 40}


def test_a_context_of_which_nobody_knows_where_it_is_is_not_empty() -> None:
    line = ResidencyView(agent="a", context="a/1", session="s", context_tokens=500, unknown_tokens=500, answered_at=NOW)
    assert parts(residency(line, None)) == {"?": 500}
    assert residency(None, "the engine does not tell").text == "unknown"
    assert residency(None, None).text == "-"
    known = pictures.line("a", 500, 100, 200, 150)
    assert parts(residency(known, None)) == {"█": 100, "▓": 200, "▒": 150, "·": 50}


def test_a_tier_that_does_not_tell_is_unknown_and_a_complaint_is_shown() -> None:
    table = overview.tiers(Picture(snapshot=pictures.busy()))
    assert [row[0].text for row in table.rows] == ["L1 GPU", "L2 host", "L3 disk", ""]
    assert words(table.rows[2])[1:6] == ["unknown: the engine does not tell", "-", "-", "-", "0"]
    assert table.rows[3][1] == Cell("! has taken 157 GB and given nothing back", Tone.BAD)
    bare = pictures.snapshot(cache=CacheView(unknown="the engine sends no events"))
    assert overview.tiers(Picture(snapshot=bare)).empty == "unknown: the engine sends no events"


def test_holders_of_a_tier_add_up_to_what_it_holds() -> None:
    holders = tuple(HolderView(agent=f"a{number}", tokens=10 + number) for number in range(30))
    tier = TierView(tier="L1", capacity_tokens=2_000, held_tokens=1_500, holders=holders)
    bar = overview.tiers(Picture(snapshot=pictures.snapshot(cache=CacheView(tiers=(tier,))))).rows[0][1].bar
    assert bar is not None
    assert sum(part.amount for part in bar.parts) == 1_500
    assert len(bar.parts) == 9
    assert [part.label for part in bar.parts[-2:]] == ["others", "old"]
    assert bar.whole == 2_000


def test_a_tier_of_which_not_all_is_known_says_so() -> None:
    tier = TierView(tier="L1", capacity_tokens=2_000, held_tokens=500, held_bytes=1_000.0, is_part=True)
    picture = Picture(snapshot=pictures.snapshot(cache=CacheView(tiers=(tier,))))
    (row,) = overview.tiers(picture).rows
    assert [cell.text for cell in row[2:5]] == ["500+", "2,000", "25%+"]
    assert row[1].bar is not None
    assert row[1].bar.rest == "?"
    assert overview.tier_sizes(picture).rows[0][1].text == "1,000B+"


def test_turns_that_were_not_predicted_are_told_beside_those_that_were() -> None:
    def notes(**lately: int) -> list[str]:
        cache = CacheView(predicted_lately=PredictionView(**lately))
        return words(overview.tiers(Picture(snapshot=pictures.snapshot(cache=cache))).notes)

    assert notes() == ["nothing predicted yet"]
    assert notes(unknown=7) == ["7 not predicted"]
    assert notes(turns=4, within_page=4, unknown=196) == ["predicted right 100% of 4 turns", "196 not predicted"]


def test_prompts_of_which_nobody_tells_the_cached_part_count_for_no_share() -> None:
    told = (AgentView(name="a", prompt_tokens=100, cached_tokens=50), AgentView(name="b", prompt_tokens=900))
    assert "from a cache 50%" in text(overview.engine_lines(Picture(snapshot=pictures.snapshot(agents=told))))


def test_a_page_that_could_not_be_had_again_is_said_to_be_old() -> None:
    log = EngineLogPage(lines=("ready",))
    news = [Fetched(agent_pages.context("hermes", NOW)), Fetched(agent_pages.policy("hermes")), Fetched(log)]
    picture = updated_by_all(Picture(snapshot=pictures.busy()), news)

    def notes(of: Picture) -> list[str]:
        tables = agent.contents(of, "hermes"), agent.policy(of, "hermes"), engine.log_tail(of)
        return [words(table.notes)[-1] for table in tables if table.notes]

    assert not [note for note in notes(picture) if "of before" in note]
    failed = [NotFetched(what, "it answers 500") for what in ("context", "policy", "engine log")]
    assert notes(updated_by_all(picture, failed)) == ["of before: it answers 500"] * 3


def test_an_agents_policy_stays_while_its_context_cannot_be_had() -> None:
    picture = updated_by_all(Picture(), [Fetched(agent_pages.policy("hermes")), NotFetched("context", "no")])
    assert turned_to(picture, "hermes") == picture
    assert turned_to(picture, "ada").policy is None


def test_an_agent_without_any_report_has_unknown_sums() -> None:
    row = row_of(turns={TurnState.OK: 2}, unreported=2, last_seen=NOW)
    assert (row["context"], row["of"], row["hit"], row["out"], row["ttft"]) == ("-", "-", "-", "-", "-")
    assert (row["turns"], row["fail"], row["state"]) == ("2", "0", "idle")


def test_sums_say_when_they_are_not_all() -> None:
    facts = {"prompt_tokens": 900, "completion_tokens": 5, "last_usage": Usage(prompt_tokens=900)}
    refused = row_of(**facts, turns={TurnState.OK: 1, TurnState.REFUSED: 1}, unreported=1)
    assert (refused["out"], refused["fail"]) == ("5", "1"), "a refused turn has nothing to report"
    aborted = row_of(**facts, turns={TurnState.OK: 1, TurnState.CLIENT_ABORTED: 1}, unreported=1)
    assert aborted["out"] == "5+"


def test_a_context_is_seen_against_the_window_of_its_agent() -> None:
    usage = Usage(prompt_tokens=900, completion_tokens=50)
    assert row_of(last_usage=usage, window_tokens=1_000)["of"] == "95%"
    assert row_of(last_usage=usage)["of"] == "-"
    tones = {row[0].text: row[3].tone for row in agents.agents(Picture(snapshot=pictures.busy())).rows}
    assert tones["hermes"] is Tone.PLAIN
    assert tones["research"] is Tone.BAD, "96 % of its window"


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
    assert column(agents.agents(Picture(snapshot=snapshot)), "state") == [state]


def test_a_held_agent_is_held_whatever_its_turns_do() -> None:
    row = row_of(held=True, held_reason="paused by the owner")
    assert (row["state"], row["waits for"]) == ("held", "paused by the owner")


def test_use_of_the_cap_is_estimated_while_it_runs_and_reported_at_its_end() -> None:
    running = TurnView(turn_id="t", agent="a", route="/", phase="decode", since=NOW, cap=1_000, generated_bytes=2_000)
    last = pictures.ended("a", 1, Usage(prompt_tokens=1, completion_tokens=4_096), cap_applied=4_096)
    assert cap_use((running,), last).text == "~50%"
    assert cap_use((), last) == Cell("100%", Tone.WARN)
    assert cap_use((), None).text == "-"
    assert cap_use((), pictures.ended("a", 1, Usage(), cap_applied=4_096)).text == "-"


def test_agents_over_the_bound_share_a_row() -> None:
    """Case W67."""
    table = agents.agents(Picture(snapshot=pictures.many(500)))
    assert len(table.rows) == MOST_AGENTS
    assert table.rows[-1][0].text == f"other ({500 - MOST_AGENTS + 1})"
    turns = sum(int(turns.replace(",", "")) for turns in column(table, "turns")[:-1])
    assert turns == sum(number + number % 3 for number in range(MOST_AGENTS - 1))
    assert table.keys[-1] == ""
    assert len(agents.agents(Picture(snapshot=pictures.many(MOST_AGENTS))).rows) == MOST_AGENTS
    for bounded in (
        agents.open_turns,
        lambda picture, _: queue.leases(picture),
        lambda picture, _: queue.waiting(picture),
    ):
        rows = bounded(Picture(snapshot=pictures.many(500)), NOW).rows
        assert len(rows) == 101
        assert rows[-1][0].text.startswith("other")


def test_histories_of_agents_are_bounded() -> None:
    """Case W67."""
    picture = Picture()
    for number in range(3 * MOST_AGENTS):
        picture = updated(picture, Happened(pictures.ended(f"a{number}", 0, Usage())))
    assert len(picture.ended) == MOST_AGENTS
    assert f"a{3 * MOST_AGENTS - 1}" in picture.ended


def test_open_turns_say_for_how_long_and_for_what() -> None:
    table = agents.open_turns(Picture(snapshot=pictures.busy()), NOW + 3)
    assert column(table, "for") == ["5m23", "15s", "83s"]
    assert column(table, "waits for")[1] == "needs 181,439 KV tokens, 45,343 too many"
    assert column(table, "prompt") == ["124K", "-", "-"]


def test_the_queue_says_why_and_from_when_each_goes_first() -> None:
    picture = Picture(snapshot=pictures.busy())
    assert column(queue.waiting(picture), "first in") == ["28s", "now"]
    assert column(queue.waiting(picture), "why it waits now")[1] == "paused by the owner"
    assert column(queue.leases(picture), "of L1") == ["61%"]
    assert column(queue.held(picture), "agent") == ["nightly"]


def test_time_stands_still_while_nothing_is_heard() -> None:
    picture = updated(Picture(snapshot=pictures.busy()), Disconnected("no governor runs from this home", 1.0))
    assert column(agents.open_turns(picture, NOW + 600), "for")[0] == "5m20"
    assert words(head.link(picture, NOW + 600)) == ["○ not connected, retrying"]
    (trouble,) = head.trouble(picture, NOW + 600)
    assert words(trouble) == ["figures are 10m00 old", "no governor runs from this home"]


def test_connection_comes_and_goes() -> None:
    picture = Picture()
    assert words(head.link(picture, NOW)) == ["○ connecting"]
    picture = updated(picture, Disconnected("nothing answers", 1.0))
    assert words(head.link(picture, NOW)) == ["○ not connected, retrying"]
    assert [words(row) for row in head.trouble(picture, NOW)] == [["nothing answers"]]
    picture = updated(picture, Loaded(pictures.snapshot()))
    assert words(head.link(picture, NOW)) == ["● connected", "governor 0.1.0", "up 12m00"]
    assert head.trouble(picture, NOW) == ()
    assert "figures are 40s old" in head.link(picture, NOW + 40)[0].text


def test_a_store_that_cannot_write_and_many_alerts() -> None:
    store = StoreView(ok=False, pending=1_234, dropped=5, last_error="disk full")
    snapshot = pictures.snapshot(store=store, alerts=tuple(f"alert {n}" for n in range(64)))
    picture = Picture(snapshot=snapshot)
    assert (
        text(overview.engine_lines(picture))
        .splitlines()[1]
        .endswith("turn log cannot write, 1,234 pending, 5 dropped  disk full")
    )
    assert len(overview.news(picture).rows) == 9
    assert overview.news(picture).rows[-1][-1].text == "and 56 more"


def test_the_log_is_newest_first_and_bounded() -> None:
    picture = Picture(snapshot=pictures.snapshot())
    for number in range(LOG_ROWS + 50):
        picture = updated(picture, Happened(pictures.ended(f"a{number}", 0, Usage())))
    table = log.happenings(picture)
    assert len(table.rows) == LOG_ROWS
    assert table.rows[0][1].text == f"a{LOG_ROWS + 49}"


def test_the_log_can_be_filtered_by_any_word_in_it() -> None:
    picture = of_busy()
    assert len(log.happenings(picture).rows) == len(picture.log)
    assert {row[1].text for row in log.happenings(picture, needle="OPENCLAW").rows} == {"openclaw"}
    (row,) = log.happenings(picture, needle="closed the connection").rows
    assert row[2].text == "upstream_error"
    assert log.happenings(picture, needle="[/]").empty == "nothing has '[/]'"


def test_steps_of_a_turn_are_not_logged_and_decisions_apart() -> None:
    picture = Picture(snapshot=pictures.snapshot())
    for event in (
        events.TurnStarted(at=NOW, turn_id="t", agent="a", route="/"),
        events.TurnQueued(at=NOW, turn_id="t", agent="a", reason="a slot"),
        events.TurnGranted(at=NOW, turn_id="t", agent="a", queued_ms=1),
        events.TurnFirstToken(at=NOW, turn_id="t", agent="a", ttft_ms=1),
        events.TurnPaused(at=NOW, turn_id="t", agent="a", reason="b has waited 5 s"),
        events.TurnResumed(at=NOW, turn_id="t", agent="a", paused_ms=1),
    ):
        assert updated(picture, Happened(event)) is picture
    decided = events.TurnDecided(
        at=NOW, turn_id="t", agent="a", verdict=Verdict.QUEUED, why="a slot", waiting=1, running=1, booked_tokens=0
    )
    picture = updated(picture, Happened(decided))
    assert picture.log == ()
    assert column(log.decisions(picture), "what") == ["queued"]


def test_every_kind_of_end_is_shown() -> None:
    for state in TurnState:
        end = events.TurnEnded(at=NOW, turn_id="t", agent="a", state=state, reason="why")
        (row,) = log.happenings(Picture(log=(end,))).rows
        assert row[2].text == state.value
        assert row[-1].text == "why"
        assert (row[2].tone is Tone.GOOD) == (state is TurnState.OK)


def test_a_gap_is_shown() -> None:
    (row,) = log.happenings(updated(Picture(), Happened(events.Gap(at=0.0, after=7)))).rows
    assert words(row) == ["", "", "gap", "earlier events are gone"]


def test_one_agent_shows_what_its_turns_were_served_from_and_why_they_lost_something() -> None:
    picture = of_busy()
    table = agent_history.turns(picture, "hermes")
    assert column(table, "prompt") == ["123K", "100K", "80.0K", "60.0K"]
    assert column(table, "end") == ["ok", "ok", "truncated", "volatile bytes in the system prompt"]
    assert parts(table.rows[1][2]) == {"█": 4_096, "▓": 60_000, "▒": 15_000, "·": 20_904}
    losses = agent_history.breaks(picture, "hermes")
    assert column(losses, "tokens") == ["160K+", "4,000", "50.0K"]
    assert column(losses, "time") == ["~1m58", "~3.0s", "~36s"]
    assert column(losses, "last at") == ["message 0, byte 812", "-", "-"]
    assert column(agent_history.compactions(picture, "hermes"), "after") == ["-", "92.0K"]


def test_one_agent_shows_its_own_values_of_the_policy_first() -> None:
    table = agent.policy(of_busy(), "hermes")
    assert column(table, "key")[:2] == ["compression.mode", "compression.trigger"]
    assert column(table, "value")[3] == "-", "not set"
    assert agent.policy(of_busy(), "openclaw").rows == (), "the page is of another agent"


def test_an_agent_that_has_gone() -> None:
    assert words(agent.head(of_busy(), "nobody")[0]) == ["nobody", "is not there any more"]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_every_cell_is_printable(hostile: str, missing: bool) -> None:
    """Case W68: each string in each place of each table."""
    spoilt = hostile_picture(hostile, missing=missing)
    tables = list(all_tables(spoilt, hostile))
    cells = [cell for row in all_lines(spoilt, hostile) for cell in row]
    for table in tables:
        cells += [cell for row in table.rows for cell in row] + [*table.notes, Cell(table.title), Cell(table.empty)]
    assert len(cells) > 300
    for cell in cells:
        labels = [part.label for part in cell.bar.parts] if cell.bar is not None else []
        for each in (cell.text, *labels):
            assert each == "" or each.isprintable()
            assert len(each) < 2_500


@pytest.mark.parametrize("picture", [Picture(), Picture(snapshot=pictures.snapshot())])
def test_nothing_is_known_yet(picture: Picture) -> None:
    empty = [table for table in all_tables(picture, "nobody") if not table.rows]
    assert all(table.empty for table in empty)
    assert len(empty) == (23 if picture.snapshot is None else 22), "L1 as booked has its one row"
