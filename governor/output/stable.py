"""A request with a beginning that stays equal from turn to turn, as far as the policy allows; and a word where it does
not. Pure; kept in memory, and bounded.

It lives here because it decides what of a client's request is sent, before anything is counted or compressed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from governor.output.attribution import without_attribution
from governor.output.interleaved import Repair, repair
from governor.output.system_prompt import Difference, SystemPrompt, difference, leading_instructions
from governor.output.tool_order import Tools, changes_of, read_tools
from governor.policy.model import Attribution, Interleaved, RequestPolicy, SystemBytes, ToolOrder
from governor.types import AgentName, SessionId
from governor.wire.messages import joined
from governor.wire.request import GenerationRequest, parse
from serve.engine import Endpoint

_MOST_SYSTEMS = 4
"""A session's own prompt, and those of side calls that the client makes under the same name."""
_ENTRY_BYTES = 600
_SYSTEM_FIELD: Mapping[Endpoint, str] = {Endpoint.RESPONSES: "instructions"}
_MESSAGES_FIELD: Mapping[Endpoint, str] = {Endpoint.RESPONSES: "input"}


class StableLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be remembered. Beyond a limit the session used least recently goes."""

    sessions: int = 512
    held_bytes: int = 32 * 1024 * 1024
    """System prompts and tools, over all sessions."""


class Stable(msgspec.Struct, frozen=True, kw_only=True):
    """The request to send, and what is to be said of it."""

    request: GenerationRequest
    """The very one that came in where nothing was changed."""
    edits: tuple[str, ...] = ()
    """What was changed."""
    warnings: tuple[str, ...] = ()
    """What the client did to its own prefix: a name and, behind a colon, details. No text of a prompt is quoted."""


class _Session(msgspec.Struct):
    """What a conversation has sent."""

    systems: list[SystemPrompt] = []
    """Different ones, the one used last at the end."""
    tools: Tools | None = None

    @property
    def size(self) -> int:
        tools = 0 if self.tools is None else len(self.tools.raw) + len(self.tools.by_name)
        return _ENTRY_BYTES + tools + sum(len(part) for system in self.systems for part in system)


class _Draft:
    """One request on its way."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.changes: dict[str, bytes | None] = {}
        self.edits: list[str] = []
        self.warnings: list[str] = []
        self.messages: Sequence[bytes | msgspec.Raw] = request.messages
        self.roles: Sequence[str] = request.roles
        self.leading = leading_instructions(request)

    @property
    def system(self) -> SystemPrompt:
        """The field comes first."""
        raw = self.request.system
        field = self.changes.get(self._system_field, None if raw is None else bytes(raw))
        leading = tuple(bytes(message) for message in self.messages[: self.leading])
        return leading if field is None else (field, *leading)

    def set_system(self, parts: Sequence[bytes | None]) -> None:
        """``parts`` stand for those of :attr:`system`, in order; ``None``: one is left out."""
        own = len(parts) - self.leading
        if own:
            self.changes[self._system_field] = parts[0]
        heads = list(zip(parts[own:], self.roles[: self.leading], strict=True))
        kept = [(raw, role) for raw, role in heads if raw is not None]
        self.messages = [*(raw for raw, _ in kept), *self.messages[self.leading :]]
        self.roles = [*(role for _, role in kept), *self.roles[self.leading :]]
        self.leading = len(kept)

    def reorder(self, order: Sequence[int]) -> None:
        self.messages = [self.messages[index] for index in order]
        self.roles = [self.roles[index] for index in order]

    def done(self) -> Stable:
        request = self.request
        if self.messages is not request.messages:
            self.changes[_MESSAGES_FIELD.get(request.endpoint, "messages")] = joined(self.messages)
        if self.changes:
            request = parse(request.endpoint, request.json.edited(self.changes))
        return Stable(request=request, edits=tuple(self.edits), warnings=tuple(self.warnings))

    @property
    def _system_field(self) -> str:
        return _SYSTEM_FIELD.get(self.request.endpoint, "system")


