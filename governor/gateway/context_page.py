"""``/governor/agents/NAME/context``: what the agent's prompt is made of, how it grew, where its prefix broke.

The prompt is the one that the session index holds to compare the next one with; where it holds none, the page says so.
Growth comes from the turn log. Both are worked out in a thread, one page at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from governor.clock import Clock
from governor.compress.messages import read_message
from governor.compress.report import Measured, report_of
from governor.context import ContextPage, ContextReport, Growth, SessionNote
from governor.errors import BadRequest, NotFound
from governor.gateway.auth import check_admin
from governor.gateway.http import JSON, headers_of
from governor.gateway.planner import sent_on_name
from governor.output.caps import effective_window
from governor.output.kinds import LAST_MESSAGES, prompt_kind
from governor.policy.loader import PolicyStore
from governor.policy.model import Policy
from governor.settings import Secret
from governor.store.errors import StoreError
from governor.store.growth import growth_of, newest_session
from governor.store.model import StoredTurn
from governor.tokens.chain import LastPrompt, SessionIndex
from governor.tokens.counter import Counter
from governor.tokens.model import PromptParts
from governor.types import MAIN_KINDS, AgentName, SessionId, TokenCount, TurnKind
from governor.visible import visible
from governor.wire.messages import text_of

log = logging.getLogger(__name__)

GROWTH_TURNS = 40
"""Of the main line, as far back as the page tells."""
_READ_TURNS = 400
"""Rows looked through for them: side turns stand between."""
_TOP, _MOST_TOP = 8, 100
_SHOWN_SESSIONS = 20
_NAMED_AGENTS = 50
_LONGEST_NAME = 80
_NO_STORE = {"cache-control": "no-store"}


class TurnReader(Protocol):
    """Reads the turn log; see :class:`governor.store.query.TurnLogReader`."""

    def recent(self, *, agent: str | None = None, session: str | None = None, limit: int = 50) -> list[StoredTurn]: ...


class ContextPages:
    """One per governor, on its event loop."""

    def __init__(
        self,
        token: Secret,
        sessions: SessionIndex,
        counter: Counter,
        policies: PolicyStore,
        turns: TurnReader,
        clock: Clock,
        *,
        agents: Callable[[], Collection[str]],
        window: Callable[[], int | None],
    ) -> None:
        """``agents``: all names known now. ``window``: of the engine's model, where no turn has told it."""
        self._token = token
        self._sessions = sessions
        self._counter = counter
        self._policies = policies
        self._turns = turns
        self._clock = clock
        self._agents = agents
        self._window = window
        self._one_at_a_time = asyncio.Lock()

    async def context(self, request: Request) -> Response:
        """``?session=ID``: another than the newest. ``?top=N``: the length of its lists."""
        check_admin(headers_of(request.scope), self._token)
        agent = self._named(request.path_params["name"])
        top = _top(request.query_params.get("top"))
        page = await self._page(agent, request.query_params.get("session"), top)
        return Response(msgspec.json.encode(page), 200, _NO_STORE, JSON)

    def _named(self, name: str) -> AgentName:
        known = sorted(self._agents())
        if name in known:
            return AgentName(name)
        more = ", ..." if len(known) > _NAMED_AGENTS else ""
        names = f"There are {', '.join(known[:_NAMED_AGENTS])}{more}." if known else "There is none yet."
        raise NotFound(f"There is no agent '{visible(name, _LONGEST_NAME)}'. {names}")

    async def _page(self, agent: AgentName, wanted: str | None, top: int) -> ContextPage:
        held = list(self._sessions.last_prompts(agent))
        sent_on = {self._sent_on(agent, prompt.session_id) for prompt in held}
        clients = [prompt for prompt in held if prompt.session_id not in sent_on]
        main = list(filter(None, map(main_line, clients)))
        first = next(iter(main or clients), None)
        session = SessionId(wanted) if wanted is not None else None if first is None else first.session_id
        async with self._one_at_a_time:
            session, rows = await asyncio.to_thread(self._logged, agent, session)
            if wanted is not None and not rows and all(prompt.session_id != session for prompt in clients):
                raise NotFound(_no_session(agent, wanted, clients))
            growth = None if rows is None else growth_of(reversed(rows), last=GROWTH_TURNS)
            prompt = next((each for each in main or clients if each.session_id == session), None)
            report, why = None, "no prompt of this session is held in memory"
            if not clients:
                why = "this agent has sent nothing since the governor started"
            elif prompt is not None and prompt.messages is None:
                why = "the prompt is too large, or too old, to be held in memory"
            elif prompt is not None:
                policy = self._policies.policy_for(agent).policy
                engines = self._engines_view(agent, held, prompt.session_id)
                report = await asyncio.to_thread(self._report, prompt, engines, policy, growth, top)
        return ContextPage(
            agent=agent,
            session=session,
            now=self._clock.wall(),
            report=report,
            why_no_report="" if report is not None else why,
            growth=growth,
            sessions=_notes(clients),
        )

    def _logged(self, agent: AgentName, session: SessionId | None) -> tuple[SessionId | None, list[StoredTurn] | None]:
        """The session, or else the newest one that the log knows, and its rows, newest first; ``None`` where the log
        cannot be read. Blocks."""
        try:
            session = session or newest_session(self._turns.recent(agent=agent, limit=_READ_TURNS))
            if session is None:
                return None, []
            return session, self._turns.recent(agent=agent, session=session, limit=_READ_TURNS)
        except StoreError as error:
            log.warning("the context page goes without growth: %s", error)
            return session, None

    def _sent_on(self, agent: AgentName, session: SessionId) -> SessionId:
        return self._sessions.named_session(agent, sent_on_name(session))

    def _engines_view(self, agent: AgentName, held: Sequence[LastPrompt], session: SessionId) -> LastPrompt | None:
        """What the engine was sent in place of the client's last prompt: it was sent after that."""
        sent_on = self._sent_on(agent, session)
        newest = next((prompt for prompt in held if prompt.session_id in (session, sent_on)), None)
        if newest is None or newest.session_id != sent_on:
            return None
        lines = (main_line(prompt) for prompt in held if prompt.session_id == sent_on)
        return next(filter(None, lines), newest)

    def _report(
        self, prompt: LastPrompt, engines: LastPrompt | None, policy: Policy, growth: Growth | None, top: int
    ) -> ContextReport:
        """Counts, so it blocks for as long as that takes."""
        messages, counter = list(prompt.messages or ()), self._counter
        counted = counter.count(PromptParts(messages=messages, tools=prompt.tools))
        without_tools = counted if prompt.tools is None else counter.count(PromptParts(messages=messages))
        window = growth.window_tokens if growth is not None else None
        return report_of(
            Measured(
                messages=messages,
                tools=prompt.tools,
                total=_total(prompt, counted),
                sizes=counter.sizes(messages),
                tools_tokens=max(0, counted.tokens - without_tools.tokens),
                counted=counted.source == "tokenizer",
            ),
            size_of=lambda raw: counter.sizes([raw])[0],
            policy=policy.compression,
            window_tokens=window if window is not None else effective_window(self._window(), policy),
            engine_tokens=None if engines is None else self._tokens(engines),
            top=top,
        )

    def _tokens(self, prompt: LastPrompt) -> int | None:
        if prompt.prompt_tokens is not None or prompt.messages is None:
            return prompt.prompt_tokens
        return self._counter.count(PromptParts(messages=prompt.messages, tools=prompt.tools)).tokens


