"""The shipped trace of the incident does on the twin what was seen in the field, for the reason SGLang has."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec
import pytest

from governor.simulate.incident import FIELD, HOG, RUNAWAY_AT_S, SMALL, UNCAPPED, VAIN, incident
from governor.simulate.result import Result, TurnEnd, TurnRow, Wait, WaitPlace
from governor.simulate.simulator import simulate
from serve.twin.machine import Machine, load_machine
from serve.twin.trace import Agent, Line, Session, Trace, Turn, assembled, read_trace


def shipped() -> Trace:
    return read_trace(resources.files("governor.simulate").joinpath("traces", "incident.trace").read_bytes())


@cache
def played(*without: str) -> Result:
    """The trace without a governor, and without some of its agents."""
    return on_machine([line for line in shipped().lines() if _owner(line) not in without])


def on_machine(lines: list[Line], machine: Machine | None = None) -> Result:
    return simulate(assembled(lines), machine or load_machine("rx7900xtx-tp2"))


def _owner(line: object) -> str | None:
    match line:
        case Agent(name=name):
            return name
        case Session() | Turn():
            return line.agent
    return None


def stall_s(result: Result, agent: str) -> float:
    return stalled(result, agent)[0].longest_silence_s


def stalled(result: Result, agent: str) -> tuple[TurnRow, Wait]:
    """The turn that stood still longest, and its longest wait."""
    row = max(result.of(agent), key=lambda each: each.longest_silence_s)
    return row, max(row.waits, key=lambda each: each.seconds)


def runaway(result: Result) -> TurnRow:
    """The hog's long answer."""
    (row,) = [each for each in result.of(HOG) if each.wanted_tokens == FIELD.hog_output_tokens]
    return row


def is_over_with(wait: Wait, answer: TurnRow, result: Result) -> bool:
    """Whether somebody waited until a long answer had ended, and no longer than until the large prompt, which was
    before him, was computed then."""
    over_at, (first, *_) = wait.at_s + wait.seconds, result.of(VAIN)
    computed_at = first.first_token_s
    assert first.admitted_s is not None
    assert computed_at is not None
    computing_s = computed_at - first.admitted_s if first.admitted_s >= answer.ended_s else 0.0
    return 0.0 <= over_at - answer.ended_s <= computing_s + 30.0


def test_the_shipped_file_is_the_built_trace() -> None:
    """Else build it again, as :mod:`governor.simulate.incident` says."""
    assert shipped() == incident()


def test_its_figures_are_the_published_ones() -> None:
    row = runaway(played())
    assert row.prompt_tokens == FIELD.hog_from_tokens
    assert row.prompt_tokens + row.output_tokens <= FIELD.window_tokens
    assert row.prompt_tokens + row.output_tokens > 0.98 * FIELD.hog_to_tokens
    assert row.end is TurnEnd.STOP


def test_the_small_agent_stands_still_as_long_as_in_the_field() -> None:
    stall = stall_s(played(), SMALL)
    assert stall >= 40 * 60
    assert stall == pytest.approx(FIELD.stall_minutes * 60, rel=0.1)


def test_it_waits_for_the_head_of_the_queue_which_has_no_room_beside_the_long_answer() -> None:
    result = played()
    row, wait = stalled(result, SMALL)
    assert wait.place is WaitPlace.ENGINE
    assert wait.reason.startswith(f"NO_TOKEN: behind {VAIN}, which needs ")
    assert HOG in wait.behind
    long_answer = runaway(result)
    assert long_answer.first_token_s is not None
    assert long_answer.first_token_s <= wait.at_s
    assert is_over_with(wait, long_answer, result)
    # It would have had room itself for most of that time.
    during = [each for each in result.samples if wait.at_s < each.at_s < wait.at_s + wait.seconds]
    with_room = [each for each in during if result.capacity.l1_tokens - each.l1_used_tokens > 1.3 * row.prompt_tokens]
    assert len(with_room) > 0.6 * len(during)


def test_the_blocked_prompt_itself_waits_for_tokens() -> None:
    row, wait = stalled(played(), VAIN)
    assert wait.reason.startswith("NO_TOKEN: needs ")
    assert row.prompt_tokens == pytest.approx(FIELD.vain_tokens, rel=0.02)
    # It is over when the long answer is, and no sooner.
    assert wait.at_s + wait.seconds == pytest.approx(runaway(played()).ended_s, abs=1)


