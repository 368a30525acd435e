"""Clients' own compactions: recognised, measured, and whether a client loops. No I/O, no clock, bounded memory.

A pass is what a client does between two prompts of a conversation to make it shorter: calls for a summary and a history
with its middle replaced, or either alone. Its worth is what the next prompt has. Who compacts, and how, was recorded
from Hermes Agent 0.19.0 and OpenClaw 2026.9.6: Hermes makes its call in a conversation of its own, OpenClaw makes up to
four in the conversation's; both may end with a history that is as long as it was, or longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import IntEnum
from itertools import count

import msgspec

from governor.compress.client_model import RELIEF_SHARE, ClientEnd, ClientOutcome, ClientPass, ClientPrompt, Standing
from governor.compress.thresholds import Threshold
from governor.tokens.breaks import BreakCause
from governor.types import AgentName, PromptShape, SessionId, TurnId, TurnKind

REACTIONS = 3
"""Compactions that a client may make after it was told a lower figure, until it is clear that it does not go by that
figure. Each halves it, so that a threshold which was misjudged by up to eight times is still found."""
GAIN_SHARE = 0.1
"""A pass need not free more than this share of its prompt, however large our window is."""
_MAIN = frozenset({TurnKind.TOOL_STEP, TurnKind.FINAL})
_MOST_CALLS = 16


class _Announced(IntEnum):
    """What was said of a line's loop."""

    NOTHING = 0
    LOOP = 1
    DEAF = 2


class WatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is remembered. Beyond a limit the least recently used goes."""

    agents: int = 256
    lines_per_agent: int = 64
    open_turns: int = 4096


class _Pass:
    """A pass whose calls were seen."""

    def __init__(self, line: _Line, *, is_sure: bool) -> None:
        self.line = line
        self.is_sure = is_sure
        """The calls came in the conversation's own session."""
        self.calls: list[TurnId] = []
        self.running = 0
        self.failed = False
        self.repeated = False
        self.judged: _Judged | None = None


class _Judged:
    """A pass that a prompt has shown the end of, until its exact size is known."""

    def __init__(self, prompt: ClientPrompt, line: _Line, of_calls: _Pass | None, gain_tokens: int) -> None:
        self._prompt = prompt
        self._of_calls = of_calls
        self._before_tokens = line.tokens
        self._gain_tokens = min(gain_tokens, int(line.tokens * GAIN_SHARE))
        self.was_lowered = line.was_lowered
        self.keeps_history = prompt.shape in (PromptShape.CONTINUATION, PromptShape.REPEAT)
        self.settled = False

    def measured(self, after_tokens: int | None, in_vain_before: int) -> ClientPass:
        """``after_tokens``: as reported; ``None``: as counted when the prompt came."""
        after = self._prompt.tokens if after_tokens is None else after_tokens
        outcome, calls = self._outcome(self._before_tokens - after), self._of_calls
        return ClientPass(
            turn_id=self._prompt.turn_id,
            agent=self._prompt.agent,
            session=self._prompt.session,
            outcome=outcome,
            before_tokens=self._before_tokens,
            after_tokens=after,
            in_vain=0 if outcome is ClientOutcome.ACCEPTED else in_vain_before + 1,
            calls=tuple(calls.calls) if calls else (),
            failed=calls is not None and calls.failed,
            repeated=calls is not None and calls.repeated,
        )

    def _outcome(self, freed_tokens: int) -> ClientOutcome:
        if self.keeps_history or freed_tokens == 0:
            return ClientOutcome.NO_SHRINK
        if freed_tokens < 0:
            return ClientOutcome.GREW
        return ClientOutcome.ACCEPTED if freed_tokens >= self._gain_tokens else ClientOutcome.GAIN_TOO_SMALL


class _Line:
    """The main line of one conversation: the prompts that continue each other, and what its client's passes came to."""

    def __init__(self, session: SessionId, origin: int, tokens: int) -> None:
        self.session = session
        self.origin = origin
        """The path that it began as."""
        self.tokens = tokens
        """Of the client's own last prompt."""
        self.told: int | None = None
        """With the last answer; ``None``: there is none, or it said nothing."""
        self.was_lowered = False
        self.running = 0
        self.last_end = 0
        self.pending: _Pass | None = None
        """What no prompt has shown the end of."""
        self.in_vain = 0
        self.announced = _Announced.NOTHING
        self.told_in_vain = 0
        """Passes of this loop that came after a lowered figure."""

    def branched(self) -> _Line:
        """The same conversation under another beginning; the calls that led there go with it."""
        line = _Line(self.session, self.origin, self.tokens)
        line.told, line.was_lowered, line.last_end = self.told, self.was_lowered, self.last_end
        line.in_vain, line.announced, line.told_in_vain = self.in_vain, self.announced, self.told_in_vain
        line.pending, self.pending = self.pending, None
        if line.pending is not None:
            line.pending.line = line
        return line

    def settle(self, found: ClientPass, judged: _Judged) -> None:
        """Take over what a pass came to."""
        judged.settled = True
        if found.in_vain == 0:
            self.on_relief()
            return
        self.in_vain = found.in_vain
        self.told_in_vain += judged.was_lowered

    def on_relief(self) -> None:
        """A pass that helped, or a prompt that is short anyway."""
        self.in_vain, self.announced, self.told_in_vain = 0, _Announced.NOTHING, 0


