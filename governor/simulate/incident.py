"""Builds the shipped trace of the incident: ``python -m governor.simulate.incident > traces/incident.trace``.

Four agents shared a machine of two RX 7900 XTX; one grew from 123K to 196K tokens and wrote 70,000 of them in one
answer, one compacted its 140K in vain for more than a hundred times, one had no cap, and a small one stood still for 49
minutes. The figures that were published are copied into :data:`FIELD`; what nobody has published is chosen here and
said to be so in the trace's header.
"""

from __future__ import annotations

import sys

import msgspec

from governor.types import PromptShape, TurnKind
from serve.twin.trace import (
    Agent,
    Client,
    Compaction,
    Echo,
    Header,
    Line,
    Piece,
    PieceKind,
    Session,
    Shared,
    Trace,
    Turn,
    assembled,
    write_trace,
)


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the incident, as its owner has published it (two forum posts about one machine)."""

    window_tokens: int = 196_608
    compress_threshold: float = 0.65
    stall_minutes: int = 49
    hog_output_tokens: int = 70_000
    hog_from_tokens: int = 123_000
    hog_to_tokens: int = 196_000
    vain_tokens: int = 140_000
    """Before and after each compaction."""
    vain_compactions: int = 100


FIELD = Field()
HOG, VAIN, UNCAPPED, SMALL = "hog", "vain", "uncapped", "small"
SHARED = Shared(name="hermes", tokens=14_000)
"""System prompt and tools, the same of all four: some 50 kB as recorded."""
PATIENCE_S = 3600.0
RUNAWAY_AT_S = 600.0
RUNAWAY_ACCEPT_LENGTH = 1.15
RESUMED_AT_S = RUNAWAY_AT_S + 20
"""The session of 140K: when both long answers are under way."""
UNCAPPED_OUTPUT_TOKENS = 45_000


def incident() -> Trace:
    """The trace."""
    compaction = Compaction(threshold=FIELD.compress_threshold, summary_output=14_000)
    lines: list[Line] = [
        _header(),
        Agent(name=HOG, client=Client.HERMES, policy="hermes"),
        Agent(name=VAIN, client=Client.HERMES, policy="hermes", compaction=compaction),
        Agent(name=UNCAPPED, client=Client.HERMES, policy="hermes"),
        Agent(name=SMALL, client=Client.HERMES, policy="hermes"),
        *_hog(),
        *_vain(),
        *_uncapped(),
        *_small(),
    ]
    return assembled(lines)


def _header() -> Header:
    return Header(
        name="incident",
        summary="Four agents on one machine; one writes 70,000 tokens in one answer, and a small one stands still.",
        window_tokens=FIELD.window_tokens,
        sources=(
            "published by the machine's owner: four agents, a window of 196,608, compression at 65 %, one that went "
            "from 123K to 196K and wrote 70,000 tokens, one that compacted 140K to 140K or more over 100 times, one "
            "without a cap, and 49 minutes in which the others stood still",
            "Hermes Agent 0.19.0 as recorded: it waits 120 s for a summary and cuts nothing without it",
        ),
        calibration={
            "accept_length": f"{RUNAWAY_ACCEPT_LENGTH} for the two answers that do not stop, over the machine's own; "
            "70,000 tokens in 49 minutes are 23.8 a second, and text that repeats itself in thought is hard to draft; "
            "with the machine's own the stall is about half as long, for the same reason",
            "patience_s": f"{PATIENCE_S:.0f}: who stood still for 49 minutes had not hung up before (Hermes' own 900 s "
            "can be set)",
            "summary_output": "14,000: a reasoning model thinks before it writes the 9,830 that Hermes asks for",
            "start_s": f"{RESUMED_AT_S:.0f} for the session of 140K, which is resumed while both long answers are "
            "written: when it came is not published; at other times between 20 s and 20 minutes the small one stands "
            "still for 40 to 50 minutes, too, though it may be another prompt that was found too large",
            "sizes": "of the agent without a cap and of the small one nothing is published: 22K and 16K at first, so "
            "that they fit beside the hog",
        },
    )


def _hog() -> list[Line]:
    """Grows in tool steps to 123K, and then does not stop before the window does."""
    turns = [_turn(HOG, [Piece(tokens=80_000)], shape=PromptShape.FRESH, output=400)]
    grown = SHARED.tokens + 80_000
    step_tokens, written = 2600, 400
    while grown + written + step_tokens < FIELD.hog_from_tokens:
        turns.append(_turn(HOG, [Piece(kind=PieceKind.TOOL, tokens=step_tokens)], after_s=15.0, output=written))
        grown += written + step_tokens
    rest = FIELD.hog_from_tokens - grown - written
    runaway = _turn(HOG, [Piece(kind=PieceKind.TOOL, tokens=rest)], after_s=5.0, output=FIELD.hog_output_tokens)
    turns.append(msgspec.structs.replace(runaway, at_s=RUNAWAY_AT_S, accept_length=RUNAWAY_ACCEPT_LENGTH))
    return [Session(agent=HOG, session="main", shared=SHARED), *turns]


def _vain() -> list[Line]:
    """A resumed session of 140K, over its threshold: it compacts before each step, and the summary is never there in
    time, so that the next step begins where this one began."""
    results = (FIELD.vain_tokens - SHARED.tokens - 1000) // 1500
    history = [Piece(tokens=1000), *(Piece(kind=PieceKind.TOOL, tokens=1500) for _ in range(results))]
    turns = [_turn(VAIN, history, shape=PromptShape.FRESH, output=100)]
    for _ in range(FIELD.vain_compactions + 5):
        turns.append(_turn(VAIN, [Piece(kind=PieceKind.TOOL, tokens=120)], after_s=5.0, output=80))
    return [Session(agent=VAIN, session="main", start_s=RESUMED_AT_S, shared=SHARED), *turns]


def _uncapped() -> list[Line]:
    """Answers at length, and once without an end in sight."""
    turns = [_turn(UNCAPPED, [Piece(tokens=8000)], shape=PromptShape.FRESH, output=3000)]
    turns.append(_turn(UNCAPPED, [Piece(tokens=300)], after_s=40.0, output=3000))
    endless = _turn(UNCAPPED, [Piece(tokens=300)], after_s=40.0, output=UNCAPPED_OUTPUT_TOKENS)
    turns.append(msgspec.structs.replace(endless, at_s=RUNAWAY_AT_S + 5, accept_length=RUNAWAY_ACCEPT_LENGTH))
    turns += [_turn(UNCAPPED, [Piece(tokens=300)], after_s=40.0, output=3000) for _ in range(10)]
    return [Session(agent=UNCAPPED, session="main", start_s=30.0, shared=SHARED), *turns]


def _small() -> list[Line]:
    """Short turns, all day."""
    turns = [_turn(SMALL, [Piece(tokens=2000)], shape=PromptShape.FRESH, output=200)]
    turns += [_turn(SMALL, [Piece(tokens=100)], after_s=20.0, output=150) for _ in range(300)]
    return [Session(agent=SMALL, session="main", start_s=40.0, shared=SHARED), *turns]


def _turn(
    agent: str,
    new: list[Piece],
    *,
    output: int,
    after_s: float = 0.0,
    shape: PromptShape = PromptShape.CONTINUATION,
) -> Turn:
    return Turn(
        agent=agent,
        session="main",
        kind=TurnKind.TOOL_STEP,
        after_s=after_s,
        shape=shape,
        echo=Echo.REWRITTEN,
        new=tuple(new),
        output_tokens=output,
        patience_s=PATIENCE_S,
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(write_trace(incident()))