def test_the_large_prompt_stops_nobody_without_the_long_answers() -> None:
    assert stall_s(played(HOG, UNCAPPED), SMALL) < 3 * 60


def test_without_the_hog_it_is_over_when_the_other_long_answer_is() -> None:
    """Two prompts have room beside that one; what stops the queue is that SGLang looks at it once, when the large
    prompt's turn before has just ended and its copy to L2 is not made."""
    result = played(HOG)
    _, wait = stalled(result, SMALL)
    (endless,) = [each for each in result.of(UNCAPPED) if each.wanted_tokens > 40_000]
    assert wait.at_s + wait.seconds == pytest.approx(endless.ended_s, abs=5)
    assert wait.seconds < stall_s(played(), SMALL) / 2.5


def test_without_the_large_prompt_the_small_one_has_room_until_the_long_answers_fill_l1() -> None:
    result = played(VAIN)
    row, wait = stalled(result, SMALL)
    assert wait.reason.startswith("NO_TOKEN: needs ")  # its own prompt
    assert wait.at_s > RUNAWAY_AT_S + 20 * 60
    (sample,) = [each for each in result.samples if 0 <= each.at_s - wait.at_s < 30]
    assert result.capacity.l1_tokens - sample.l1_used_tokens < 1.3 * row.prompt_tokens
    assert wait.seconds < stall_s(played(), SMALL) / 2


def test_without_the_uncapped_answer_the_hog_s_is_enough() -> None:
    _, wait = stalled(played(UNCAPPED), SMALL)
    assert wait.seconds >= 40 * 60
    assert wait.reason.startswith(f"NO_TOKEN: behind {VAIN}, which needs ")


@pytest.mark.parametrize("start_s", [20.0, 300.0, 1200.0])
def test_the_stall_does_not_hang_on_when_the_large_prompt_comes(start_s: float) -> None:
    """Who is found too large may be another one. It ends with the long answer."""
    lines = [
        msgspec.structs.replace(line, start_s=start_s) if isinstance(line, Session) and line.agent == VAIN else line
        for line in shipped().lines()
    ]
    result = on_machine(lines)
    _, wait = stalled(result, SMALL)
    assert wait.reason.startswith("NO_TOKEN: behind ")
    assert wait.seconds > 0.8 * FIELD.stall_minutes * 60
    assert is_over_with(wait, runaway(result), result)


def test_the_stall_has_its_cause_without_any_calibration() -> None:
    """With the machine's own accept length the same happens for the same reason, in less time."""
    lines = [
        msgspec.structs.replace(line, accept_length=None) if isinstance(line, Turn) else line
        for line in shipped().lines()
    ]
    result = on_machine(lines)
    _, wait = stalled(result, SMALL)
    assert wait.seconds > 15 * 60
    assert wait.reason.startswith(f"NO_TOKEN: behind {VAIN}, which needs ")
    assert is_over_with(wait, runaway(result), result)


def test_no_request_has_a_priority_so_that_the_engine_is_sglang_as_it_comes() -> None:
    """The machine has the profile's flags, which turn priorities on for the governor; the field had no governor."""
    machine = load_machine("rx7900xtx-tp2")
    plain = msgspec.structs.replace(machine, engine=msgspec.structs.replace(machine.engine, priority_scheduling=False))
    assert machine.engine.priority_scheduling
    assert on_machine(shipped().lines(), plain).turns == played().turns


def test_compactions_are_in_vain_more_than_a_hundred_times() -> None:
    rows = [row for row in played().compactions if row.agent == VAIN]
    assert len(rows) > FIELD.vain_compactions
    assert all(row.in_vain for row in rows)
    assert all(row.after_tokens >= row.before_tokens for row in rows)
    assert rows[0].before_tokens == pytest.approx(FIELD.vain_tokens, rel=0.02)
    assert rows[-1].after_tokens > FIELD.vain_tokens


def test_nobody_is_capped() -> None:
    assert all(row.cap_requested is None for agent in (HOG, UNCAPPED) for row in played().of(agent))