class _Agent:
    def __init__(self) -> None:
        self.lines: OrderedDict[int, _Line] = OrderedDict()
        self.threshold = Threshold()
        self.guessed: _Pass | None = None
        """The last pass that was given to a conversation by a guess, until that has proven right."""


class _Open:
    """A turn that has not ended: one of a main line, or a call of a pass."""

    def __init__(self, agent: _Agent, line: _Line, call_of: _Pass | None = None) -> None:
        self.agent = agent
        self.line = line
        self.call_of = call_of
        self.judged: _Judged | None = None


class ClientWatch:
    """Told of every prompt of a client's and of every turn's end, on one thread. Turns of ours are none of its."""

    def __init__(self, limits: WatchLimits | None = None) -> None:
        self._limits = limits or WatchLimits()
        self._agents: OrderedDict[AgentName, _Agent] = OrderedDict()
        self._open: OrderedDict[TurnId, _Open] = OrderedDict()
        self._ends = count(1)

    def on_prompt(self, prompt: ClientPrompt, *, attempts: int, gain_tokens: int) -> Standing:
        """A prompt has come. ``attempts``: passes in vain in a row with which it is a loop; ``gain_tokens``: least that
        a pass must free. Changes state."""
        agent = self._agent(prompt.agent)
        if prompt.kind is TurnKind.COMPACTION:
            self._on_call(agent, prompt)
        if prompt.kind not in _MAIN:
            return Standing()
        line, is_known = self._line(agent, prompt)
        opened = self._opened(prompt.turn_id, _Open(agent, line))
        calls = _calls_shown(agent, line, prompt)
        is_pass = is_known and (calls is not None or prompt.cause is BreakCause.COMPACTED)
        _learn(agent.threshold, line, prompt.shape, is_pass=is_pass)
        in_vain, told_in_vain = line.in_vain, line.told_in_vain
        if is_pass:
            opened.judged = judged = _Judged(prompt, line, calls, gain_tokens)
            if calls is not None:
                calls.judged = judged
            in_vain = judged.measured(None, line.in_vain).in_vain
            told_in_vain += judged.was_lowered
        loops = in_vain >= attempts
        is_deaf = loops and told_in_vain >= REACTIONS
        news = _Announced.DEAF if is_deaf else _Announced.LOOP if loops else _Announced.NOTHING
        is_new = news > line.announced
        line.announced = max(line.announced, news)
        line.tokens, line.told, line.was_lowered = prompt.tokens, None, False
        line.running += 1
        return Standing(
            in_vain=in_vain,
            loops=loops,
            is_new=is_new,
            is_deaf=is_deaf,
            safe_tokens=agent.threshold.safe_tokens,
        )

    def on_end(self, end: ClientEnd) -> ClientPass | None:
        """A turn has ended. Returns the pass that its prompt showed, by exact sizes where they are known. Changes
        state; for an unknown turn nothing."""
        opened = self._open.pop(end.turn_id, None)
        if opened is None:
            return None
        if opened.call_of is not None:
            opened.call_of.running -= 1
            opened.call_of.failed = opened.call_of.failed or not end.ok
            return None
        line, judged, found = opened.line, opened.judged, None
        line.running -= 1
        line.last_end = next(self._ends)
        if judged is not None and not judged.settled:
            found = judged.measured(end.reported_tokens, line.in_vain)
            line.settle(found, judged)
            if line.told_in_vain == REACTIONS and judged.was_lowered:
                opened.agent.threshold.forget()
        if end.reported_tokens is not None:
            line.tokens = end.reported_tokens
        if end.ok:
            line.told, line.was_lowered = end.told_tokens, end.lowered
            safe_tokens = opened.agent.threshold.safe_tokens
            own_tokens = None if end.lowered else end.reported_tokens
            if own_tokens is not None and safe_tokens is not None and own_tokens < safe_tokens * RELIEF_SHARE:
                line.on_relief()
        return found

    def compacts_at(self, agent: AgentName) -> int | None:
        """The smallest ``usage.prompt_tokens`` after which this agent's client compacted; ``None``: not known."""
        known = self._agents.get(agent)
        return None if known is None else known.threshold.compacts_at

    @property
    def open_turns(self) -> int:
        return len(self._open)

    def __len__(self) -> int:
        """Conversations remembered."""
        return sum(len(agent.lines) for agent in self._agents.values())

    def _agent(self, name: AgentName) -> _Agent:
        agent = self._agents.setdefault(name, _Agent())
        self._agents.move_to_end(name)
        if len(self._agents) > self._limits.agents:
            self._agents.popitem(last=False)
        return agent

    def _opened(self, turn_id: TurnId, opened: _Open) -> _Open:
        self._open[turn_id] = opened
        if len(self._open) > self._limits.open_turns:
            _, lost = self._open.popitem(last=False)
            (lost.line if lost.call_of is None else lost.call_of).running -= 1
        return opened

    def _line(self, agent: _Agent, prompt: ClientPrompt) -> tuple[_Line, bool]:
        """The line that a prompt goes on with, and whether it was known."""
        line = None
        match prompt.shape:
            case PromptShape.CONTINUATION | PromptShape.REPEAT:
                line = agent.lines.get(prompt.path)
            case PromptShape.BRANCH:
                parent = None if prompt.parent is None else agent.lines.get(prompt.parent)
                parent = parent or _latest(_of_session(agent, prompt.session))
                line = parent and parent.branched()
        known = line is not None
        line = line or _Line(prompt.session, prompt.path, prompt.tokens)
        agent.lines[prompt.path] = line
        agent.lines.move_to_end(prompt.path)
        if len(agent.lines) > self._limits.lines_per_agent:
            agent.lines.popitem(last=False)
        return line, known

    def _on_call(self, agent: _Agent, prompt: ClientPrompt) -> None:
        """A call for a summary. It is its session's; else that of the conversation which was answered last, for a
        client compacts between an answer and what it makes of it."""
        of_session = _of_session(agent, prompt.session)
        line = _latest(of_session) or _latest(line for line in agent.lines.values() if not line.running)
        if line is None:
            return
        if line.pending is None:
            line.pending = _Pass(line, is_sure=bool(of_session))
            if not line.pending.is_sure:
                agent.guessed = line.pending
        calls = line.pending
        calls.calls = [*calls.calls, prompt.turn_id][-_MOST_CALLS:]
        calls.running += 1
        calls.repeated = calls.repeated or prompt.shape is PromptShape.REPEAT
        self._opened(prompt.turn_id, _Open(agent, line, calls))


