"""Clients' prompts as the gateway sees them, put to a :class:`ClientWatch`; and what real clients did when they
compacted.

``data/clients/compactions.jsonl.gz`` has the chat requests of Hermes Agent 0.19.0 and OpenClaw 2026.9.6 before, during
and after their compactions, one a line, in the order in which they came. Of a long text its beginning, a digest and its
length are kept, so that equal texts are equal here; ``bytes`` is the size that the body really had.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from governor.compress.client_model import ClientEnd, ClientPass, ClientPrompt, Standing
from governor.compress.clients import ClientWatch, WatchLimits
from governor.gateway.planner import prompt_of
from governor.output.kinds import turn_kind
from governor.tokens.chain import SessionIndex, client_session_id, digest_head, trace_id
from governor.types import AgentName, TurnId, TurnKind
from governor.wire.messages import text_of
from governor.wire.request import parse
from serve.engine import Endpoint

_DATA = Path(__file__).parent / "data" / "clients" / "compactions.jsonl.gz"
BYTES_PER_TOKEN = 4
ME = AgentName("me")


class CompactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request."""

    recording: str
    n: int
    bytes: int
    headers: dict[str, str]
    client_session: str | None
    reply: str
    """What the engine was told to do."""
    usage: int | None
    """``prompt_tokens`` that it reported, where that was chosen."""
    body: dict[str, Any]

    @property
    def tokens(self) -> int:
        return self.bytes // BYTES_PER_TOKEN


def compaction_requests(recording: str) -> list[CompactionRequest]:
    with gzip.open(_DATA) as file:
        requests = [msgspec.json.decode(line, type=CompactionRequest) for line in file]
    return [request for request in requests if request.recording == recording]


class Watched:
    """A watch behind the real recognisers: kinds, sessions, shapes, breaks."""

    def __init__(self, *, attempts: int = 2, gain_tokens: int = 4000, limits: WatchLimits | None = None) -> None:
        self.watch = ClientWatch(limits)
        self.index = SessionIndex()
        self.attempts = attempts
        self.gain_tokens = gain_tokens
        self._turns = 0
        self.kind = TurnKind.FINAL
        """Of the last prompt."""

    def prompt(
        self,
        body: Mapping[str, Any],
        tokens: int,
        *,
        headers: Mapping[str, str] | None = None,
        session: str | None = None,
        agent: AgentName = ME,
    ) -> tuple[TurnId, Standing]:
        """A client's request comes in."""
        request = parse(Endpoint.CHAT, msgspec.json.encode(body))
        prompt = prompt_of(request)
        headers = headers or {}
        first_user = next(
            (raw for raw, role in zip(request.messages, request.roles, strict=True) if role == "user"), b""
        )
        named = session or client_session_id(headers, request.cache_key, text_of(first_user), "")
        head = digest_head(request.model, prompt.tools)
        at = self.index.locate(agent, head, prompt.messages, named, tools=prompt.tools, trace=trace_id(headers))
        self._turns += 1
        self.kind = turn_kind(request)
        seen = ClientPrompt(
            turn_id=TurnId(f"t{self._turns}"),
            agent=agent,
            session=at.session_id,
            path=at.path,
            parent=at.parent,
            kind=self.kind,
            shape=at.shape,
            cause=at.broke_at.cause if at.broke_at else None,
            tokens=tokens,
        )
        return seen.turn_id, self.watch.on_prompt(seen, attempts=self.attempts, gain_tokens=self.gain_tokens)

    def end(
        self, turn_id: TurnId, *, ok: bool = True, reported: int | None = None, told: int | None = None
    ) -> ClientPass | None:
        """``told``: where it is not what was reported."""
        return self.watch.on_end(
            ClientEnd(
                turn_id=turn_id,
                ok=ok,
                reported_tokens=reported,
                told_tokens=reported if told is None else told,
                lowered=told is not None,
            )
        )

    def turn(
        self,
        body: Mapping[str, Any],
        tokens: int,
        *,
        ok: bool = True,
        reported: int | None = None,
        told: int | None = None,
        headers: Mapping[str, str] | None = None,
        session: str | None = None,
        agent: AgentName = ME,
    ) -> tuple[Standing, ClientPass | None]:
        """A whole turn."""
        turn_id, standing = self.prompt(body, tokens, headers=headers, session=session, agent=agent)
        return standing, self.end(turn_id, ok=ok, reported=reported, told=told)
