"""Clients' own compactions: recognised, measured, and whether a client loops. No I/O, no clock, bounded memory.

A pass is what a client does between two prompts of a conversation to make it shorter: calls for a summary and a history
with its middle replaced, or either alone. Its worth is what the next prompt has. Who compacts, and how, was recorded
from Hermes Agent 0.19.0 and OpenClaw 2026.9.6: Hermes makes its call in a conversation of its own, OpenClaw makes up to
four in the conversation's; both may end with a history that is as long as it was, or longer.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from governor.compress.client_model import (
    RELIEF_SHARE,
    ClientEnd,
    ClientOutcome,
    ClientPass,
    ClientPrompt,
    News,
    Standing,
)
from governor.compress.thresholds import Threshold
from governor.tokens.breaks import BreakCause
from governor.types import AgentName, PromptShape, SessionId, TurnId, TurnKind

REACTIONS = 3
"""Compactions that a client may make after it was told a lower figure, until it is clear that it does not go by that
figure. Each halves it, so that a threshold which was misjudged by up to eight times is still found."""
GAIN_SHARE = 0.1
"""A pass need not free more than this share of its prompt, however large our window is."""
_MAIN = frozenset({TurnKind.TOOL_STEP, TurnKind.FINAL})
_KEEPING = frozenset({PromptShape.CONTINUATION, PromptShape.REPEAT})
"""Shapes of a prompt whose history was not replaced."""
_MOST_CALLS = 16


class WatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is remembered. Beyond a limit the least recently used goes."""

    agents: int = 256
    lines_per_agent: int = 64
    open_turns: int = 4096


class _Pass:
    """A pass whose calls were seen. It is its conversation's that goes on first, until another comes back compacted."""

    def __init__(self) -> None:
        self.conversation: _Conversation | None = None
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
        self._keeps_history = prompt.shape in _KEEPING
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
        if self._keeps_history or freed_tokens == 0:
            return ClientOutcome.NO_SHRINK
        if freed_tokens < 0:
            return ClientOutcome.GREW
        return ClientOutcome.ACCEPTED if freed_tokens >= self._gain_tokens else ClientOutcome.GAIN_TOO_SMALL


class _Conversation:
    """What its client's passes came to, on whatever path of its session it goes on."""

    def __init__(self) -> None:
        self.in_vain = 0
        self.told_in_vain = 0
        """Passes in vain that came after a lowered figure."""
        self.news: News | None = None
        """The last there was of its loop."""

    def settle(self, found: ClientPass, judged: _Judged, attempts: int) -> ClientPass:
        """Take over what a pass came to. Returns it with what is new."""
        judged.settled = True
        if found.in_vain == 0:
            self.on_relief()
            return found
        self.in_vain = found.in_vain
        self.told_in_vain += judged.was_lowered
        news = None
        if self.in_vain >= attempts:
            news = News.DEAF if self.told_in_vain >= REACTIONS else News.LOOP
        if news is None or news is self.news:
            return found
        self.news = news
        return msgspec.structs.replace(found, news=news)

    def on_relief(self) -> None:
        """A pass that helped, or a prompt that is short anyway."""
        self.in_vain, self.told_in_vain, self.news = 0, 0, None


class _Line:
    """The prompts on one path, each the last one and more."""

    def __init__(self, conversation: _Conversation, session: SessionId, tokens: int) -> None:
        self.conversation = conversation
        self.session = session
        self.tokens = tokens
        """Of the client's own last prompt."""
        self.told: int | None = None
        """With the last answer; ``None``: there is none, or it said nothing."""
        self.was_lowered = False

    def branched(self) -> _Line:
        """The same conversation under another beginning."""
        line = _Line(self.conversation, self.session, self.tokens)
        line.told, line.was_lowered = self.told, self.was_lowered
        return line


