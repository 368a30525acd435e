"""The hash chain of conversations: which session a prompt belongs to, how it relates to it, where it broke off.

It lives here because counting builds on it: the part of a prompt that a session has sent before has a size the engine
has already reported. Kept in memory, bounded, and lost at a restart at no harm: the next prompt is then ``fresh``.
A session is a small set of paths, each the digests of one prompt. A background review or a compaction adds a path;
the next prompt of the main line still finds the main line, because the longest shared beginning wins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count

import msgspec

from governor.tokens.breaks import Break, BreakCause
from governor.tokens.digests import MessageDigest, digest_head, digest_loosely, digest_message
from governor.tokens.model import KnownPrefix
from governor.tokens.paths import (
    Path,
    Prompt,
    Session,
    closest,
    compare,
    known_prefix,
    same_conversation,
    shared_messages,
)
from governor.tokens.session_ids import client_session_id, trace_id
from governor.types import AgentName, PromptShape, SessionId

__all__ = [
    "Break", "BreakCause", "LastPrompt", "Located", "MessageDigest", "SessionIndex", "SessionLimits",
    "client_session_id", "digest_head", "digest_loosely", "digest_message", "trace_id",
]  # fmt: skip


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much the index may remember. Beyond a limit the least recently used goes."""

    sessions: int = 512
    """Sessions of all agents together."""
    sessions_per_agent: int = 64
    paths_per_session: int = 8
    """Prompts of different beginnings held per session; each costs 16 bytes a message."""
    depths_per_path: int = 32
    """Places in a path at which a prompt ended, and its reported size."""
    raw_bytes: int = 64 * 1024 * 1024
    """Bytes of last prompts held, over all sessions, so that a break can be named to the byte."""
    traces: int = 1024


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """Where a prompt belongs."""

    session_id: SessionId
    shape: PromptShape
    """A prompt that only moved OpenClaw's trailing carrier is a continuation, with ``broke_at`` saying so."""
    shared_messages: int
    """Messages equal, byte for byte, to what the session sent before, counted from the first."""
    digests: tuple[MessageDigest, ...]
    path: int
    """For :meth:`SessionIndex.record`."""
    parent: int | None = None
    """The path that a branch broke off from."""
    broke_at: Break | None = None
    known: KnownPrefix | None = None


class LastPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it was sent last along one path."""

    session_id: SessionId
    message_count: int
    messages: tuple[bytes, ...] | None
    """``None``: its bytes are no longer held."""
    tools: bytes | None
    sent: tuple[tuple[int, int | None], ...]
    """In how many messages prompts along it ended, and what the engine reported of each; the shortest first."""

    @property
    def prompt_tokens(self) -> int | None:
        """As the engine reported."""
        return dict(self.sent).get(self.message_count)


class SessionIndex:
    """Finds the session of each prompt. Synchronous, no I/O; to be used from one thread.

    Cost of a call: one hash of the messages whose digests are not given, and comparisons of digests, linear in the
    prompt. Only a prompt that broke off is parsed, to name the cause.
    """

    def __init__(self, limits: SessionLimits | None = None) -> None:
        self._limits = limits or SessionLimits()
        self._sessions: OrderedDict[tuple[AgentName, SessionId], Session] = OrderedDict()
        self._of_agent: dict[AgentName, OrderedDict[SessionId, Session]] = {}
        self._paths: dict[int, Path] = {}
        self._openings: dict[tuple[AgentName, bytes], OrderedDict[int, Path]] = {}
        self._traces: OrderedDict[tuple[AgentName, str], SessionId] = OrderedDict()
        self._raw: OrderedDict[int, int] = OrderedDict()
        self._raw_bytes = 0
        self._next_path = count(1)

    def locate(
        self,
        agent: AgentName,
        head: bytes,
        messages: Sequence[bytes],
        client_session: str | None,
        *,
        tools: bytes | None = None,
        trace: str | None = None,
        apart: bool = False,
        digests: Sequence[MessageDigest] = (),
    ) -> Located:
        """Find the session and shape of a prompt and remember the prompt as sent. Changes state.

        ``head`` is :func:`digest_head` of the model and tools; ``messages`` are all messages, system first, as raw
        JSON. With a client's session id the session is the one of that id; else the one a trace id ties it to; else
        the agent's session that shares most of the beginning, at least the first message that is not a system prompt.
        A session that begins ``apart`` is found by its id only. ``digests``: of the first messages, as far as the
        caller has them.
        """
        prompt = Prompt(head, messages, tools, digests)
        named = self._named(agent, client_session, trace)
        session = self._sessions.get((agent, named)) if named is not None else None
        if named is not None:
            best = closest(session.paths.values(), prompt) if session else None
        else:
            best = closest(self._openings.get((agent, prompt.opening), {}).values(), prompt)
            if best is not None and not same_conversation(best, prompt):
                best = None
        if session is None:
            session = (
                best.session
                if best
                else self._session(agent, named or _derive_id(agent, head, prompt.opening), apart=apart)
            )
        self._touch(session, trace)
        located = self._relate(session, best, prompt)
        self._trim(session)
        return located

    def record(self, located: Located, *, prompt_tokens: int | None) -> None:
        """Note what the engine reported for a located prompt, so that the next count starts from it. Changes state."""
        path = self._paths.get(located.path)
        depth = len(located.digests)
        if path is not None and prompt_tokens is not None and depth in path.sent:
            path.sent[depth] = prompt_tokens

    def named_session(self, agent: AgentName, client_session: str) -> SessionId:
        """The session of that id of the client's, whether or not there is one."""
        return _derive_id(agent, b"client", client_session.encode())

    def last_prompts(self, agent: AgentName) -> Iterator[LastPrompt]:
        """The last prompt of each path of the agent's sessions, the latest sent first. Changes nothing."""
        for session in reversed(self._of_agent.get(agent, {}).values()):
            for path in reversed(session.paths.values()):
                yield LastPrompt(
                    session_id=session.id,
                    message_count=path.messages,
                    messages=path.raw,
                    tools=path.tools,
                    sent=tuple(sorted(path.sent.items())),
                )

    def check_integrity(self) -> None:
        """Raise :class:`AssertionError` if the books disagree or a limit is exceeded. Changes nothing."""
        paths = {id_: path for session in self._sessions.values() for id_, path in session.paths.items()}
        problems = [
            text
            for wrong, text in (
                (paths != self._paths, "paths"),
                (sum(map(len, self._of_agent.values())) != len(self._sessions), "sessions of agents"),
                (
                    sum(map(len, self._openings.values())) != sum(not path.session.apart for path in paths.values()),
                    "openings",
                ),
                (sum(self._raw.values()) != self._raw_bytes, "raw bytes"),
                ({id_ for id_, path in paths.items() if path.raw is not None} != set(self._raw), "raw holders"),
                (self._raw_bytes > self._limits.raw_bytes, "raw limit"),
                (len(self._sessions) > self._limits.sessions, "session limit"),
                (any(len(s.paths) > self._limits.paths_per_session for s in self._sessions.values()), "path limit"),
            )
            if wrong
        ]
        if problems:
            raise AssertionError(f"session index: {', '.join(problems)}")

    @property
    def raw_bytes(self) -> int:
        """Bytes of prompts held now."""
        return self._raw_bytes

    def __len__(self) -> int:
        return len(self._sessions)

    def _named(self, agent: AgentName, client_session: str | None, trace: str | None) -> SessionId | None:
        if client_session is not None:
            return self.named_session(agent, client_session)
        return self._traces.get((agent, trace)) if trace is not None else None

    def _session(self, agent: AgentName, id_: SessionId, *, apart: bool) -> Session:
        session = self._sessions.get((agent, id_))
        if session is None:
            session = self._sessions[agent, id_] = Session(agent, id_, apart=apart)
            self._of_agent.setdefault(agent, OrderedDict())[id_] = session
        return session

    def _touch(self, session: Session, trace: str | None) -> None:
        self._sessions.move_to_end((session.agent, session.id))
        self._of_agent[session.agent].move_to_end(session.id)
        if trace is not None:
            self._traces[session.agent, trace] = session.id
            self._traces.move_to_end((session.agent, trace))
            while len(self._traces) > self._limits.traces:
                self._traces.popitem(last=False)

    def _relate(self, session: Session, best: Path | None, prompt: Prompt) -> Located:
        shape, shared, broke_at, known = PromptShape.FRESH, 0, None, None
        if best is not None:
            shared = shared_messages(best.digests, prompt.chain)
            shape, broke_at = compare(best, prompt, shared)
            if best.head == prompt.head and shape is not PromptShape.FRESH:
                known = known_prefix(best, shared)
        if best is not None and shape in (PromptShape.CONTINUATION, PromptShape.REPEAT):
            path = best
        else:
            path = self._branch(session, prompt, best, shared)
        session.paths.move_to_end(path.id)
        if shape is not PromptShape.REPEAT:
            for depth in [depth for depth in path.sent if depth > shared]:
                del path.sent[depth]
            path.digests = prompt.chain
            self._enter(path, prompt.opening)
            self._hold(path, prompt)
        depth = len(prompt.messages)
        path.sent.setdefault(depth, None)
        path.sent.move_to_end(depth)
        while len(path.sent) > self._limits.depths_per_path:
            path.sent.popitem(last=False)
        return Located(
            session_id=session.id,
            shape=shape,
            shared_messages=shared,
            digests=prompt.digests,
            path=path.id,
            parent=best.id if best is not None and shape is PromptShape.BRANCH else None,
            broke_at=broke_at,
            known=known,
        )

    def _branch(self, session: Session, prompt: Prompt, parent: Path | None, shared: int) -> Path:
        path = Path(next(self._next_path), session, prompt.head)
        session.paths[path.id] = self._paths[path.id] = path
        if parent is not None and parent.head == prompt.head:
            path.sent.update((depth, tokens) for depth, tokens in parent.sent.items() if depth <= shared)
        return path

    def _enter(self, path: Path, opening: bytes) -> None:
        """List the path under its opening message, as the latest used."""
        self._leave(path)
        if path.session.apart:
            return
        path.opening = opening
        self._openings.setdefault((path.session.agent, opening), OrderedDict())[path.id] = path

    def _leave(self, path: Path) -> None:
        key = (path.session.agent, path.opening)
        listed = self._openings.get(key)
        if listed is not None:
            listed.pop(path.id, None)
            if not listed:
                del self._openings[key]

    def _hold(self, path: Path, prompt: Prompt) -> None:
        self._release(path)
        size = sum(map(len, prompt.messages)) + len(prompt.tools or b"")
        if size > self._limits.raw_bytes:
            return
        path.raw, path.tools = tuple(prompt.messages), prompt.tools
        self._raw[path.id] = size
        self._raw_bytes += size
        while self._raw_bytes > self._limits.raw_bytes:
            self._release(self._paths[next(iter(self._raw))])

    def _release(self, path: Path) -> None:
        self._raw_bytes -= self._raw.pop(path.id, 0)
        path.raw = path.tools = None

    def _trim(self, session: Session) -> None:
        while len(session.paths) > self._limits.paths_per_session:
            self._forget(next(iter(session.paths.values())))
        of_agent = self._of_agent[session.agent]
        if len(of_agent) > self._limits.sessions_per_agent:
            self._end(next(iter(of_agent.values())))
        if len(self._sessions) > self._limits.sessions:
            self._end(next(iter(self._sessions.values())))

    def _end(self, session: Session) -> None:
        for path in list(session.paths.values()):
            self._forget(path)
        del self._sessions[session.agent, session.id]
        of_agent = self._of_agent[session.agent]
        del of_agent[session.id]
        if not of_agent:
            del self._of_agent[session.agent]

    def _forget(self, path: Path) -> None:
        self._release(path)
        del path.session.paths[path.id]
        del self._paths[path.id]
        self._leave(path)


def _derive_id(agent: AgentName, *parts: bytes | str) -> SessionId:
    """The same id for the same beginning, so that a restarted governor goes on with the session."""
    hasher = blake2b(agent.encode(), digest_size=8)
    for part in parts:
        hasher.update(b"\x00" + (part.encode() if isinstance(part, str) else part))
    return SessionId(hasher.hexdigest())