def main_line(prompt: LastPrompt) -> LastPrompt | None:
    """The last prompt of the conversation along this path, without a review that goes on from it; ``None`` where the
    path is a title's or a compaction's. What is no longer held is taken as it is."""
    if prompt.messages is None:
        return prompt
    for place, (depth, _) in reversed(tuple(enumerate(prompt.sent))):
        messages = prompt.messages[:depth]
        if messages and _kind(messages, prompt.tools) in MAIN_KINDS:
            return msgspec.structs.replace(
                prompt, messages=messages, message_count=depth, sent=prompt.sent[: place + 1]
            )
    return None


def _kind(messages: Sequence[bytes], tools: bytes | None) -> TurnKind:
    first = read_message(messages[0])
    system = text_of(messages[0]) if first.role is None or first.is_instruction else ""
    last = [text_of(raw) for raw in messages[-LAST_MESSAGES:] if read_message(raw).role == "user"]
    return prompt_kind(system, last, tools is not None)


def _total(prompt: LastPrompt, counted: TokenCount) -> TokenCount:
    """The engine's figure, where it has told one."""
    return counted if prompt.prompt_tokens is None else TokenCount(tokens=prompt.prompt_tokens, source="reported")


def _notes(prompts: Sequence[LastPrompt]) -> tuple[SessionNote, ...]:
    """Each session with its longest prompt, the latest used first."""
    notes: dict[str, SessionNote] = {}
    for prompt in prompts:
        before = notes.get(prompt.session_id)
        if before is None or prompt.message_count > before.messages:
            notes[prompt.session_id] = SessionNote(
                session=prompt.session_id, messages=prompt.message_count, held=prompt.messages is not None
            )
    return tuple(notes.values())[:_SHOWN_SESSIONS]


def _no_session(agent: AgentName, wanted: str, prompts: Sequence[LastPrompt]) -> str:
    known = [note.session for note in _notes(prompts)]
    there = f"The newest are {', '.join(known)}." if known else "None is held in memory."
    return f"The agent '{agent}' has no session '{visible(wanted, _LONGEST_NAME)}'. {there}"


def _top(text: str | None) -> int:
    if text is None:
        return _TOP
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= _MOST_TOP):
        raise BadRequest(f"top must be a number between 1 and {_MOST_TOP}.", param="top")
    return int(text)
