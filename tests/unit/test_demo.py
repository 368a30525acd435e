"""The demo's figures, its time, its conversations."""

from __future__ import annotations

import asyncio
import time

import pytest

from governor.demo.conversation import TOOLS, Conversation
from governor.demo.figures import AgentFigures, Mode, RunFigures, StallWatch, duration_text
from governor.demo.pace import Pace, PacedLoop
from governor.demo.policies import policy_text
from governor.demo.show import Board
from governor.demo.world import unless_ended
from serve.errors import ServeError
from serve.twin.trace import Piece, PieceKind, Shared
from serve.twin_server.template import chat_ids

SHARED = Shared(name="hermes", tokens=14_000)


class TestStallWatch:
    def test_the_first_turn_counts_apart(self) -> None:
        watch = StallWatch("small")
        watch.on_asked(0)
        watch.on_token(90)
        watch.on_ended(95, ok=True, written_tokens=7)
        watch.on_asked(100)
        watch.on_token(104)
        assert watch.figures(105) == AgentFigures(
            agent="small", turns=1, written_tokens=7, first_stall_s=90, longest_stall_s=4, silent_s=1
        )

    def test_a_silence_counts_while_it_lasts(self) -> None:
        watch = StallWatch("small")
        watch.on_ended(0, ok=True)
        watch.on_asked(10)
        assert watch.figures(610).longest_stall_s == 600
        assert watch.figures(611).silent_s == 601

    def test_a_silence_within_an_answer(self) -> None:
        watch = StallWatch("hog")
        watch.on_ended(0, ok=True)
        watch.on_asked(1)
        watch.on_token(2)
        watch.on_token(60)
        watch.on_ended(61, ok=True)
        assert watch.figures(1000).longest_stall_s == 58
        assert watch.figures(1000).silent_s is None

    def test_a_further_try_is_the_same_silence(self) -> None:
        watch = StallWatch("small")
        watch.on_ended(0, ok=False)
        watch.on_asked(1)
        watch.on_asked(50)
        watch.on_token(60)
        assert watch.figures(60).longest_stall_s == 59
        assert watch.figures(60).failed == 1

    def test_compactions(self) -> None:
        watch = StallWatch("vain")
        watch.on_compacted(in_vain=True)
        watch.on_compacted(in_vain=False)
        assert (watch.figures(0).compactions, watch.figures(0).vain_compactions) == (2, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (57.4, "57 s"), (60, "1 min"), (245, "4 min 5 s"), (599.9, "10 min"), (2982, "49 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_board_keeps_the_last_run_of_each_mode() -> None:
    runs = [RunFigures(mode=mode, life=life) for life, mode in enumerate((*Mode, Mode.GOVERNED))]
    board = Board()
    for run in runs:
        board = board.with_run(run)
    assert board.now is runs[-1]
    assert board.last == {Mode.UNGOVERNED: runs[1], Mode.GOVERNED: runs[2]}


def test_an_hour_at_speed() -> None:
    """Sleeps, time-outs and the clock agree."""
    pace = Pace.now_at(36_000)

    async def an_hour() -> tuple[float, float]:
        loop, began, wall = asyncio.get_running_loop(), pace.monotonic(), pace.wall()
        assert loop.time() == pytest.approx(began, abs=3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.sleep(7200)
        return pace.monotonic() - began, pace.wall() - wall

    began = time.monotonic()
    with asyncio.Runner(loop_factory=lambda: PacedLoop(36_000)) as runner:
        passed, wall = runner.run(an_hour())
    assert time.monotonic() - began < 5
    assert passed >= 3600
    assert wall == pytest.approx(passed, abs=3600)


class TestConversation:
    def test_its_prompt_is_as_long_as_the_trace_says(self) -> None:
        talk = Conversation("vain", SHARED)
        talk.add([Piece(tokens=1000), *(Piece(kind=PieceKind.TOOL, tokens=1500) for _ in range(20))])
        prompt = chat_ids(talk.messages, list(TOOLS), enable_thinking=False, continue_final_message=False)
        assert talk.tokens == 14_000 + 1000 + 20 * 1500
        assert len(prompt) == pytest.approx(talk.tokens, rel=0.02)

    def test_equal_beginnings_are_equal(self) -> None:
        one, other = Conversation("hog", SHARED), Conversation("small", SHARED)
        for talk in (one, other):
            talk.add([Piece(tokens=100)])
        assert one.messages[0] == other.messages[0]
        assert one.messages[1] != other.messages[1]

    def test_a_result_answers_the_call_of_the_answer_before(self) -> None:
        talk = Conversation("hog", SHARED)
        talk.add([Piece(tokens=100)])
        talk.answered("I look.", [{"id": "call_x", "type": "function", "function": {"name": "read_file"}}], 40)
        talk.add([Piece(kind=PieceKind.TOOL, tokens=200)])
        assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "tool"]
        assert talk.messages[-1]["tool_call_id"] == "call_x"

    def test_a_summary_takes_the_middles_place(self) -> None:
        talk = Conversation("vain", SHARED)
        talk.add([Piece(tokens=1000), *(Piece(kind=PieceKind.TOOL, tokens=1500) for _ in range(20))])
        before = talk.tokens
        assert "[tool]" in talk.middle_text(3, 8, 6000)
        talk.compact(3, 8, "What was done.")
        assert talk.tokens < 0.55 * before
        assert "What was done." in talk.messages[4]["content"]
        roles = [message["role"] for message in talk.messages]
        assert roles[:5] == ["system", "user", "assistant", "tool", "user"]
        assert roles[5] != "tool"


def test_neither_mode_cuts_anything() -> None:
    for mode in Mode:
        assert "tool_step = 200000" in policy_text(mode)
    assert "enabled = false" in policy_text(Mode.UNGOVERNED)
    assert "[slices]" not in policy_text(Mode.GOVERNED)


async def test_nobody_waits_for_a_governor_that_has_ended() -> None:
    async def failing() -> None:
        raise OSError("no room on the disk")

    async def ending() -> None:
        pass

    with pytest.raises(OSError, match="no room"):
        await unless_ended(asyncio.create_task(failing()), asyncio.Event().wait())
    with pytest.raises(ServeError, match="has ended"):
        await unless_ended(asyncio.create_task(ending()), asyncio.Event().wait())
    running = asyncio.create_task(asyncio.Event().wait())
    await unless_ended(running, asyncio.sleep(0))
    assert not running.done()
    running.cancel()
