"""The prompts of a session as paths of digests, and how a new prompt relates to one.

Pure, but for the fields of a path that the index in ``chain`` writes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from governor.tokens.breaks import Break, BreakCause, diagnose_messages, diagnose_tools, first_difference
from governor.tokens.digests import DIGEST_BYTES, MessageDigest, digest_message
from governor.tokens.model import KnownPrefix
from governor.types import AgentName, PromptShape, SessionId


class Prompt:
    """A prompt with its digests, each computed once."""

    __slots__ = ("chain", "digests", "head", "messages", "start", "tools")

    def __init__(
        self, head: bytes, messages: Sequence[bytes], tools: bytes | None, known: Sequence[MessageDigest] = ()
    ) -> None:
        """``known``: digests of the first messages."""
        self.head = head
        self.messages = messages
        self.tools = tools
        self.digests = (*known, *map(digest_message, messages[len(known) :]))
        self.chain = b"".join(self.digests)
        self.start = _opening_at(messages)
        """Index of the opening message: the first that is not a system prompt."""

    @property
    def opening(self) -> bytes:
        return self.digests[self.start] if self.digests else b""


class Path:
    """One prompt of a session and the depths at which earlier prompts along it ended."""

    __slots__ = ("digests", "head", "id", "opening", "raw", "sent", "session", "tools")

    def __init__(self, id_: int, session: Session, head: bytes) -> None:
        self.id = id_
        self.session = session
        self.head = head
        self.opening = b""
        self.digests = b""
        self.sent: OrderedDict[int, int | None] = OrderedDict()
        self.raw: tuple[bytes, ...] | None = None
        self.tools: bytes | None = None

    @property
    def messages(self) -> int:
        return len(self.digests) // DIGEST_BYTES


class Session:
    """A small set of paths."""

    __slots__ = ("agent", "apart", "id", "paths")

    def __init__(self, agent: AgentName, id_: SessionId, *, apart: bool) -> None:
        self.agent = agent
        self.apart = apart
        """Not to be found by what its prompts begin with."""
        self.id = id_
        self.paths: OrderedDict[int, Path] = OrderedDict()


class _Role(msgspec.Struct):
    role: str = ""


def _opening_at(messages: Sequence[bytes]) -> int:
    """Index of the first message that is not a system prompt; the last index if all are. A value that is no object is
    the system prompt of a dialect that keeps it outside the messages."""
    for index, raw in enumerate(messages):
        try:
            role = msgspec.json.decode(raw, type=_Role).role
        except (msgspec.MsgspecError, RecursionError):
            role = "system" if index == 0 and raw[:1] in {b'"', b"["} else ""
        if role not in ("system", "developer"):
            return index
    return max(0, len(messages) - 1)


def shared_messages(one: bytes, other: bytes) -> int:
    """Messages that two chains of digests have in common from the first."""
    return first_difference(one, other) // DIGEST_BYTES


def _aligned(path: Path, prompt: Prompt) -> int:
    """Messages in common from the opening one on, whatever the system prompt."""
    skipped = prompt.start * DIGEST_BYTES
    return shared_messages(path.digests[skipped:], prompt.chain[skipped:])


def closest(paths: Iterable[Path], prompt: Prompt) -> Path | None:
    """The path that shares most: under the same head first, then in messages; among equals the latest used."""
    best, best_rank = None, (-1, -1, -1)
    for path in paths:
        shared = shared_messages(path.digests, prompt.chain)
        rank = (shared if path.head == prompt.head else 0, shared, _aligned(path, prompt))
        if rank >= best_rank:
            best, best_rank = path, rank
    return best


_ENOUGH_UNDER_ANOTHER_SYSTEM = 2


def same_conversation(path: Path, prompt: Prompt) -> bool:
    """True if two prompts without a session id belong together: system prompt and opening shared, or, under a system
    prompt that changed, the opening and what followed it."""
    if shared_messages(path.digests, prompt.chain) > prompt.start:
        return True
    return _aligned(path, prompt) >= _ENOUGH_UNDER_ANOTHER_SYSTEM


def compare(path: Path, prompt: Prompt, shared: int) -> tuple[PromptShape, Break | None]:
    """Shape of a prompt against the closest path, and where it broke off."""
    if path.head == prompt.head:
        if shared == path.messages and len(prompt.messages) > shared:
            return PromptShape.CONTINUATION, None
        if shared == len(prompt.messages):
            sent_before = shared in path.sent or shared == path.messages
            return (PromptShape.REPEAT if sent_before else PromptShape.BRANCH), None
        broke_at = diagnose_messages(path.raw, prompt.messages, shared)
    elif path.raw is None:
        broke_at = Break(cause=BreakCause.UNKNOWN)
    else:
        broke_at = diagnose_tools(path.tools, prompt.tools)
    if broke_at.cause is BreakCause.CARRIER_MOVED:
        return PromptShape.CONTINUATION, broke_at
    related = shared > prompt.start or broke_at.cause is BreakCause.COMPACTED or _aligned(path, prompt) > 0
    return (PromptShape.BRANCH, broke_at) if related else (PromptShape.FRESH, None)


_MOST_REMOVED = 2


def known_prefix(path: Path, shared: int) -> KnownPrefix | None:
    """The reported size that lies nearest to the end of what is shared."""
    within = [(depth, tokens) for depth, tokens in path.sent.items() if tokens is not None and depth <= shared]
    depth, tokens = max(within, default=(0, None))
    whole = path.sent.get(path.messages)
    if depth < shared and whole is not None and path.raw is not None and path.messages - shared <= _MOST_REMOVED:
        return KnownPrefix(messages=shared, prompt_tokens=whole, removed=path.raw[shared:])
    return None if tokens is None else KnownPrefix(messages=depth, prompt_tokens=tokens)
