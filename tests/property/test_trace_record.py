"""Whatever an agent does, its trace has every answered turn once, each prompt as long as it was."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from governor.simulate.conversation import Conversation, Sources
from governor.tokens.breaks import CARRIER_MARK
from governor.trace.record import recorded
from governor.types import TurnKind, TurnState
from serve.twin.trace import read_trace, write_trace
from tests.logged import Talk

_STEP = st.tuples(
    st.sampled_from(["on", "again", "failed", "aside", "review", "compacted", "edited", "back", "fresh", "tools"]),
    st.integers(1, 60),  # length of what is new
    st.integers(1, 40),  # output
    st.integers(0, 100),  # cached, in percent
    st.floats(-3, 30),  # think time; below 0: asked before the turn before has ended
    st.floats(0.1, 5),  # how long it takes
)


def _play(steps: Sequence[tuple[str, int, int, int, float, float]], carrier: list[str]) -> Talk:
    talk, at = Talk(), 0.0
    line, texts = ["system " * 5, "task"], iter(range(100_000))
    for what, length, output, cached, think_s, seconds in steps:
        new = f"{next(texts)} ".ljust(length, "n")
        answer = f"{next(texts)} ".ljust(output, "a")
        size, asked, kind, tools = len(line), line, TurnKind.TOOL_STEP, ""
        match what:
            case "on" | "failed":
                line = asked = [*line, answer, new]
            case "aside":
                asked, kind = [*line, answer, new], TurnKind.TITLE
            case "review":
                asked, kind = [*line, answer, new, answer, new], TurnKind.BACKGROUND
            case "compacted":
                line = asked = [line[0], new, *line[max(1, size - 2) :]]
            case "edited":
                line = asked = [*line[: size // 2], new, *line[size // 2 + 1 :]]
            case "back":
                line = asked = [*line[: max(2, size // 2)], answer, new]
            case "fresh":
                line = asked = [line[0], new]
            case "tools":
                tools = new
        failed, asked = what == "failed", [*asked, *carrier]
        share = sum(map(len, asked)) * cached // 100
        talk.ask(
            asked, at=max(0.0, at), seconds=seconds, output=None if failed else output, kind=kind, tools=tools,
            cached=None if failed or cached < 20 else share,
            state=TurnState.UPSTREAM_ERROR if failed else TurnState.OK,
        )  # fmt: skip
        at = max(0.0, at) + max(0.01, seconds + think_s)
    return talk


@given(st.lists(_STEP, min_size=1, max_size=25), st.sampled_from([[], [CARRIER_MARK.decode().ljust(100)]]))
def test_every_answered_turn_is_there_once_with_its_size(
    steps: list[tuple[str, int, int, int, float, float]], carrier: list[str]
) -> None:
    talk = _play(steps, carrier)
    answered = [row for row in talk.rows if row.state is TurnState.OK]
    if not answered:
        return
    made = recorded(talk.rows, name="t")
    assert read_trace(write_trace(made.trace)) == made.trace
    told: list[tuple[int, int]] = []
    for script in made.trace.scripts:
        conversation = Conversation(Sources(), script.session.shared)
        for turn in script.turns:
            told.append((len(conversation.prompt_for(turn)), turn.output_tokens))
            if not turn.aside:
                conversation.answered(conversation.write(turn.output_tokens))
    usages = [row.closed.usage for row in answered if row.closed]
    assert sorted(told) == sorted((usage.prompt_tokens or 0, usage.completion_tokens or 0) for usage in usages)
