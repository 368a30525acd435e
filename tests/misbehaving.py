"""Clients whose compactions go wrong, in each way that was recorded or reported, as small programs that call a gate.

What each does is from recordings of Hermes Agent 0.19.0 and OpenClaw 2026.9.6, and from reports of both: hermes-agent
#36624 (all is protected), #53008 (gains next to nothing), #109681 (the same block again and again), #27566 (an own
estimate that is too high); openclaw #119824 (the count is never lowered), #66058 (saves its memory and compacts without
end), #150447 (success reported, nothing cut).
"""

from __future__ import annotations

import random
from enum import StrEnum

import msgspec

from governor.types import TurnKind
from tests.client_gate import Answered, Gate

_OVERFLOW_TRIES = 3
"""Both clients compact at most three times for one prompt that is too long, and then give up the conversation."""
_HEAD_MESSAGES = 2
_STEPS = 8
"""Calls between two words of the user."""
_LONGEST = 200
"""Messages after which the user begins another conversation."""


class Way(StrEnum):
    """What a client's compaction does to its history."""

    SHORTENS = "shortens"
    LONGER = "longer"
    """Its summary is longer than what it replaces (Hermes, 170 -> 315 kB)."""
    SAME_BLOCK = "same_block"
    """The summary contains the last one, and comes out as long."""
    GAINS_LITTLE = "gains_little"
    """One message fewer each time."""
    KEEPS_ALL = "keeps_all"
    """The call is made, and the full history goes on being sent."""
    BOILERPLATE = "boilerplate"
    """Nothing is cut, since all is protected, and a note of it is added."""
    FALLS_BACK = "falls_back"
    """The call is refused; the middle is replaced by a line (Hermes)."""
    CANCELS = "cancels"
    """The call is refused three times; the history is kept (OpenClaw)."""
    FLUSHES = "flushes"
    """Saves its memory and makes two calls, and nothing is cut (OpenClaw)."""
    WITHOUT_CALL = "without_call"
    """The middle is replaced by something as long, and nobody is asked."""


IN_VAIN = frozenset(Way) - {Way.SHORTENS, Way.FALLS_BACK}


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """How a client behaves."""

    ways: tuple[Way, ...]
    """Taken in turns, one a compaction."""
    threshold_tokens: int = 6000
    only_before_user: bool = False
    """OpenClaw looks at the size before the user's word only, and adds what came since; Hermes after each call."""
    estimate_share: float = 0.0
    """Its own estimate as a share of the truth; it compacts over the threshold by that, too (Hermes, before each
    call)."""
    is_named: bool = False
    """Its calls carry its session's name."""
    histories: int = 1
    """Conversations that it goes on with in turns."""
    retries: int = 0
    """Times that each prompt is sent in vain before it is answered."""
    clamp: bool = False
    """Over its threshold it asks for one token, and gets one (OpenClaw, in the middle of a turn)."""


def said(role: str, text: str) -> bytes:
    return msgspec.json.encode({"role": role, "content": text})


class History:
    """One conversation and what its client knows of its size."""

    def __init__(self, name: str, task: str) -> None:
        self.name = name
        self.messages = [said("system", "You are careful."), said("user", task)]
        self.last: Answered | None = None
        self.sent_tokens: int | None = None
        self.since_tokens = 0
        """Added after the last answer."""
        self.compacted_for: str | None = None
        self.row = 0
        """Compactions in a row without gain that a size has caused."""


