"""A trace out of the turn log: who asked when, how each prompt goes on from the one before, how much was written. Pure.

The log holds no content, and of what it holds no name and no hash gets into the trace but the agents', and not those if
told so. What the log cannot tell is taken in the way that flatters the cache least, and the header says how often.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from governor.store.model import StoredTurn, TurnClosed
from governor.trace.threads import Asked, Placed, threads
from governor.types import AgentName, PromptShape, TurnKind, TurnState
from serve.twin.trace import (
    Agent,
    Client,
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
    new_tokens,
)

CARRIER_TOKENS: Final = 65
"""OpenClaw 2026.9.6's carrier: 240 to 300 characters in its recorded requests."""
_BROKE_BEFORE_MESSAGES: Final = "tools"
"""How ``broke_at`` begins where a prompt differs before its first message: nothing behind is shared."""
_WHOLE: Final = frozenset({TurnState.OK, TurnState.TRUNCATED})
_TOOL_CALLS: Final = frozenset({"tool_calls", "tool_use"})


class NothingToRecord(Exception):
    """The log has no turn that a trace could hold."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A trace and what it is made of."""

    trace: Trace
    turns: int
    left_out: dict[str, int]
    """Turns that are not in it, by why."""


def recorded(
    rows: Iterable[StoredTurn],
    *,
    name: str,
    bases: Mapping[AgentName, str | None] | None = None,
    anonymous: bool = False,
) -> Recording:
    """A trace of the turns, given oldest first. ``bases``: the shipped policy each agent's own stands on, which is also
    how a Hermes or an OpenClaw is known. Raises :class:`NothingToRecord`."""
    left_out: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    sessions: dict[tuple[AgentName, str], list[Asked]] = defaultdict(list)
    windows: set[int] = set()
    for row in rows:
        asked = _asked(row, left_out, unknown)
        if asked is not None and row.closed is not None:
            sessions[asked.agent, row.closed.session or row.turn_id].append(asked)
            windows.add(row.closed.window_tokens or 0)
    by_session = [(key[0], threads(turns)) for key, turns in sessions.items()]
    placed = [(agent, thread) for agent, found in by_session for thread in found]
    if not placed:
        raise NothingToRecord(_nothing(left_out))
    placed.sort(key=lambda each: each[1][0].turn.at)
    beside = sum(max(0, len(found) - 1) for _, found in by_session)
    unknown["lines of a conversation ran beside another; they are sessions of their own that share nothing"] += beside
    writer = _Writer(placed, anonymous, bases or {}, unknown)
    lines = writer.lines()
    header = Header(
        name=name,
        window_tokens=max(windows) or None,
        sources=("a governor's turn log",),
        unknown=tuple(f"{count} x {what}" for what, count in unknown.items() if count),
    )
    count = sum(len(thread) for _, thread in placed)
    return Recording(trace=assembled([header, *lines]), turns=count, left_out=dict(left_out))


def _nothing(left_out: Mapping[str, int]) -> str:
    if not left_out:
        return "the turn log has no turn of these agents in this time"
    reasons = ", ".join(f"{count} {why}" for why, count in left_out.items())
    return f"no turn of the log can be replayed: {reasons}"


def _asked(row: StoredTurn, left_out: Counter[str], unknown: Counter[str]) -> Asked | None:
    end = row.closed
    if end is None or row.agent is None or row.opened_at is None:
        left_out["without an end or an opening in the log"] += 1
        return None
    prompt = end.usage.prompt_tokens if end.usage.prompt_tokens is not None else end.prompt_tokens_counted
    written = end.usage.completion_tokens
    if written is None:
        written = end.completion_tokens_estimated
    if not prompt or not written:
        left_out[f"{end.state.value}, without a prompt's or an answer's size"] += 1
        prompt, written = prompt or 0, 0
    else:
        _note_sizes(end, unknown)
    broke_early = (end.broke_at or "").startswith(_BROKE_BEFORE_MESSAGES)
    return Asked(
        agent=row.agent,
        at=row.opened_at,
        ended_at=max(end.closed_at, row.opened_at),
        kind=end.kind or TurnKind.FINAL,
        shape=PromptShape.FRESH if end.shape is None or broke_early else end.shape,
        messages=end.message_count,
        shared_messages=end.shared_messages or 0,
        prompt_tokens=prompt,
        cached_tokens=end.usage.cached_tokens,
        output_tokens=written,
        reasoning_tokens=min(written, end.usage.reasoning_tokens or 0),
        cap=end.cap_requested,
        calls_tool=end.finish_reason in _TOOL_CALLS,
    )


def _note_sizes(end: TurnClosed, unknown: Counter[str]) -> None:
    unknown["prompts have the size that the governor counted, for the engine reported none"] += (
        end.usage.prompt_tokens is None
    )
    unknown["answers have an estimated size"] += end.usage.completion_tokens is None
    unknown["answers ended at their cap; they might have become longer"] += end.state is TurnState.TRUNCATED
    unknown["answers broke off; they are as long as they had become"] += end.state not in _WHOLE


