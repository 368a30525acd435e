"""A trace out of a turn log: how each prompt stands to the one before it, and what the log cannot tell."""

from __future__ import annotations

import pytest

from governor.simulate.conversation import Conversation, Sources
from governor.store.model import StoredTurn, TurnClosed
from governor.tokens.breaks import CARRIER_MARK
from governor.trace.record import CARRIER_TOKENS, NothingToRecord, Recording, recorded
from governor.types import AgentName, PromptShape, TurnId, TurnKind, TurnState, Usage
from serve.twin.trace import Client, Echo, Piece, PieceKind, Shared, Trace, Turn, read_trace, write_trace
from tests.logged import T0, Talk

S, A1, B1, A2, B2 = "s" * 100, "a" * 20, "b" * 7, "A" * 30, "B" * 50
ANSWER = "x" * 10
FRESH, GOES_ON, BRANCH, REPEAT = PromptShape.FRESH, PromptShape.CONTINUATION, PromptShape.BRANCH, PromptShape.REPEAT


def turns(trace: Trace) -> list[list[Turn]]:
    return [list(script.turns) for script in trace.scripts]


def sizes(trace: Trace) -> list[list[int]]:
    """The prompts as the simulator would make them."""
    found: list[list[int]] = []
    for script in trace.scripts:
        conversation = Conversation(Sources(), script.session.shared)
        found.append([])
        for turn in script.turns:
            found[-1].append(len(conversation.prompt_for(turn)))
            if not turn.aside:
                conversation.answered(conversation.write(turn.output_tokens))
    return found


def noted(recording: Recording, words: str) -> bool:
    return any(words in line for line in recording.trace.header.unknown)


def test_a_conversation_goes_on_in_time_and_in_tokens() -> None:
    talk = Talk()
    talk.ask([S, A1], at=0, seconds=2, finish_reason="tool_calls", cap_requested=4096, window_tokens=9000)
    talk.ask([S, A1, ANSWER, B1], at=5, seconds=1, cached=125)
    talk.ask([S, A1, ANSWER, B1, ANSWER, A2], at=66, kind=TurnKind.FINAL, output=77)
    made = recorded(talk.rows, name="mine")
    assert turns(made.trace) == [[
        Turn(agent="ada", session="s1", shape=FRESH, new=(Piece(tokens=120),), output_tokens=10, cap=4096),
        Turn(agent="ada", session="s1", after_s=3, shape=GOES_ON, new=(Piece(kind=PieceKind.TOOL, tokens=7),),
             output_tokens=10),
        Turn(agent="ada", session="s1", after_s=60, kind=TurnKind.FINAL, shape=GOES_ON, new=(Piece(tokens=30),),
             output_tokens=77),
    ]]  # fmt: skip
    assert sizes(made.trace) == [[120, 137, 177]]
    assert made.trace.header.window_tokens == 9000
    assert (made.turns, made.left_out) == (3, {})
    assert not noted(made, "send answers back")
    assert read_trace(write_trace(made.trace)) == made.trace


def test_answers_are_new_text_unless_the_cache_showed_otherwise() -> None:
    talk = Talk()
    talk.ask([S, A1], at=0)
    talk.ask([S, A1, ANSWER, B1], at=5, cached=120)
    made = recorded(talk.rows, name="t")
    assert turns(made.trace)[0][1].echo is Echo.REWRITTEN
    assert noted(made, "1 x agents may send answers back unchanged")
    assert sizes(made.trace) == [[120, 137]]


def test_reasoning_does_not_come_back_and_a_dropped_answer_leaves_only_what_is_new() -> None:
    talk = Talk()
    usage = Usage(prompt_tokens=120, completion_tokens=900, reasoning_tokens=890)
    talk.ask([S, A1], at=0, usage=usage)
    talk.ask([S, A1, ANSWER, B1], at=5, output=500)
    talk.ask([S, A1, ANSWER, B1, "y", B2], at=9)
    made = recorded(talk.rows, name="t")
    _, second, third = turns(made.trace)[0]
    assert (second.echo, second.echo_tokens, second.new) == (Echo.REWRITTEN, 10, (Piece(tokens=7),))
    assert (third.echo, third.new) == (Echo.DROPPED, (Piece(tokens=51),))
    assert sizes(made.trace) == [[120, 137, 188]]


