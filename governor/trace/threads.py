"""Turns of one logged session, put into threads: in each, every turn stands to the one before it as a trace can tell.

The log knows of a prompt how many messages it shares with *some* earlier prompt of its session, and how many each
prompt had. From that follows which one it went on from. A session with side calls, reviews or parallel requests has
several such lines; a trace's session has one, in which turns follow each other. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from governor.types import AgentName, PromptShape, TurnKind

_SAME_MOMENT_S: Final = 0.05
"""A turn that begins so long before the one before it has closed is still its successor: the client had its answer."""
_LOOKED_BACK: Final = 64
"""Turns among which the one is sought that a branch left."""
_GOES_ON: Final = frozenset({PromptShape.CONTINUATION, PromptShape.REPEAT})
_SIDE_CALLS: Final = frozenset({TurnKind.COMPACTION, TurnKind.TITLE, TurnKind.BACKGROUND, TurnKind.SUMMARY})


class Asked(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One turn of the log, as far as a trace needs it. Times are Unix seconds."""

    agent: AgentName
    at: float
    ended_at: float
    kind: TurnKind
    shape: PromptShape
    messages: int | None
    shared_messages: int
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    """0: it never got an answer."""
    reasoning_tokens: int
    """Of the output; 0 where the engine did not tell."""
    cap: int | None
    calls_tool: bool
    """It ended with a tool call, so what comes next is its result."""

    @property
    def sent_back_tokens(self) -> int:
        """Of its answer, in the next prompt: reasoning stays away."""
        return self.output_tokens - self.reasoning_tokens


class Placed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A turn in its thread."""

    turn: Asked
    shape: PromptShape
    before: Asked | None
    """Whose prompt and answer the thread's conversation is; ``None``: nobody's yet."""
    branch_at: int = 0
    """``branch``: so many tokens are the conversation's, at least."""
    exact: bool = True
    """``False``: how much it shares is more than the log tells."""
    aside: bool = False
    carrier_moved: bool = False
    """``continuation``: what ended the prompt before has moved to the end of this one (OpenClaw's carrier)."""


class _Thread:
    __slots__ = ("busy_until", "head", "line", "placed")

    def __init__(self) -> None:
        self.placed: list[Placed] = []
        self.line: list[tuple[Asked, int | None]] = []
        """Turns since the last fresh one, each with where it branched off."""
        self.head: Asked | None = None
        """Whose prompt and answer the conversation is."""
        self.busy_until = 0.0

    def common(self, turn: Asked) -> int | None:
        """How many tokens of a turn's prompt begin the conversation as it stands; ``None``: it is not of this line."""
        if turn is self.head:
            return turn.prompt_tokens
        tokens: int | None = None
        for each, branch_at in self.line:
            if each is turn:
                tokens = turn.prompt_tokens
            elif tokens is not None and branch_at is not None:
                tokens = min(tokens, branch_at)
        return tokens

    def put(self, placed: Placed) -> None:
        self.placed.append(placed)
        self.busy_until = placed.turn.ended_at
        if placed.aside:
            return
        self.head = placed.turn
        if placed.shape is PromptShape.FRESH:
            self.line.clear()
        self.line.append((placed.turn, placed.branch_at if placed.shape is PromptShape.BRANCH else None))


def threads(turns: Sequence[Asked]) -> list[list[Placed]]:
    """The turns of a session, given in order of their arrival. Those that were never answered are left out."""
    turns = _answered(turns)
    parents = _parents(turns)
    waiting: dict[int, deque[Asked]] = {}
    for turn, parent in zip(turns, parents, strict=True):
        if parent is not None:
            waiting.setdefault(id(parent), deque()).append(turn)
    made: list[_Thread] = []
    for turn, parent in zip(turns, parents, strict=True):
        if parent is not None:
            waiting[id(parent)].popleft()
        free = [thread for thread in made if thread.busy_until <= turn.at + _SAME_MOMENT_S]
        thread, aside = _choose(free, turn, parent, waiting)
        if thread is None:
            thread = _Thread()
            made.append(thread)
        thread.put(_placed(thread, turn, parent, aside))
    return [thread.placed for thread in made]


def _answered(turns: Sequence[Asked]) -> list[Asked]:
    """What was sent again after no answer came stands to the conversation as the first try did."""
    latest: dict[int, Asked] = {}
    answered: list[Asked] = []
    for sent in turns:
        turn, tried = sent, latest.get(sent.shared_messages)
        if tried is not None and not tried.output_tokens and sent.shape in _GOES_ON:
            turn = msgspec.structs.replace(sent, shape=tried.shape, shared_messages=tried.shared_messages)
        if turn.messages is not None:
            latest[turn.messages] = turn
        if turn.output_tokens:
            answered.append(turn)
    return answered