class _Writer:
    """Writes threads as the sessions of a trace."""

    def __init__(
        self,
        placed: Sequence[tuple[AgentName, list[Placed]]],
        anonymous: bool,
        bases: Mapping[AgentName, str | None],
        unknown: Counter[str],
    ) -> None:
        self._placed = placed
        self._bases = bases
        self._unknown = unknown
        self._began = placed[0][1][0].turn.at
        agents = dict.fromkeys(agent for agent, _ in placed)
        self._names = {agent: f"agent-{number}" if anonymous else str(agent) for number, agent in enumerate(agents, 1)}
        self._of_agent: dict[AgentName, list[Placed]] = {agent: [] for agent in agents}
        for agent, thread in placed:
            self._of_agent[agent] += thread
        self._echo = {agent: self._echo_of(agent) for agent in agents}
        self._shared = {agent: self._shared_of(agent) for agent in agents}

    def lines(self) -> list[Line]:
        lines: list[Line] = [self._agent(agent) for agent in self._names]
        for number, (agent, thread) in enumerate(self._placed, 1):
            lines += self._session(agent, f"s{number}", thread)
        return lines

    def _agent(self, agent: AgentName) -> Agent:
        base = self._bases.get(agent)
        client = Client(base) if base in frozenset(Client) else Client.PLAIN
        return Agent(name=self._names[agent], client=client, policy=base)

    def _echo_of(self, agent: AgentName) -> Echo:
        """An answer came back unchanged where more than the prompt before it was found in the cache."""
        goes_on = [each for each in self._of_agent[agent] if each.shape is PromptShape.CONTINUATION and each.before]
        for each in goes_on:
            if each.before is not None and (each.turn.cached_tokens or 0) > each.before.prompt_tokens:
                return Echo.EXACT
        self._unknown["agents may send answers back unchanged; the cache never showed it, so they are new text"] += (
            bool(goes_on)
        )
        return Echo.REWRITTEN

    def _shared_of(self, agent: AgentName) -> int:
        """System prompt and tools, as far as the cache gave them to fresh prompts."""
        fresh = [each.turn for each in self._of_agent[agent] if each.shape is PromptShape.FRESH and each.exact]
        given = [turn.cached_tokens for turn in fresh if turn.cached_tokens]
        self._unknown["agents have a system prompt of unknown size; their fresh prompts share nothing"] += not given
        return int(median(given)) if given else 0

    def _session(self, agent: AgentName, name: str, thread: Sequence[Placed]) -> list[Line]:
        first = thread[0].turn
        shared = min(self._shared[agent], *(each.turn.prompt_tokens for each in thread if _is_fresh(each)))
        session = Session(
            agent=self._names[agent],
            session=name,
            start_s=_seconds(first.at - self._began),
            shared=Shared(name=f"{self._names[agent]}/system", tokens=shared) if shared else None,
        )
        self._unknown["conversations are older than the recording; their first prompt is new here"] += (
            first.shape is not PromptShape.FRESH
        )
        lines: list[Line] = [session]
        carried = {id(each.before) for each in thread if each.carrier_moved}
        free_at, carrier = first.at, 0
        for each in thread:
            turn = self._turn(agent, name, each, shared, carrier)
            turn = msgspec.structs.replace(turn, after_s=_seconds(max(0.0, each.turn.at - free_at)))
            if id(each.turn) in carried:
                turn = msgspec.structs.replace(turn, carrier_tokens=min(CARRIER_TOKENS, new_tokens(turn.new)))
            if not each.aside:
                carrier = turn.carrier_tokens
            lines.append(turn)
            free_at = each.turn.ended_at
        return lines

    def _turn(self, agent: AgentName, session: str, placed: Placed, shared: int, carrier: int) -> Turn:
        """``carrier``: what of the prompt before goes away."""
        turn, before = placed.turn, placed.before
        new = turn.prompt_tokens
        echo, echo_tokens, branch_at = Echo.EXACT, None, None
        match placed.shape:
            case PromptShape.FRESH:
                new -= shared
            case PromptShape.BRANCH if before is not None:
                branch_at = min(placed.branch_at, before.prompt_tokens - carrier + before.output_tokens)
                new -= branch_at
                self._unknown["prompts share more with their conversation than the log tells"] += not placed.exact
            case PromptShape.REPEAT:
                new = 0
            case PromptShape.CONTINUATION if before is not None:
                new -= before.prompt_tokens - carrier
                sent_back = before.sent_back_tokens
                echo = self._echo[agent] if sent_back <= new else Echo.DROPPED
                if echo is not Echo.DROPPED:
                    new -= sent_back
                    # Reasoning in the middle of the answer is gone, so that what follows is other text.
                    echo = Echo.REWRITTEN if before.reasoning_tokens else echo
                    echo_tokens = sent_back if echo is Echo.REWRITTEN else None
        kind = PieceKind.TOOL if before is not None and before.calls_tool else PieceKind.USER
        return Turn(
            agent=self._names[agent],
            session=session,
            kind=turn.kind,
            shape=placed.shape,
            branch_at=branch_at,
            echo=echo,
            echo_tokens=echo_tokens,
            new=(Piece(kind=kind, tokens=new),) if new else (),
            output_tokens=turn.output_tokens,
            cap=turn.cap,
            aside=placed.aside,
        )


def _is_fresh(placed: Placed) -> bool:
    return placed.shape is PromptShape.FRESH


def _seconds(value: float) -> float:
    """To the millisecond: more only makes the file long."""
    return round(value, 3)