def test_a_side_call_does_not_move_the_conversation() -> None:
    talk = Talk()
    talk.ask([S, A1], at=0)
    talk.ask([S, A1, ANSWER, "title, please"], at=2, kind=TurnKind.TITLE)
    talk.ask([S, A1, ANSWER, B1], at=10, cached=128)
    made = recorded(talk.rows, name="t")
    [[first, title, second]] = turns(made.trace)
    assert [first.aside, title.aside, second.aside] == [False, True, False]
    assert (title.shape, second.shape, second.after_s) == (GOES_ON, GOES_ON, 7)
    assert sizes(made.trace) == [[120, 143, 137]]


def test_a_review_of_several_steps_is_gone_back_from() -> None:
    talk = Talk()
    main = [S, A1]
    talk.ask(main, at=0)
    talk.ask([*main, ANSWER, "review"], at=2, kind=TurnKind.BACKGROUND)
    talk.ask([*main, ANSWER, "review", ANSWER, B2], at=4, kind=TurnKind.BACKGROUND)
    talk.ask([*main, ANSWER, B1], at=10, cached=130)
    made = recorded(talk.rows, name="t")
    [[_, review, step, back]] = turns(made.trace)
    assert [each.aside for each in (review, step, back)] == [False] * 3
    assert (step.shape, back.shape, back.branch_at) == (GOES_ON, BRANCH, 130)
    assert sizes(made.trace) == [[120, 136, 196, 137]]


def test_what_runs_beside_its_conversation_is_a_session_of_its_own() -> None:
    talk = Talk()
    talk.ask([S, A1], at=0)
    talk.ask([S, A1, ANSWER, "review"], at=2, seconds=60, kind=TurnKind.BACKGROUND)
    talk.ask([S, A1, ANSWER, B1], at=10)
    made = recorded(talk.rows, name="t")
    assert [[turn.shape for turn in script] for script in turns(made.trace)] == [[FRESH, GOES_ON], [FRESH]]
    assert made.trace.scripts[1].session.start_s == 2
    assert noted(made, "1 x lines of a conversation ran beside another")
    assert sizes(made.trace) == [[120, 137], [136]]


def test_a_compacted_history_branches_off_where_the_log_knows_of_no_end() -> None:
    talk = Talk()
    talk.ask([S, A1], at=0)
    talk.ask([S, A1, ANSWER, B1], at=5)
    talk.ask([S, A1, ANSWER, B1, ANSWER, "summarise"], at=8, kind=TurnKind.COMPACTION)
    talk.ask([S, "summary", ANSWER, B1, ANSWER, A2], at=20, cached=64)
    made = recorded(talk.rows, name="t")
    [compacted] = [turn for turn in turns(made.trace)[0] if turn.shape is BRANCH]
    assert compacted.branch_at == 64
    assert noted(made, "1 x prompts share more with their conversation than the log tells")
    assert sizes(made.trace) == [[120, 137, 156, 164]]


def test_a_carrier_moves_to_the_end_of_each_prompt() -> None:
    talk, carrier = Talk(), f"{CARRIER_MARK.decode()} none".ljust(260)
    line = [S, A1]
    for at, new in enumerate((B1, A2, B2)):
        talk.ask([*line, carrier], at=at * 9)
        line += [ANSWER, new]
    assert talk.shapes == [FRESH, GOES_ON, GOES_ON]
    [[first, second, third]] = turns(recorded(talk.rows, name="t").trace)
    assert [turn.shape for turn in (first, second, third)] == [FRESH, GOES_ON, GOES_ON]
    assert (first.carrier_tokens, second.carrier_tokens, third.carrier_tokens) == (CARRIER_TOKENS, CARRIER_TOKENS, 0)
    assert sum(piece.tokens for piece in second.new) == CARRIER_TOKENS + len(B1)
    assert sizes(recorded(talk.rows, name="t").trace) == [[380, 397, 437]]


def test_other_tools_share_nothing_though_messages_are_equal() -> None:
    talk = Talk()
    talk.ask([S, A1], at=0, tools="one")
    talk.ask([S, A1, ANSWER, B1], at=5, tools="other")
    assert talk.shapes == [FRESH, BRANCH]
    assert [turn.shape for turn in turns(recorded(talk.rows, name="t").trace)[0]] == [FRESH, FRESH]


