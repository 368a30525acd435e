"""A turn's story from its row and its decisions, however little of it is known."""

from __future__ import annotations

import msgspec

from governor.cli.queue_cmd import ledger_line, running_of
from governor.cli.story import Now, Step, now_of, story
from governor.events import PrefixLost, TurnDecided
from governor.snapshot import EngineView, LeaseView, QueueView, Snapshot, StoreView, TurnView, WaitingView
from governor.store.model import StoredTurn, TurnClosed
from governor.types import AgentName, PromptShape, TurnId, TurnKind, TurnState, Usage, Verdict
from tests.store_records import T0, closed, decided


def stored(end: TurnClosed | None = None, state: TurnState = TurnState.OPEN, *, at: float | None = T0) -> StoredTurn:
    return StoredTurn(
        turn_id=TurnId("t1"),
        run_id="r",
        state=end.state if end else state,
        agent=None if at is None else AgentName("ada"),
        route="/v1/chat/completions",
        opened_at=at,
        closed=end,
    )


def lines(steps: list[Step]) -> list[tuple[float | None, str, str]]:
    return [(None if step.offset_s is None else round(step.offset_s, 3), step.what, step.why) for step in steps]


WHOLE = closed(
    "t1",
    TurnState.TRUNCATED,
    at=T0 + 30,
    kind=TurnKind.TOOL_STEP,
    shape=PromptShape.CONTINUATION,
    finish_reason="length",
    usage=Usage(
        prompt_tokens=32_100,
        completion_tokens=812,
        cached_tokens=30_000,
        cached_device_tokens=29_000,
        cached_host_tokens=1_000,
        cached_storage_tokens=0,
    ),
    prompt_tokens_counted=32_000,
    prompt_tokens_margin=200,
    cap_applied=4_096,
    cap_reason="policy",
    ttft_ms=6_000.0,
    pieces=2,
    paused_ms=5_000.0,
    edits=("max_tokens", "history restored: +700 tokens"),
    flags=("thinking_closed: at 90 tokens",),
)


FIRST = "agent ada, tool_step, continuation, prompt 32,000 (+200), cap 4,096 (policy), history restored: +700 tokens"


def test_the_whole_story_in_the_order_of_time() -> None:
    decisions = [
        decided("t1", Verdict.QUEUED, at=T0 + 0.01, why="needs room"),
        decided("t1", Verdict.GRANTED, at=T0 + 5),
        decided("t1", Verdict.PAUSE_ASKED, at=T0 + 12, why="bob waits"),
        decided("t1", Verdict.PAUSED, at=T0 + 13, why="paused"),
        decided("t1", Verdict.RESUMED, at=T0 + 18, why="goes on"),
        decided("t1", Verdict.FREED, at=T0 + 45, why="not confirmed"),
    ]
    steps = story(stored(WHOLE), decisions)
    assert lines(steps) == [
        (0.0, "arrived", FIRST),
        (0.01, "queued", "needs room"),
        (5.0, "granted", "runs"),
        (6.0, "first token", ""),
        (12.0, "pause asked", "bob waits"),
        (13.0, "paused", "paused"),
        (18.0, "resumed", "goes on"),
        (
            30.0,
            "ended",
            "truncated (length); in 32,100, 30,000 cached (L1 29,000, L2 1,000, L3 0); new 2,100; out 812;"
            " paused 1x, 5.0 s in all; thinking_closed: at 90 tokens",
        ),
        (45.0, "freed", "not confirmed"),
    ]
    assert [step.decided for step in steps if step.decided] == decisions


def test_what_was_computed_again_stands_behind_the_end() -> None:
    lost = (
        PrefixLost(at=0.0, turn_id="t1", agent="ada", cause="evicted", tokens=32_000, seconds=41.25, margin_s=3.0),
        PrefixLost(at=0.0, turn_id="t1", agent="ada", cause="volatile", tokens=200, message=0, byte=17),
        PrefixLost(at=0.0, turn_id="t1", agent="ada", cause="tools_changed", tokens=None, byte=9, detail="with run"),
    )
    steps = story(msgspec.structs.replace(stored(WHOLE), losses=lost), [])
    assert [(step.what, step.why) for step in steps[-3:]] == [
        ("prefix", "32,000 tokens computed again, 41.2 s (±3.0): evicted"),
        ("prefix", "200 tokens computed again: volatile bytes in the system prompt, message 0, byte 17"),
        ("prefix", "- tokens computed again: other tools, tools, byte 9 (with run)"),
    ]
    first = (PrefixLost(at=0.0, turn_id="t1", agent="ada", cause="first_prompt", tokens=32_000),)
    last = story(msgspec.structs.replace(stored(WHOLE), losses=first), [])[-1]
    assert last.why == "32,000 tokens computed once: first prompt of its session"


