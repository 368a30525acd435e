"""Clients' own compactions: what real clients did, and what must not be taken for one."""

from __future__ import annotations

from typing import Any

import pytest

from governor.compress.client_model import Advice, ClientOutcome, ClientPass, News, Standing, advise, limits_for
from governor.compress.clients import REACTIONS, WatchLimits
from governor.compress.limits import limits_of
from governor.compress.thresholds import Threshold
from governor.policy.model import ClientLoops, CompressionMode, CompressionPolicy
from governor.types import AgentName, TurnKind
from tests.client_prompts import ME, CompactionRequest, Watched, compaction_requests

SUMMARISE = "You are a summarization agent creating a context checkpoint. "
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def steps(first: int, last: int) -> list[dict[str, Any]]:
    return [
        message
        for n in range(first, last)
        for message in ({"role": "assistant", "content": f"step {n}"}, user(f"go on {n}"))
    ]


SYSTEM = {"role": "system", "content": "You are careful."}
OPENING = [SYSTEM, user("Please look.")]


def main(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": "m", "messages": messages, "tools": TOOLS}


def summary_call(text: str = "") -> dict[str, Any]:
    return {"model": "m", "messages": [user(SUMMARISE + text)]}


def compacted(summary: str, first: int, last: int) -> dict[str, Any]:
    return main([*OPENING, user("[CONTEXT COMPACTION — REFERENCE ONLY] " + summary), *steps(first, last)])


def replayed(recording: str) -> list[tuple[CompactionRequest, Standing, ClientPass]]:
    """The passes of a recording, with the requests that showed them."""
    watched, found = Watched(), list[tuple[CompactionRequest, Standing, ClientPass]]()
    for request in compaction_requests(recording):
        ok = not request.reply.startswith("overflow")
        standing, shown = watched.turn(request.body, request.tokens, ok=ok, headers=request.headers)
        if shown is not None:
            found.append((request, standing, shown))
    return found


@pytest.mark.parametrize(
    ("recording", "at", "calls"),
    [("hermes-usage", 31, 1), ("hermes-overflow", 31, 1), ("openclaw-overflow", 16, 2), ("openclaw-usage", 3, 4)],
)
def test_a_recorded_compaction_that_helped(recording: str, at: int, calls: int) -> None:
    """Hermes' call names no conversation; OpenClaw makes two or three, and one to save its memory first."""
    ((request, standing, shown),) = replayed(recording)
    assert request.n == at
    assert (shown.outcome, shown.in_vain, len(shown.calls)) == (ClientOutcome.ACCEPTED, 0, calls)
    assert shown.after_tokens < shown.before_tokens
    assert not standing.loops


def test_hermes_five_compactions_in_one_turn() -> None:
    """From 170 to 315 kB: the third grew less than what was added, and the last was asked for in the same words."""
    found = replayed("hermes-summary-not-smaller")
    assert [request.n for request, _, _ in found] == [31, 33, 35, 37, 39]
    assert [shown.outcome for _, _, shown in found] == [
        ClientOutcome.GREW,
        ClientOutcome.GREW,
        ClientOutcome.GREW,
        ClientOutcome.NO_SHRINK,
        ClientOutcome.GREW,
    ]
    assert [shown.in_vain for _, _, shown in found] == [1, 2, 3, 4, 5]
    assert [standing.loops for _, standing, _ in found] == [False, True, True, True, True]
    assert [shown.news for _, _, shown in found] == [None, News.LOOP, None, None, None]
    assert found[-1][2].repeated
    assert "the same call as before, 5 in a row without gain" in found[-1][2].detail


def grown(watched: Watched, reported: int = 50_000) -> None:
    """A conversation of four prompts, the last of the size given."""
    for last, tokens in ((0, 10_000), (1, 20_000), (2, 30_000), (3, reported)):
        watched.turn(main([*OPENING, *steps(0, last)]), tokens, reported=tokens)


def test_exact_sizes_decide_where_they_are_known() -> None:
    """Counted, it seemed to help; the engine says that it did not. And the other way round."""
    watched = Watched()
    grown(watched)
    watched.turn(summary_call(), 9_000, reported=9_000)
    standing, shown = watched.turn(compacted("s", 2, 3), 30_000, reported=49_000)
    assert standing.in_vain == 0
    assert shown is not None
    assert (shown.outcome, shown.after_tokens, shown.in_vain) == (ClientOutcome.GAIN_TOO_SMALL, 49_000, 1)
    watched.turn(summary_call("again"), 9_000, reported=9_000)
    standing, shown = watched.turn(compacted("t", 2, 3), 49_500, reported=20_000)
    assert standing.in_vain == 2
    assert standing.loops
    assert shown is not None
    assert (shown.outcome, shown.in_vain) == (ClientOutcome.ACCEPTED, 0)
    standing, _ = watched.turn(compacted("t", 2, 4), 21_000, reported=21_000)
    assert standing == Standing(safe_tokens=standing.safe_tokens)


def test_where_the_client_stands_follows_what_the_engine_reports() -> None:
    """A count that is too low would see every pass as a gain; usage is told after the exact figure is known."""
    watched = Watched()
    grown(watched)
    for n in range(2):
        watched.turn(summary_call(str(n)), 9_000, reported=9_000)
        turn_id, standing = watched.prompt(compacted(str(n), 2, 3), 10_000)
        assert standing.in_vain == 0
        exact = watched.watch.standing(turn_id, 50_000)
        assert (exact.in_vain, exact.loops) == (n + 1, n == 1)
        watched.end(turn_id, reported=50_000)
    assert watched.watch.standing(turn_id, 50_000) == Standing()


def test_a_compaction_without_a_call() -> None:
    """Hermes' local fallback, where its call was refused before it reached anybody."""
    watched = Watched()
    grown(watched)
    _, shown = watched.turn(compacted("local", 2, 3), 20_000, reported=20_000)
    assert shown is not None
    assert (shown.outcome, shown.calls) == (ClientOutcome.ACCEPTED, ())
    assert "without a call" in shown.detail


def test_a_call_that_failed_and_a_history_that_was_kept() -> None:
    """OpenClaw tries three times and cancels."""
    watched = Watched()
    grown(watched)
    for _ in range(3):
        watched.turn(summary_call(), 9_000, ok=False)
    _, shown = watched.turn(main([*OPENING, *steps(0, 4)]), 52_000, reported=52_000)
    assert shown is not None
    assert (shown.outcome, shown.failed, shown.repeated, len(shown.calls)) == (ClientOutcome.NO_SHRINK, True, True, 3)


def test_a_call_that_still_runs_has_come_to_nothing_yet() -> None:
    """A client may summarise beside its work."""
    watched = Watched()
    grown(watched)
    call, _ = watched.prompt(summary_call(), 9_000)
    _, shown = watched.turn(main([*OPENING, *steps(0, 4)]), 52_000, reported=52_000)
    assert shown is None
    watched.end(call, reported=9_000)
    _, shown = watched.turn(compacted("s", 3, 5), 20_000, reported=20_000)
    assert shown is not None
    assert shown.outcome is ClientOutcome.ACCEPTED


def title_of(text: str) -> dict[str, Any]:
    system = {"role": "system", "content": "Generate a short, descriptive title (3-7 words)"}
    return {"model": "m", "messages": [system, user(text)]}


def test_side_calls_and_other_conversations_are_no_compactions() -> None:
    watched = Watched()
    grown(watched)
    review = main([*OPENING, *steps(0, 3), user("Review the conversation above and save what you learned.")])
    shorter = [
        title_of("Please look."),
        review,
        main([SYSTEM, user("Something else.")]),
        main([*OPENING, *steps(0, 3)]),
        main([*OPENING, *steps(0, 2), user("No, rather this.")]),
        main([*OPENING, {"role": "assistant", "content": "step 0"}]),
    ]
    for body in shorter:
        standing, shown = watched.turn(body, 5_000, reported=5_000)
        assert shown is None
        assert standing.in_vain == 0
    standing, shown = watched.turn(main([*OPENING, *steps(0, 4)]), 52_000, reported=52_000)
    assert shown is None
    assert watched.watch.compacts_at(ME) is None


def test_a_new_conversation_after_a_call_does_not_count() -> None:
    """Its first prompt is shorter than the last of the one before, and no compaction has made it so."""
    watched = Watched()
    grown(watched)
    watched.turn(summary_call(), 9_000, reported=9_000)
    for session in (None, "named"):
        standing, shown = watched.turn(main([SYSTEM, user("New.")]), 4_000, reported=4_000, session=session)
        assert shown is None
        assert standing.in_vain == 0
    standing, shown = watched.turn(main([SYSTEM, user("New."), *steps(0, 1)]), 5_000, reported=5_000)
    assert (standing.in_vain, shown) == (0, None)


def test_a_retry_is_not_another_compaction() -> None:
    """The same prompt comes again and again; its compaction is judged once."""
    watched = Watched()
    grown(watched)
    watched.turn(summary_call(), 9_000, reported=9_000)
    body = compacted("s" * 100, 2, 3)
    turns = [watched.prompt(body, 51_000) for _ in range(5)]
    assert [standing.in_vain for _, standing in turns] == [1, 0, 0, 0, 0]
    found = [watched.end(turn_id, ok=False) for turn_id, _ in turns]
    assert [shown.in_vain for shown in found if shown] == [1]
    standing, shown = watched.turn(body, 51_000, reported=51_000)
    assert (standing.in_vain, shown) == (1, None)


def test_a_call_is_given_to_the_conversation_that_comes_back_compacted() -> None:
    """Two processes with one key: the one that was answered last goes on, and the other had compacted."""
    watched = Watched()
    grown(watched)
    other = [SYSTEM, user("Another task.")]
    watched.turn(main(other), 8_000, reported=8_000)
    watched.turn(summary_call(), 9_000, reported=9_000)
    guess, standing = watched.prompt(main([*other, *steps(0, 1)]), 9_000)
    assert standing.in_vain == 1
    _, shown = watched.turn(compacted("s", 2, 3), 20_000, reported=20_000)
    assert shown is not None
    assert (shown.outcome, len(shown.calls)) == (ClientOutcome.ACCEPTED, 1)
    assert watched.end(guess, reported=9_000) is None
    standing, shown = watched.turn(main([*other, *steps(0, 2)]), 10_000, reported=10_000)
    assert (standing.in_vain, shown) == (0, None)


def test_a_guess_that_proves_wrong_late_is_taken_back() -> None:
    watched = Watched()
    grown(watched)
    other = [SYSTEM, user("Another task.")]
    watched.turn(main(other), 8_000)
    watched.turn(summary_call(), 9_000, reported=9_000)
    assert watched.turn(main([*other, *steps(0, 1)]), 9_000)[1] is not None
    watched.turn(compacted("s", 2, 3), 20_000, reported=20_000)
    standing, _ = watched.turn(main([*other, *steps(0, 2)]), 10_000, reported=10_000)
    assert standing.in_vain == 0


def in_vain(watched: Watched, times: int, *, told: int | None = None) -> list[Standing]:
    """Compactions that end with what was there; the client is told the truth, or ``told``."""
    found = []
    for n in range(times):
        watched.turn(summary_call(f"{n} {told}"), 9_000, reported=9_000)
        standing, shown = watched.turn(compacted(f"{n} {told}", 2, 3), 50_000, reported=50_000, told=told)
        assert shown is not None
        assert shown.in_vain == standing.in_vain
        found.append(standing)
    return found


STOP = CompressionPolicy(client_loops=ClientLoops.STOP)
ENFORCE = CompressionPolicy(client_loops=ClientLoops.STOP, mode=CompressionMode.ENFORCE)


def test_a_loop_and_what_is_done_about_it() -> None:
    watched = Watched()
    grown(watched)
    assert watched.watch.compacts_at(ME) is None
    first, second = in_vain(watched, 2)
    assert (first.loops, second.loops) == (False, True)
    assert watched.watch.compacts_at(ME) == 50_000
    assert second.safe_tokens == 30_000  # the largest that it let pass
    assert advise(second, STOP) == Advice(tell_at_most=30_000)
    assert advise(second, ENFORCE) == Advice(compress_below=30_000, tell_at_most=30_000)
    assert advise(second, CompressionPolicy()) == Advice()
    assert advise(first, ENFORCE) == Advice()


def test_a_client_that_was_told_less_and_stops_is_told_less_until_it_helps() -> None:
    watched = Watched()
    grown(watched)
    watched_loop = in_vain(watched, 2)[-1]
    assert watched_loop.loops
    for n in range(3, 6):
        standing, _ = watched.turn(compacted("1 None", 2, n), 50_000 + n, reported=50_000 + n, told=30_000)
        assert standing.loops
    watched.turn(summary_call("last"), 9_000, reported=9_000)
    _, shown = watched.turn(compacted("short", 4, 6), 20_000, reported=20_000)
    assert shown is not None
    assert shown.outcome is ClientOutcome.ACCEPTED
    standing, _ = watched.turn(compacted("short", 4, 7), 21_000, reported=21_000)
    assert not standing.loops


def test_a_prompt_that_is_short_by_itself_ends_the_loop_but_not_one_that_is_nearly_so() -> None:
    watched = Watched()
    grown(watched)
    in_vain(watched, 2)
    for n, size, loops in ((3, 28_000, True), (4, 26_000, True), (5, 26_000, False)):
        standing, _ = watched.turn(compacted("1 None", 2, n), size, reported=size)
        assert standing.loops is loops


def test_each_reaction_halves_the_figure_until_it_is_clear_that_the_client_does_not_go_by_it() -> None:
    watched = Watched()
    grown(watched)
    told = []
    for n in range(2 + REACTIONS + 2):
        watched.turn(summary_call(str(n)), 9_000, reported=9_000)
        turn_id, standing = watched.prompt(compacted(str(n), 2, 3), 50_000)
        told.append(advise(standing, STOP).tell_at_most)
        shown = watched.end(turn_id, reported=50_000, told=told[-1])
        assert shown is not None
        assert shown.news is {1: News.LOOP, 1 + REACTIONS: News.DEAF}.get(n)
        assert standing.is_deaf == (n > REACTIONS)
    assert told == [None, 30_000, 15_000, 7_500, None, None, None]


def test_limits_that_end_a_loop_leave_room_to_grow_again() -> None:
    limits = limits_of(CompressionPolicy(trigger=0.8, target=0.4, gain=0.1), 10_000)
    assert limits_for(Advice(), limits) is limits
    assert limits_for(Advice(compress_below=8_000), limits) is limits
    lowered = limits_for(Advice(compress_below=6_000), limits)
    assert (lowered.trigger_tokens, lowered.target_tokens, lowered.gain_tokens) == (6_000, 3_000, 750)
    assert limits_for(Advice(compress_below=1), limits).target_tokens == 1


def learnt(*, let_pass: tuple[int, ...] = (), followed: tuple[int, ...] = (), then: tuple[int, ...] = ()) -> Threshold:
    """In this order; ``then`` was let pass."""
    threshold = Threshold()
    for told in let_pass:
        threshold.on_let_pass(told)
    for told in followed:
        threshold.on_followed(told)
    for told in then:
        threshold.on_let_pass(told)
    return threshold


@pytest.mark.parametrize(
    ("threshold", "safe_tokens"),
    [
        (Threshold(), None),
        (learnt(let_pass=(10_000, 70_000)), None),
        (learnt(let_pass=(10_000, 70_000), followed=(50_000,)), 25_000),
        (learnt(followed=(50_000,), then=(48_000, 47_000)), 48_000),
        (learnt(followed=(50_000,), then=(48_000, 60_000)), 48_000),  # OpenClaw looks only before a user's turn
        (learnt(let_pass=(48_000,), followed=(50_000, 48_000)), 24_000),
        (learnt(let_pass=(48_000,), followed=(50_000, 90_000)), 48_000),
        (learnt(followed=(1,)), 1),
    ],
)
def test_learning_a_threshold(threshold: Threshold, safe_tokens: int | None) -> None:
    assert threshold.safe_tokens == safe_tokens
    threshold.forget()
    assert threshold.safe_tokens is threshold.compacts_at is None


def test_a_compaction_that_a_person_asked_for_is_forgotten_with_time() -> None:
    threshold = Threshold()
    threshold.on_followed(3_000)
    for _ in range(7):
        threshold.on_followed(50_000)
    assert threshold.compacts_at == 3_000
    threshold.on_followed(50_000)
    assert threshold.compacts_at == 50_000


def test_a_size_that_was_refused_teaches_nothing() -> None:
    """A compaction after an overflow is not one that a reported size has caused."""
    watched = Watched()
    grown(watched)
    watched.turn(main([*OPENING, *steps(0, 4)]), 70_000, ok=False)
    watched.turn(summary_call(), 9_000, reported=9_000)
    watched.turn(compacted("s", 2, 3), 20_000, reported=20_000)
    assert watched.watch.compacts_at(ME) is None


def test_an_engine_that_reports_no_tokens_teaches_nothing() -> None:
    watched = Watched()
    watched.turn(main([*OPENING, *steps(0, 4)]), 70_000, reported=0)
    watched.turn(summary_call(), 9_000, reported=0)
    watched.turn(compacted("s", 2, 3), 20_000, reported=0)
    assert watched.watch.compacts_at(ME) is None


def test_what_is_remembered_is_bounded() -> None:
    watched = Watched(limits=WatchLimits(agents=3, lines_per_agent=4, open_turns=5))
    for n in range(40):
        agent = AgentName(f"agent{n % 7}")
        for m in range(6):
            watched.prompt(main([SYSTEM, user(f"task {n} {m}")]), 1_000, agent=agent)
            watched.prompt(summary_call(f"{n} {m}"), 1_000, agent=agent)
        assert len(watched.watch) <= 12
        assert watched.watch.open_turns <= 5


def test_a_turn_that_is_not_known_ends_quietly() -> None:
    watched = Watched()
    turn_id, _ = watched.prompt(summary_call(), 9_000)
    assert watched.kind is TurnKind.COMPACTION
    assert watched.end(turn_id) is None
    assert watched.end(turn_id) is None