def _parents(turns: Sequence[Asked]) -> list[Asked | None]:
    """For each turn the one it went on from; or, where its prompt holds none whole, the one it branched off."""
    latest: dict[int, Asked] = {}
    parents: dict[int, Asked | None] = {}
    for index, turn in enumerate(turns):
        parents[id(turn)] = _parent(turns[max(0, index - _LOOKED_BACK) : index], latest, parents, turn)
        if turn.messages is not None:
            latest[turn.messages] = turn
    return [parents[id(turn)] for turn in turns]


def _parent(
    earlier: Sequence[Asked], latest: Mapping[int, Asked], parents: Mapping[int, Asked | None], turn: Asked
) -> Asked | None:
    if turn.shape is PromptShape.FRESH or turn.messages is None:
        return None
    shared = turn.shared_messages
    if turn.shape in _GOES_ON:
        # A prompt that goes on without the last message of the one before has moved a carrier.
        return latest.get(shared) or latest.get(shared + 1)
    longer = [each for each in reversed(earlier) if (each.messages or -1) >= shared]
    is_side_call = turn.kind in _SIDE_CALLS
    left = next((each for each in longer if (each.kind in _SIDE_CALLS) == is_side_call), longer[0] if longer else None)
    whole = left
    while whole is not None and (whole.messages or 0) > shared:
        whole = parents[id(whole)]
    return whole or left


def _choose(
    free: Sequence[_Thread], turn: Asked, parent: Asked | None, waiting: Mapping[int, Sequence[Asked]]
) -> tuple[_Thread | None, bool]:
    """The thread a turn goes to, and whether aside; ``None``: one of its own. ``waiting`` has, by a turn's identity,
    those after this one that go on from it."""
    if parent is None:
        thread = max(free, key=lambda each: each.busy_until, default=None)
    else:
        thread = next((each for each in reversed(free) if each.common(parent) is not None), None)
    if thread is None:
        return None, False
    awaited = waiting.get(id(thread.head))
    if not awaited:
        return thread, False
    if waiting.get(id(turn)):
        return (thread if parent is thread.head else None), False
    is_over_by_then = turn.ended_at <= awaited[0].at + _SAME_MOMENT_S
    return (thread, True) if is_over_by_then else (None, False)


def _placed(thread: _Thread, turn: Asked, parent: Asked | None, aside: bool) -> Placed:
    head = thread.head
    if head is None:
        return Placed(turn=turn, shape=PromptShape.FRESH, before=None, exact=parent is None)
    if parent is None:
        return Placed(turn=turn, shape=PromptShape.FRESH, before=head, aside=aside)
    moved = turn.shape in _GOES_ON and turn.shared_messages + 1 == head.messages
    if parent is head and (moved or (head.messages or 0) <= turn.shared_messages):
        if turn.shape is PromptShape.REPEAT and turn.prompt_tokens == head.prompt_tokens:
            return Placed(turn=turn, shape=PromptShape.REPEAT, before=head, aside=aside)
        if turn.prompt_tokens >= head.prompt_tokens:
            goes_on = PromptShape.CONTINUATION
            return Placed(turn=turn, shape=goes_on, before=head, aside=aside, carrier_moved=moved)
    at, exact = _branch_at(thread, turn, parent)
    return Placed(turn=turn, shape=PromptShape.BRANCH, before=head, branch_at=at, exact=exact, aside=aside)


def _branch_at(thread: _Thread, turn: Asked, parent: Asked) -> tuple[int, bool]:
    """How many tokens a prompt shares with the conversation, and whether that is all: those of the longest prompt that
    it holds whole, with the answer to it where one more message is shared; and what the cache gave was shared."""
    line = [each for each, _ in thread.line]
    up_to = line[: line.index(parent) + 1]
    whole = [each for each in up_to if each.messages is not None and each.messages <= turn.shared_messages]
    longest = max(whole, key=lambda each: each.messages or 0, default=None)
    tokens, exact = 0, turn.shared_messages == 0
    if longest is not None:
        beyond = turn.shared_messages - (longest.messages or 0)
        tokens, exact = min(longest.prompt_tokens, thread.common(longest) or 0), beyond <= 1
        if beyond and longest is not line[-1]:
            tokens = min(tokens + longest.sent_back_tokens, line[line.index(longest) + 1].prompt_tokens)
    tokens = max(tokens, turn.cached_tokens or 0)
    return min(tokens, turn.prompt_tokens, line[-1].prompt_tokens + line[-1].output_tokens), exact