class _Agent:
    def __init__(self) -> None:
        self.lines: OrderedDict[int, _Line] = OrderedDict()
        self.threshold = Threshold()
        self.pending: OrderedDict[SessionId | None, _Pass] = OrderedDict()
        """Passes that no prompt has shown the end of, by the session of their calls; ``None``: the calls were in one of
        their own."""
        self.latest: _Pass | None = None
        """The one that was called for after the last prompt."""
        self.kept: _Pass | None = None
        """The last one whose conversation went on with the history that it had."""

    def drop_pending(self, session: SessionId) -> None:
        self.pending.pop(session, None)
        self.pending.pop(None, None)

    def latest_of(self, session: SessionId) -> _Line | None:
        """The line of a session that was used last."""
        return next((line for line in reversed(self.lines.values()) if line.session == session), None)


class _Open:
    """A turn that has not ended."""

    def __init__(self, agent: _Agent, line: _Line, attempts: int) -> None:
        self.agent = agent
        self.line = line
        self.attempts = attempts
        self.judged: _Judged | None = None

    def standing(self, reported_tokens: int | None) -> Standing:
        conversation, judged = self.line.conversation, self.judged
        in_vain, told_in_vain = conversation.in_vain, conversation.told_in_vain
        if judged is not None and not judged.settled:
            in_vain = judged.measured(reported_tokens, in_vain).in_vain
            told_in_vain += judged.was_lowered
        loops = in_vain >= self.attempts
        return Standing(
            in_vain=in_vain,
            loops=loops,
            is_deaf=loops and told_in_vain >= REACTIONS,
            safe_tokens=self.agent.threshold.safe_tokens,
        )


class ClientWatch:
    """Told of every prompt of a client's and of every turn's end, on one thread. Turns of ours are none of its."""

    def __init__(self, limits: WatchLimits | None = None) -> None:
        self._limits = limits or WatchLimits()
        self._agents: OrderedDict[AgentName, _Agent] = OrderedDict()
        self._open: OrderedDict[TurnId, _Open | _Pass] = OrderedDict()
        """Turns that have not ended, those of a main line and calls of a pass."""

    def on_prompt(self, prompt: ClientPrompt, *, attempts: int, gain_tokens: int) -> Standing:
        """A prompt has come. ``attempts``: passes in vain in a row with which it is a loop; ``gain_tokens``: least that
        a pass must free. Changes state."""
        agent = self._agent(prompt.agent)
        if prompt.kind is TurnKind.COMPACTION:
            self._on_call(agent, prompt)
        if prompt.kind not in _MAIN:
            return Standing()
        line, is_known = self._line(agent, prompt)
        opened = _Open(agent, line, attempts)
        self._remember(prompt.turn_id, opened)
        calls = _calls_shown(agent, line.conversation, prompt) if is_known else None
        is_pass = is_known and (calls is not None or prompt.cause is BreakCause.COMPACTED)
        if not is_known:  # another task: what was called for before it was the end of the last
            agent.drop_pending(prompt.session)
        agent.latest = None
        _learn(agent, line, prompt.shape, is_pass=is_pass)
        if is_pass:
            opened.judged = _Judged(prompt, line, calls, gain_tokens)
            if calls is not None:
                calls.judged = opened.judged
        line.tokens, line.told, line.was_lowered = prompt.tokens, None, False
        return opened.standing(None)

    def standing(self, turn_id: TurnId, reported_tokens: int | None) -> Standing:
        """How the client stands once the engine has told what its prompt was; ``None``: it was sent another. Changes
        nothing."""
        opened = self._open.get(turn_id)
        return opened.standing(reported_tokens) if isinstance(opened, _Open) else Standing()

    def on_end(self, end: ClientEnd) -> ClientPass | None:
        """A turn has ended. Returns the pass that its prompt showed, by exact sizes where they are known. Changes
        state; for an unknown turn nothing."""
        opened = self._open.pop(end.turn_id, None)
        if opened is None:
            return None
        if isinstance(opened, _Pass):
            opened.running -= 1
            opened.failed = opened.failed or not end.ok
            return None
        line, judged, found = opened.line, opened.judged, None
        if judged is not None and not judged.settled:
            found = judged.measured(end.reported_tokens, line.conversation.in_vain)
            found = line.conversation.settle(found, judged, opened.attempts)
            if line.conversation.told_in_vain == REACTIONS and judged.was_lowered:
                opened.agent.threshold.forget()
        if end.reported_tokens is not None:
            line.tokens = end.reported_tokens
        if end.ok:
            line.told, line.was_lowered = end.told_tokens, _told_less(end, line.tokens)
            safe_tokens = opened.agent.threshold.safe_tokens
            if not end.lowered and safe_tokens is not None and line.tokens < safe_tokens * RELIEF_SHARE:
                line.conversation.on_relief()
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

    def _remember(self, turn_id: TurnId, opened: _Open | _Pass) -> None:
        self._open[turn_id] = opened
        if len(self._open) > self._limits.open_turns:
            _, lost = self._open.popitem(last=False)
            if isinstance(lost, _Pass):
                lost.running -= 1

    def _line(self, agent: _Agent, prompt: ClientPrompt) -> tuple[_Line, bool]:
        """The line that a prompt goes on with, and whether it was known."""
        line = None
        match prompt.shape:
            case PromptShape.CONTINUATION | PromptShape.REPEAT:
                line = agent.lines.get(prompt.path)
            case PromptShape.BRANCH:
                parent = None if prompt.parent is None else agent.lines.get(prompt.parent)
                parent = parent or agent.latest_of(prompt.session)
                line = parent and parent.branched()
        known = line is not None
        line = line or _Line(_Conversation(), prompt.session, prompt.tokens)
        agent.lines[prompt.path] = line
        agent.lines.move_to_end(prompt.path)
        if len(agent.lines) > self._limits.lines_per_agent:
            agent.lines.popitem(last=False)
        return line, known

    def _on_call(self, agent: _Agent, prompt: ClientPrompt) -> None:
        """A call for a summary. Calls without a prompt between them are of one pass."""
        session = prompt.session if agent.latest_of(prompt.session) else None
        calls = agent.pending.get(session) or (agent.latest if session is None else None)
        if calls is None:
            calls = agent.pending[session] = _Pass()
            if len(agent.pending) > self._limits.lines_per_agent:
                agent.pending.popitem(last=False)
        agent.latest = calls
        calls.calls = [*calls.calls, prompt.turn_id][-_MOST_CALLS:]
        calls.running += 1
        calls.repeated = calls.repeated or prompt.shape is PromptShape.REPEAT
        self._remember(prompt.turn_id, calls)