def _of_session(agent: _Agent, session: SessionId) -> list[_Line]:
    return [line for line in agent.lines.values() if line.session == session]


def _latest(lines: Iterable[_Line]) -> _Line | None:
    """The one that was answered last; of several that were not, or at once, the one used last."""
    latest = None
    for line in lines:
        if latest is None or (not line.running, line.last_end) >= (not latest.running, latest.last_end):
            latest = line
    return latest


def _calls_shown(agent: _Agent, line: _Line, prompt: ClientPrompt) -> _Pass | None:
    """The calls whose end this prompt shows, if there are any."""
    is_compacted = prompt.cause is BreakCause.COMPACTED
    calls = line.pending
    if calls is not None and (is_compacted or not calls.running):
        line.pending = None
        if prompt.shape not in (PromptShape.CONTINUATION, PromptShape.REPEAT) and agent.guessed is calls:
            agent.guessed = None
        return calls
    guessed = agent.guessed
    if not is_compacted or guessed is None or guessed.line.origin == line.origin:
        return None
    # The guess was wrong: another conversation comes back compacted, and has made no call of its own.
    agent.guessed = None
    if guessed.line.pending is guessed:
        guessed.line.pending = None
    elif guessed.judged is not None and not guessed.judged.settled:
        guessed.judged.settled = True
    else:
        guessed.line.in_vain = max(0, guessed.line.in_vain - 1)
    return guessed


def _learn(threshold: Threshold, line: _Line, shape: PromptShape, *, is_pass: bool) -> None:
    """What the client did after what it was told last."""
    if line.told is None:
        return
    if is_pass:
        threshold.on_followed(line.told)
    elif line.pending is None and shape is not PromptShape.REPEAT:
        threshold.on_let_pass(line.told)