def test_what_is_unknown_is_said_to_be() -> None:
    end = closed("t1", TurnState.REFUSED, at=T0 + 2, reason="too many", completion_tokens_estimated=7)
    assert lines(story(stored(end), [])) == [
        (0.0, "arrived", "agent ada, kind unknown, prompt -, cap -"),
        (2.0, "ended", "refused; in -; new -; out ~7; too many"),
    ]
    assert lines(story(stored(end, at=None), [decided("t1", at=T0 + 1)])) == [
        (None, "arrived", "agent -, kind unknown, prompt -, cap -"),
        (0.0, "granted", "runs"),
        (1.0, "ended", "refused; in -; new -; out ~7; too many"),
    ]
    assert lines(story(stored(), []))[0] == (0.0, "arrived", "agent ada")


def test_a_turn_cut_by_the_governors_end_says_so() -> None:
    steps = story(stored(state=TurnState.INTERRUPTED), [decided("t1", at=T0 + 1)])
    assert [step.what for step in steps] == ["arrived", "granted", "interrupted"]
    assert steps[-1].offset_s is None


def view(turn_id: str, phase: str, **facts: object) -> TurnView:
    return TurnView(turn_id=turn_id, agent="ada", route="/", phase=phase, since=T0, **facts)  # type: ignore[arg-type]


def snapshot(*turns: TurnView, queue: QueueView) -> Snapshot:
    return Snapshot(
        version="0",
        started_at=T0,
        now=T0 + 9,
        last_event_id=0,
        engine=EngineView(name="e", mode="ready"),
        turns=turns,
        queue=queue,
        store=StoreView(ok=True, pending=0, dropped=0),
    )


WAITS = WaitingView(turn_id="t1", agent="ada", position=2, since=T0, due=T0 + 45, reason="needs room")


def test_an_open_turn_stands_where_the_governor_says_it_does() -> None:
    open_turn = view("t1", "waiting", kind=TurnKind.FINAL, prompt_tokens=9, cap=4)
    queued: list[TurnDecided] = [decided("t1", Verdict.QUEUED, at=T0 + 1, why="a slot")]
    now = now_of(snapshot(open_turn, queue=QueueView(waiting=(WAITS,))), "t1")
    assert lines(story(stored(), queued, now)) == [
        (0.0, "arrived", "agent ada, final, prompt 9, cap 4"),
        (1.0, "queued", "a slot"),
        (9.0, "now", "waiting, place 2: needs room"),
    ]
    assert now_of(snapshot(open_turn, queue=QueueView()), "t2") is None
    paused = Now(at=T0 + 2, turn=view("t1", "paused", waits_for="bob waits"))
    assert lines(story(stored(), [], paused))[-1] == (2.0, "now", "paused: bob waits")
    assert lines(story(stored(), [], Now(at=T0 + 2, turn=view("t1", "decode"))))[-1] == (2.0, "now", "decode")


def test_those_that_run_are_those_with_a_lease_and_those_in_the_engine_without_one() -> None:
    leases = (
        LeaseView(turn_id="t1", agent="ada", since=T0 + 1, booked_tokens=10, output_tokens=4),
        LeaseView(turn_id="gone", agent="bob", since=T0, booked_tokens=5, output_tokens=1, leaving=True),
    )
    turns = (view("t1", "decode", generated_bytes=7), view("t2", "prefill"), view("t3", "waiting"))
    running = running_of(snapshot(*turns, queue=QueueView(leases=leases)))
    assert [(each.turn_id, each.phase, each.booked_tokens, each.generated_bytes) for each in running] == [
        ("t1", "decode", 10, 7),
        ("gone", "leaving", 5, 0),
        ("t2", "prefill", None, 0),
    ]


def test_the_ledger_in_one_line() -> None:
    assert "100 tokens booked; the engine does not tell" in ledger_line(QueueView(booked_tokens=100))
    known = QueueView(booked_tokens=100, foreign_tokens=20, free_tokens=880, capacity_tokens=1_000)
    assert ledger_line(known) == "KV       100 tokens booked, 880 free, 20 foreign of 1,000"
