"""An agent's session as a closed loop: it waits for its answer, thinks or runs a tool, and asks again.

A loop is a generator: it yields what the client does and is sent what it hears. It reads no clock; its player sets
``now`` before each step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from random import Random

from governor.simulate.acts import Act, Answer, Loop, Request, Sleep
from governor.simulate.behaviour import (
    GO_ON_TOKENS,
    OVERFLOWS,
    PER_TURN,
    REWRITE_TOKENS,
    RULES,
    ClientRules,
    hermes_compaction,
    openclaw_compaction,
)
from governor.simulate.compaction import Asking, Compactor
from governor.simulate.conversation import Conversation, Sources
from governor.simulate.generators import turns_of
from governor.simulate.result import GOOD_ENDS, TurnEnd
from governor.types import AgentName, PromptShape, TurnKind
from serve.twin.tiers_key import Key
from serve.twin.trace import Agent, Client, Echo, Piece, PieceKind, Shared, Trace, Turn, new_tokens


class SessionLoop:
    """One session of an agent."""

    def __init__(
        self,
        agent: Agent,
        session: str,
        turns: Iterable[Turn],
        *,
        shared: Shared | None,
        sources: Sources,
        random: Random,
        window_tokens: int,
        start_s: float = 0.0,
        until_s: float | None = None,
        is_drawn: bool = False,
    ) -> None:
        """``until_s``: after this it asks nothing more. ``is_drawn``: its turns know of no answer, so a conversation
        that cannot go on begins anew."""
        self.now = 0.0
        self.agent = AgentName(agent.name)
        self.session = session
        self._turns = turns
        self._rules: ClientRules = RULES[agent.client]
        self._random = random
        self._window_tokens = window_tokens
        self._start_s = start_s
        self._until_s = until_s
        self._conversation = Conversation(sources, shared)
        self._agent_line = agent
        self._sources = sources
        self._compactor: Compactor | None = None
        self._reported_tokens = 0
        self._begins_anew = is_drawn or agent.compaction is not None
        self._tool = ""
        """That the next answer calls."""

    def play(self) -> Loop:
        """All its turns."""
        yield Sleep(self._start_s)
        for turn, tool in _with_tools(self._turns):
            self._tool = tool
            begins = max(self.now + turn.after_s, turn.at_s or 0.0)
            if self._until_s is not None and begins >= self._until_s:
                return
            yield Sleep(begins)
            yield from self._turn(turn)

    def once(
        self,
        kind: TurnKind,
        shape: PromptShape,
        prompt: Key,
        output: Key,
        *,
        cap: int | None,
        patience_s: float | None = None,
        streams: bool = True,
        accept_length: float | None = None,
        attempt: int = 1,
        asked_s: float | None = None,
    ) -> Asking:
        """One request, not asked again."""
        if cap is not None and self._rules.clamps_cap:
            cap = max(1, min(cap, self._window_tokens - len(prompt) - 1))
        answer = yield Request(
            agent=self.agent,
            session=self.session,
            kind=kind,
            shape=shape,
            attempt=attempt,
            asked_s=self.now if asked_s is None else asked_s,
            prompt=prompt,
            output=output,
            cap=cap,
            accept_length=accept_length,
            patience_s=self._rules.patience_s if patience_s is None else patience_s,
            streams=streams,
            keepalive=self._rules.keepalive,
            tool=self._tool,
        )
        if answer is None:
            raise TypeError("a request is answered by an Answer")
        return answer

    def _turn(self, turn: Turn) -> Generator[Act, Answer | None, None]:
        conversation = self._conversation
        compactor = self._compactor_for(turn)
        goes_on = len(conversation) > 0 and turn.shape is PromptShape.CONTINUATION and not turn.aside
        if compactor is not None and goes_on:
            conversation.settle(turn.echo, turn.echo_tokens)
            tokens = max(len(conversation) + new_tokens(turn.new), self._reported_tokens)
            from_user = any(piece.kind is PieceKind.USER for piece in turn.new)
            if compactor.is_due(tokens, from_user=from_user):
                yield from compactor.compact(self)
        prompt = conversation.prompt_for(turn)
        wanted, cap = turn.output_tokens, turn.cap
        answer, output = yield from self._ask(turn, prompt, wanted, cap)
        tried = 0
        while answer.end in OVERFLOWS and compactor is not None and not turn.aside and tried < PER_TURN:
            if not (yield from compactor.compact(self)):
                break
            tried += 1
            answer, output = yield from self._ask(turn, conversation.key, wanted, cap)
        if turn.aside:
            return
        if answer.end in OVERFLOWS and self._begins_anew:
            conversation.begin()
            self._reported_tokens = 0
        yield from self._take(turn, answer, output)

    def _take(self, turn: Turn, answer: Answer, output: Key) -> Generator[Act, Answer | None, None]:
        """Take the answer into the conversation; where it was cut, ask to go on as often as the client does."""
        wanted, cap = turn.output_tokens, turn.cap
        for left in reversed(range(self._rules.continuations + 1)):
            wanted -= answer.written
            was_cut = answer.end is TurnEnd.LENGTH or (answer.end is TurnEnd.GAVE_UP and answer.written > 0)
            goes_on = was_cut and wanted > 0 and left > 0
            if answer.end in GOOD_ENDS or goes_on:
                self._reported_tokens = answer.prompt_tokens
                self._conversation.answered(output.cut(0, answer.written))
            if not goes_on:
                return
            self._conversation.settle(Echo.EXACT if turn.echo is Echo.EXACT else Echo.REWRITTEN)
            self._conversation.add([Piece(tokens=GO_ON_TOKENS)])
            if cap is not None and self._rules.continuation_cap is not None:
                cap = max(cap, min(2 * cap, self._rules.continuation_cap))
            answer, output = yield from self._ask(turn, self._conversation.key, wanted, cap)

    def _ask(
        self, turn: Turn, prompt: Key, wanted: int, cap: int | None
    ) -> Generator[Act, Answer | None, tuple[Answer, Key]]:
        """One request with the client's retries; returns what the model was about to write besides."""
        asked_s, attempt = self.now, 1
        while True:
            output = self._conversation.write(wanted)
            answer = yield from self.once(
                turn.kind,
                turn.shape,
                prompt,
                output,
                cap=cap,
                patience_s=turn.patience_s,
                accept_length=turn.accept_length,
                attempt=attempt,
                asked_s=asked_s,
            )
            retries = self._rules.retries(answer.end)
            if retries is None or (answer.written and self._rules.continuations):
                return answer, output
            wait_s = retries.wait_s(attempt, answer.retry_after_s, self._random)
            if wait_s is None:
                return answer, output
            yield Sleep(self.now + wait_s)
            attempt += 1
            if self._rules.rewrites_on_retry and not turn.aside:
                prompt = self._conversation.say_last_again(REWRITE_TOKENS if attempt == 2 else 0)

    def _compactor_for(self, turn: Turn) -> Compactor | None:
        """Made at the first turn, whose cap is the one that the client is set to."""
        own = self._agent_line.compaction
        if self._compactor is None and own is not None:
            if self._agent_line.client is Client.HERMES:
                rules = hermes_compaction(self._window_tokens, turn.cap, own.threshold)
            elif self._agent_line.client is Client.OPENCLAW:
                rules = openclaw_compaction(self._window_tokens, own.threshold)
            else:
                return None
            self._compactor = Compactor(rules, self._conversation, self._sources, own.summary_output)
        return self._compactor