def test_what_was_sent_again_after_a_failure_stands_where_the_first_try_stood() -> None:
    talk = Talk()
    talk.ask([S, A1], at=0)
    talk.ask([S, A1, ANSWER, B1], at=5, output=None, state=TurnState.UPSTREAM_ERROR)
    talk.ask([S, A1, ANSWER, B1], at=7, output=None, state=TurnState.UPSTREAM_ERROR)
    talk.ask([S, A1, ANSWER, B1], at=9)
    talk.ask([S, A1, ANSWER, B1], at=15)
    assert talk.shapes[-2:] == [REPEAT, REPEAT]
    made = recorded(talk.rows, name="t")
    assert [turn.shape for turn in turns(made.trace)[0]] == [FRESH, GOES_ON, REPEAT]
    assert [turn.after_s for turn in turns(made.trace)[0]] == [0, 8, 5]
    assert sizes(made.trace) == [[120, 137, 137]]
    assert made.left_out == {"upstream_error, without a prompt's or an answer's size": 2}


def test_a_system_prompt_is_as_long_as_the_cache_gave_of_it_to_fresh_prompts() -> None:
    rows = []
    for number, session in enumerate(("one", "two", "three")):
        talk = Talk(session=session)
        talk.ask([S, "abc"[number] * 40], at=number * 10, cached=number and 96)
        rows += talk.rows
    made = recorded(rows, name="t")
    shared = Shared(name="ada/system", tokens=96)
    assert [script.session.shared for script in made.trace.scripts] == [shared] * 3
    assert sizes(made.trace) == [[140], [140], [140]]


def test_agents_and_times_and_names() -> None:
    ada, bob = Talk("ada"), Talk("bob")
    bob.ask([S, A1], at=0)
    ada.ask([S, A1], at=1.25)
    made = recorded([*bob.rows, *ada.rows], name="t", bases={AgentName("ada"): "hermes"}, anonymous=True)
    assert [(agent.name, agent.client, agent.policy) for agent in made.trace.agents] == [
        ("agent-1", Client.PLAIN, None),
        ("agent-2", Client.HERMES, "hermes"),
    ]
    assert [script.session.start_s for script in made.trace.scripts] == [0, 1.25]
    assert b"ada" not in write_trace(made.trace)
    assert b"bob" not in write_trace(made.trace)


def test_sizes_that_are_not_the_engines_are_noted() -> None:
    talk = Talk()
    talk.ask([S, A1], at=0, usage=Usage(), state=TurnState.CLIENT_ABORTED, completion_tokens_estimated=33)
    talk.ask([S, A1, ANSWER, B1], at=9, state=TurnState.TRUNCATED)
    made = recorded(talk.rows, name="t")
    assert turns(made.trace)[0][0].output_tokens == 33
    for words in ("size that the governor counted", "an estimated size", "broke off", "ended at their cap"):
        assert noted(made, f"1 x {words}") or noted(made, words)


def test_a_conversation_older_than_the_recording_is_cold() -> None:
    talk = Talk()
    talk.ask([S, A1], at=0)
    talk.ask([S, A1, ANSWER, B1], at=5)
    made = recorded(talk.rows[1:], name="t")
    assert turns(made.trace)[0][0].shape is FRESH
    assert noted(made, "1 x conversations are older than the recording")


def test_a_log_without_a_turn_to_replay_is_an_error_that_says_why() -> None:
    with pytest.raises(NothingToRecord, match="no turn of these agents"):
        recorded([], name="t")
    refused = Talk().ask([S], at=0, output=None, state=TurnState.REFUSED)
    lost = StoredTurn(
        turn_id=TurnId("t"), run_id="r", state=TurnState.OK, agent=None, route=None, opened_at=None,
        closed=TurnClosed(turn_id=TurnId("t"), state=TurnState.OK, closed_at=T0),
    )  # fmt: skip
    with pytest.raises(NothingToRecord, match=r"1 refused, without .*, 1 without an end or an opening"):
        recorded([refused, lost], name="t")