class Stabiliser:
    """Knows what each session sent before. Synchronous, no I/O; to be used from one thread.

    Cost of a call that changes nothing: copies and comparisons of the system prompt and the tools, and one look at each
    message's role.
    """

    def __init__(self, limits: StableLimits | None = None) -> None:
        self._limits = limits or StableLimits()
        self._sessions: OrderedDict[tuple[AgentName, SessionId], _Session] = OrderedDict()
        self._bytes = 0

    @property
    def sessions(self) -> int:
        """Sessions known now."""
        return len(self._sessions)

    @property
    def held_bytes(self) -> int:
        """Bytes of prompts held now, with what holding them costs."""
        return self._bytes

    def stabilised(
        self, agent: AgentName, session_id: SessionId, request: GenerationRequest, policy: RequestPolicy
    ) -> Stable:
        """The request as it is to be sent. Changes state: the session is remembered as having sent it."""
        if request.endpoint is Endpoint.COMPLETIONS:
            return Stable(request=request)
        key = (agent, session_id)
        session = self._sessions.pop(key, None)
        self._bytes -= session.size if session else 0
        session = session or _Session()
        draft = _Draft(request)
        if policy.attribution is Attribution.DROP:
            _drop_attribution(draft)
        _keep_system(draft, session, pin=policy.system_bytes is SystemBytes.PIN)
        _keep_tools(draft, session, by_name=policy.tool_order is ToolOrder.BY_NAME)
        if policy.interleaved is Interleaved.REPAIR:
            _repair(draft)
        self._sessions[key] = session
        self._bytes += session.size
        while len(self._sessions) > self._limits.sessions or self._bytes > self._limits.held_bytes:
            _, oldest = self._sessions.popitem(last=False)
            self._bytes -= oldest.size
        return draft.done()

    def check_integrity(self) -> None:
        """Raises :class:`AssertionError`. Changes nothing."""
        held = sum(session.size for session in self._sessions.values())
        if held != self._bytes or held > self._limits.held_bytes or len(self._sessions) > self._limits.sessions:
            raise AssertionError(f"stabiliser: {len(self._sessions)} sessions, {held} bytes, {self._bytes} counted")


def _drop_attribution(draft: _Draft) -> None:
    before = draft.system
    after = without_attribution(before)
    no_message_left = len(draft.messages) == draft.leading and not any(after[len(before) - draft.leading :])
    if after == list(before) or no_message_left:
        return
    draft.set_system(after)
    draft.edits.append("system: billing line dropped")


def _keep_system(draft: _Draft, session: _Session, *, pin: bool) -> None:
    now = draft.system
    if not now:
        return
    held, found = _match(session.systems, now)
    sent = now
    if found is not None and pin and held is not None:
        sent = held
        draft.set_system(sent)
        draft.edits.append(f"system pinned: {_count(found.spans, 'volatile span') if found.spans else 'its JSON'}")
    elif found is not None and found.spans:
        draft.warnings.append(f"volatile_system: {found}")
    if held is not None:
        session.systems.remove(held)
    session.systems = [*session.systems, sent][-_MOST_SYSTEMS:]


def _match(systems: Sequence[SystemPrompt], now: SystemPrompt) -> tuple[SystemPrompt | None, Difference | None]:
    """The one that was sent before, exactly or but for volatile spans; in which it differs, if it does."""
    if now in systems:
        return now, None
    for held in reversed(systems):
        if (found := difference(held, now)) is not None:
            return held, found
    return None, None


def _keep_tools(draft: _Draft, session: _Session, *, by_name: bool) -> None:
    """A request without tools is a side call, as for a title, and says nothing about the session's."""
    raw = draft.request.tools
    if raw is None:
        return
    before, sent = session.tools, bytes(raw)
    now = before if before is not None and before.raw == sent else read_tools(sent)
    if now.names:
        if before is not None and now is not before:
            draft.warnings += changes_of(before, now, by_name=by_name)
        session.tools = now
    if by_name and now.by_name != sent:
        draft.changes["tools"] = now.by_name
        draft.edits.append("tools by name")


def _repair(draft: _Draft) -> None:
    found = repair(draft.request.endpoint, draft.messages, draft.roles)
    if found is None:
        return
    draft.edits.append(_moved(found, draft.roles))
    draft.reorder(found.order)


def _moved(found: Repair, roles: Sequence[str]) -> str:
    words = {roles[index] for index in found.moved}
    role = next(iter(words)) if len(words) == 1 else ""
    return f"{_count(len(found.moved), f'{role} message'.lstrip())} moved behind {_count(found.results, 'result')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