def _with_tools(turns: Iterable[Turn]) -> Iterator[tuple[Turn, str]]:
    """Each turn with what its answer calls: a tool, if the next turn brings a tool's result."""
    before: Turn | None = None
    for turn in turns:
        if before is not None:
            yield before, PieceKind.TOOL.value if _brings_result(turn) else ""
        before = turn
    if before is not None:
        yield before, ""


def _brings_result(turn: Turn) -> bool:
    return any(piece.kind is PieceKind.TOOL for piece in turn.new)


def loops_of(trace: Trace, seed: int, window_tokens: int) -> list[SessionLoop]:
    """A loop for each of the trace's sessions. Each draws from its own chance, so that one more does not change the
    others."""
    agents = {agent.name: agent for agent in trace.agents}
    sources = Sources()
    window = trace.header.window_tokens or window_tokens
    loops = []
    for script in trace.scripts:
        session = script.session
        loops.append(
            SessionLoop(
                agents[session.agent],
                session.session,
                script.turns,
                shared=session.shared,
                sources=sources,
                random=_random(seed, session.agent, session.session),
                window_tokens=window,
                start_s=session.start_s,
            )
        )
    for spec in trace.generators:
        random = _random(seed, spec.agent, spec.session)
        loops.append(
            SessionLoop(
                agents[spec.agent],
                spec.session,
                turns_of(spec, random),
                shared=spec.shared,
                sources=sources,
                random=_random(seed, spec.agent, spec.session, "client"),
                window_tokens=window,
                start_s=spec.start_s,
                until_s=spec.until_s,
                is_drawn=True,
            )
        )
    return loops


def _random(seed: int, *names: str) -> Random:
    return Random("/".join([str(seed), *names]))  # noqa: S311 - a simulation, not a secret