class Client:
    """Plays turns against a gate, and keeps its own account of what its compactions came to."""

    def __init__(self, gate: Gate, traits: Traits, seed: int = 0) -> None:
        self._gate = gate
        self.traits = traits
        self._random = random.Random(seed)  # noqa: S311
        self._conversations = 0
        self._histories = [self._begin() for _ in range(traits.histories)]
        self._compactions = 0
        self.calls = 0
        self.shown = 0
        """Compactions that a prompt has shown."""
        self.gained = 0
        self.longest_row = 0
        self.overflows = 0
        self.terminal = 0

    def play(self, turns: int) -> None:
        """So many of the main line."""
        until = self.calls + turns
        while self.calls < until:
            for place in range(len(self._histories)):
                self._turn(place)

    def _begin(self) -> History:
        self._conversations += 1
        return History(f"session-{self._conversations}", f"Task {self._conversations}.")

    def _turn(self, place: int) -> None:
        if len(self._histories[place].messages) > _LONGEST:
            self._histories[place] = self._begin()
        history = self._histories[place]
        self._say(history, "user", f"And now {self.calls}.")
        for step in range(_STEPS):
            if self._is_due(history, from_user=step == 0):
                self._compact(history, "size")
            if not self._call(history):
                self._histories[place] = self._begin()
                self.terminal += 1
                return
            history = self._histories[place]
            if self.traits.clamp and (history.sent_tokens or 0) >= self.traits.threshold_tokens:
                self._say(history, "assistant", "I")
                return
            self._say(history, "assistant", f"step {self.calls}")
            self._say(history, "user", "result " + "x" * self._random.randrange(100, 900))

    def _say(self, history: History, role: str, text: str) -> None:
        message = said(role, text)
        history.messages.append(message)
        history.since_tokens += self._gate.size(message)

    def _is_due(self, history: History, *, from_user: bool) -> bool:
        traits, last = self.traits, history.last
        estimated = self._gate.tokens(history.messages) * traits.estimate_share
        if estimated >= traits.threshold_tokens:
            return True
        if last is None or last.told_tokens is None or (traits.only_before_user and not from_user):
            return False
        projected = last.told_tokens + (history.since_tokens if traits.only_before_user else 0)
        return projected >= traits.threshold_tokens

    def _call(self, history: History) -> bool:
        """One call of the main line, with what follows an overflow. Returns whether the conversation lives on."""
        for attempt in range(_OVERFLOW_TRIES + 1):
            for _ in range(self.traits.retries):
                self._gate.chat(history.messages, self._name(history), fails=True)
                self._account(history)
            answer = self._gate.chat(history.messages, self._name(history))
            self.calls += 1
            self._account(history)
            if answer.ok:
                if answer.was_true and (answer.told_tokens or 0) < self.traits.threshold_tokens:
                    history.row = 0
                history.last, history.since_tokens = answer, 0
                return True
            self.overflows += 1
            history.last = None
            if attempt < _OVERFLOW_TRIES:
                self._compact(history, "overflow")
        return False

    def _account(self, history: History) -> None:
        tokens = self._gate.tokens(history.messages)
        before, history.sent_tokens = history.sent_tokens, tokens
        cause, history.compacted_for = history.compacted_for, None
        if cause is None or before is None:
            return
        self.shown += 1
        if before - tokens >= min(before // 10, self._gain_tokens):
            self.gained += 1
            history.row = 0
        elif cause == "size":
            history.row += 1
            self.longest_row = max(self.longest_row, history.row)

    @property
    def _gain_tokens(self) -> int:
        return int(self._gate.policy.gain * self._gate.window_tokens)

    def _name(self, history: History) -> str | None:
        return history.name if self.traits.is_named else None

    def _compact(self, history: History, cause: str) -> None:
        way = self.traits.ways[self._compactions % len(self.traits.ways)]
        self._compactions += 1
        history.compacted_for = cause
        self._ask(history, way)
        messages = history.messages
        head, middle, tail = messages[:_HEAD_MESSAGES], messages[_HEAD_MESSAGES:-2], messages[-2:]
        middle_bytes = sum(map(len, middle))
        mark = f"[CONTEXT COMPACTION — REFERENCE ONLY] {self._compactions} "
        match way:
            case Way.SHORTENS | Way.FALLS_BACK:
                middle = [said("user", mark)]
            case Way.LONGER:
                middle = [said("user", mark + "s" * int(middle_bytes * 1.2))]
            case Way.SAME_BLOCK | Way.WITHOUT_CALL:
                middle = [said("user", mark + "s" * max(0, middle_bytes - 150))]
            case Way.GAINS_LITTLE:
                middle = [said("user", mark), *middle[2:]] if len(middle) > 2 else middle
            case Way.BOILERPLATE:
                middle = [said("user", mark + "Nothing was cut."), *middle]
            case Way.KEEPS_ALL | Way.CANCELS | Way.FLUSHES:
                pass
        history.messages = [*head, *middle, *tail]

    def _ask(self, history: History, way: Way) -> None:
        if way is Way.WITHOUT_CALL:
            return
        refused = way in {Way.FALLS_BACK, Way.CANCELS}
        text = "You are a summarization agent creating a context checkpoint." + "x" * self._random.randrange(400)
        flush = [*history.messages, said("user", "Pre-compaction memory flush. Save what matters.")]
        calls = [[said("user", text)]] * (3 if refused else 1)
        if way is Way.FLUSHES:
            calls = [flush, [said("user", text)], [said("user", text + " Second half.")]]
        for messages in calls:
            self._gate.chat(messages, self._name(history), TurnKind.COMPACTION, fails=refused)