def _calls_shown(agent: _Agent, conversation: _Conversation, prompt: ClientPrompt) -> _Pass | None:
    """The calls whose end this prompt shows, if there are any."""
    is_compacted = prompt.cause is BreakCause.COMPACTED
    for session in (prompt.session, None):
        calls = agent.pending.get(session)
        if calls is not None and (is_compacted or not calls.running):
            del agent.pending[session]
            calls.conversation = conversation
            agent.kept = calls if prompt.shape in _KEEPING else None
            return calls
    kept = agent.kept
    if not is_compacted or kept is None or kept.conversation is None or kept.conversation is conversation:
        return None
    # They were another conversation's, which went on for itself.
    agent.kept = None
    if kept.judged is not None and not kept.judged.settled:
        kept.judged.settled = True
    else:
        kept.conversation.in_vain = max(0, kept.conversation.in_vain - 1)
    return kept


def _told_less(end: ClientEnd, own_tokens: int) -> bool:
    """The client was told clearly less than its own prompt has: by an edit, or since the engine saw a shorter one."""
    is_shorter = end.reported_tokens is None and (end.told_tokens or own_tokens) < own_tokens * RELIEF_SHARE
    return end.lowered or is_shorter


def _learn(agent: _Agent, line: _Line, shape: PromptShape, *, is_pass: bool) -> None:
    """What the client did after what it was told last."""
    if not line.told:  # an engine that reports no tokens at all tells nothing either
        return
    if is_pass:
        agent.threshold.on_followed(line.told)
    elif not agent.pending and shape is not PromptShape.REPEAT:
        agent.threshold.on_let_pass(line.told)
