"""The shipped trace of the incident does on the twin what was seen in the field, for the reason SGLang has."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec
import pytest

from governor.simulate.incident import FIELD, HOG, SMALL, UNCAPPED, VAIN, incident
from governor.simulate.result import Result, TurnEnd, WaitPlace
from governor.simulate.simulator import simulate
from serve.twin.machine import load_machine
from serve.twin.trace import Agent, Session, Trace, Turn, assembled, read_trace


def shipped() -> Trace:
    return read_trace(resources.files("governor.simulate").joinpath("traces", "incident.trace").read_bytes())


@cache
def played(without: str = "") -> Result:
    """The trace without a governor, and without one of its agents."""
    trace = shipped()
    if without:
        trace = assembled([line for line in trace.lines() if _owner(line) != without])
    return simulate(trace, load_machine("rx7900xtx-tp2"))


def _owner(line: object) -> str | None:
    match line:
        case Agent(name=name):
            return name
        case Session() | Turn():
            return line.agent
    return None


def stall_s(result: Result, agent: str) -> float:
    return max(row.longest_silence_s for row in result.of(agent))


def test_the_shipped_file_is_the_built_trace() -> None:
    """Else build it again, as :mod:`governor.simulate.incident` says."""
    assert shipped() == incident()


def test_its_figures_are_the_published_ones() -> None:
    (runaway,) = [row for row in played().of(HOG) if row.wanted_tokens == FIELD.hog_output_tokens]
    assert runaway.prompt_tokens == FIELD.hog_from_tokens
    assert runaway.prompt_tokens + runaway.output_tokens <= FIELD.window_tokens
    assert runaway.prompt_tokens + runaway.output_tokens > 0.98 * FIELD.hog_to_tokens
    assert runaway.end is TurnEnd.STOP


def test_the_small_agent_stands_still_as_long_as_in_the_field() -> None:
    stall = stall_s(played(), SMALL)
    assert stall >= 40 * 60
    assert stall == pytest.approx(FIELD.stall_minutes * 60, rel=0.1)


def test_it_waits_for_the_head_of_the_queue_which_has_no_room_beside_the_long_answer() -> None:
    result = played()
    row = max(result.of(SMALL), key=lambda each: each.longest_silence_s)
    wait = max(row.waits, key=lambda each: each.seconds)
    assert wait.place is WaitPlace.ENGINE
    assert wait.reason.startswith(f"NO_TOKEN: behind {VAIN}, which needs ")
    assert HOG in wait.behind
    (runaway,) = [each for each in result.of(HOG) if each.wanted_tokens == FIELD.hog_output_tokens]
    assert runaway.first_token_s is not None
    assert runaway.first_token_s <= wait.at_s
    # It is over when the long answer is, and no sooner.
    assert wait.at_s + wait.seconds == pytest.approx(runaway.ended_s, abs=5)
    # It would have had room itself for most of that time.
    during = [each for each in result.samples if wait.at_s < each.at_s < wait.at_s + wait.seconds]
    with_room = [each for each in during if result.capacity.l1_tokens - each.l1_used_tokens > 1.3 * row.prompt_tokens]
    assert len(with_room) > 0.6 * len(during)


def test_the_blocked_prompt_itself_waits_for_tokens() -> None:
    row = max(played().of(VAIN), key=lambda each: each.longest_silence_s)
    wait = max(row.waits, key=lambda each: each.seconds)
    assert wait.reason.startswith("NO_TOKEN: needs ")
    assert row.prompt_tokens >= FIELD.vain_tokens


def test_the_large_prompt_stops_nobody_without_the_long_answer() -> None:
    assert stall_s(played(HOG), SMALL) < 5 * 60


def test_the_long_answer_stops_the_small_agent_for_long_only_with_the_large_prompt() -> None:
    """Without it the small one waits while the two long answers together fill L1, and no longer."""
    assert stall_s(played(VAIN), SMALL) < stall_s(played(), SMALL) / 2.5


def test_the_stall_has_its_cause_without_any_calibration() -> None:
    """With the machine's own accept length the same happens for the same reason, in less time."""
    trace = shipped()
    lines = [
        msgspec.structs.replace(line, accept_length=None) if isinstance(line, Turn) else line for line in trace.lines()
    ]
    result = simulate(assembled(lines), load_machine("rx7900xtx-tp2"))
    row = max(result.of(SMALL), key=lambda each: each.longest_silence_s)
    assert row.longest_silence_s > 15 * 60
    assert any(wait.reason.startswith(f"NO_TOKEN: behind {VAIN}") for wait in row.waits)


def test_compactions_are_in_vain_more_than_a_hundred_times() -> None:
    rows = [row for row in played().compactions if row.agent == VAIN]
    assert len(rows) > FIELD.vain_compactions
    assert all(row.in_vain for row in rows)
    assert all(row.after_tokens >= row.before_tokens for row in rows)
    assert rows[0].before_tokens == pytest.approx(FIELD.vain_tokens, rel=0.02)
    assert rows[-1].after_tokens > FIELD.vain_tokens


def test_nobody_is_capped() -> None:
    assert all(row.cap_requested is None for agent in (HOG, UNCAPPED) for row in played().of(agent))
