"""Requests that real Hermes Agent 0.19.0 and OpenClaw 2026.9.6 sent, and what each was for, labelled by hand.

``data/*.jsonl.gz`` holds one request a line. Bodies are the compact JSON both clients send, keys in their order;
paths and host names of the recording machine were replaced. Headers that belong to one connection, and credentials,
were left out.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from governor.types import TurnKind
from serve.engine import Endpoint

_DATA = Path(__file__).parent / "data"
_STEP = TurnKind.TOOL_STEP
_COMPACTION = TurnKind.COMPACTION

KINDS: Mapping[str, tuple[TurnKind, ...]] = {
    # Two turns of one session with a tool call each; the second in a new process.
    "hermes-chat": (_STEP, _STEP, _STEP, _STEP),
    # Over the threshold; the summary call; the compacted history; the title; the skill review over the whole history.
    "hermes-compaction": (_STEP, _COMPACTION, _STEP, TurnKind.TITLE, TurnKind.BACKGROUND),
    # Stock configuration, then one with session headers, then its second turn.
    "openclaw-chat": (_STEP, _STEP, _STEP, _STEP, _STEP),
    # Two chained summary calls and the compacted history; then a memory flush (counted as compaction: history is
    # lost when it is refused) and two of its summary calls.
    "openclaw-compaction": (_COMPACTION, _COMPACTION, _STEP, _COMPACTION, _COMPACTION, _COMPACTION),
    "openclaw-responses": (_STEP, _STEP),
    "openclaw-anthropic": (_STEP, _STEP),
}
"""Kind of each request, by file and in the order of its lines."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    n: int
    method: str
    path: str
    credential: Literal["authorization", "x-api-key"]
    headers: tuple[tuple[str, str], ...]
    body: str


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was on the wire."""

    file: str
    place: int
    """Line of the file, from 1."""
    client: Literal["hermes", "openclaw"]
    method: str
    endpoint: Endpoint
    credential: Literal["authorization", "x-api-key"]
    """The header its key came in."""
    headers: tuple[tuple[str, str], ...]
    """Without connection headers and credentials."""
    body: bytes
    kind: TurnKind

    @property
    def name(self) -> str:
        """For test ids."""
        return f"{self.file}-{self.place}"

    def with_key(self, key: str) -> list[tuple[str, str]]:
        """The headers with a credential in the place where the client puts it."""
        value = f"Bearer {key}" if self.credential == "authorization" else key
        return [*self.headers, (self.credential, value)]


def recorded_requests() -> list[RecordedRequest]:
    """All of them, in the order of :data:`KINDS`."""
    return [request for name, kinds in KINDS.items() for request in _read(name, kinds)]


def _read(name: str, kinds: tuple[TurnKind, ...]) -> list[RecordedRequest]:
    with gzip.open(_DATA / f"{name}.jsonl.gz") as file:
        lines = [msgspec.json.decode(line, type=_Line) for line in file]
    return [
        RecordedRequest(
            file=name,
            place=place,
            client="hermes" if name.startswith("hermes") else "openclaw",
            method=line.method,
            endpoint=Endpoint(line.path),
            credential=line.credential,
            headers=line.headers,
            body=line.body.encode(),
            kind=kind,
        )
        for place, (line, kind) in enumerate(zip(lines, kinds, strict=True), start=1)
    ]
