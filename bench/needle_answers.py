"""The embedded model, asked for a needle at the end of short sessions: as they are, compressed, and with what a handle
leads to."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import msgspec

from bench.client import BenchFailed
from bench.compress import size_of
from bench.headroom import Headroom
from bench.histories import asks, call, result
from bench.needle_methods import HANDLES, once
from bench.needle_places import Compressed, Place, places
from bench.needle_sessions import NeedleKind, Session, small_sessions
from governor.compress.messages import read_message, text_of
from governor.policy.model import CompressionPolicy
from governor.settings import Home
from serve.embedded.bundled import SMOLLM2
from serve.launcher import EmbeddedOptions, launch_embedded

AS_SENT = "as sent"
GOVERNOR = "governor at 60%"
RECALLED = f"{GOVERNOR}, handle followed"
_TARGET = 0.6
_POLICY = CompressionPolicy(stub_over_tokens=60, trim_over_tokens=200, trim_target_tokens=100)
_PEER_OPTIONS = {"min_tokens_to_compress": 60}
"""Both as small as the sessions: what they ship would touch nothing of so little."""
_ANSWER_TOKENS = 48
_READY_S = 120.0
_ANSWER_S = 300.0


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One form of a session."""

    method: str
    kind: NeedleKind
    value: str
    messages: Sequence[bytes]
    place: Place


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What the model made of it."""

    prompt: Prompt
    prompt_tokens: int
    """As the engine counted."""
    is_hit: bool
    """The answer has the value."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Said(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


def prompts(number: int, peer: Headroom | None) -> list[Prompt]:
    """Each form of so many sessions."""
    return [prompt for session in small_sessions(number) for prompt in _forms(session, peer)]


def _forms(session: Session, peer: Headroom | None) -> list[Prompt]:
    tokens = sum(map(size_of, session.messages))
    as_sent = Compressed(messages=session.messages, archive={}, handles=HANDLES, cpu_ms=0)
    made: dict[str, Compressed | None] = {AS_SENT: as_sent}
    if peer is not None:
        made["Headroom"] = peer.compress(session.messages, **_PEER_OPTIONS)
    ours = made[GOVERNOR] = once(session.messages, int(tokens * _TARGET), policy=_POLICY)
    if ours is not None:
        made[RECALLED] = msgspec.structs.replace(ours, messages=_recalled(session, ours))
    (needle,) = session.needles
    return [
        Prompt(
            method=method,
            kind=needle.kind,
            value=needle.value,
            messages=each.messages,
            place=places(session, each)[needle.value],
        )
        for method, each in made.items()
        if each is not None
    ]


def _recalled(session: Session, made: Compressed) -> Sequence[bytes]:
    """The prompt with what the needle's handle leads to, as the result of a call for it, before the question."""
    value = session.needles[0].value.encode()
    for handle, kept in made.archive.items():
        if value in kept and value not in b"".join(made.messages):
            asked = asks(call("recall", "governor_recall", handle=handle))
            return [*made.messages[:-1], asked, result("recall", _as_text(kept)), made.messages[-1]]
    return made.messages


def _as_text(kept: bytes) -> str:
    """A content, or whole messages, one a line."""
    values = map(msgspec.Raw, kept.split(b"\n"))
    return "\n".join(text_of(value) or text_of(read_message(value).content) for value in values)


def answers(asked: Sequence[Prompt], weights: Path) -> list[Answered]:
    """Ask the embedded engine, one after the other, at temperature 0; the same prompt only once. Raises
    :class:`BenchFailed` when it refuses."""
    return asyncio.run(_answers(asked, weights))


async def _answers(asked: Sequence[Prompt], weights: Path) -> list[Answered]:
    with tempfile.TemporaryDirectory() as folder:
        options = EmbeddedOptions(model=str(weights), context_tokens=SMOLLM2.context_tokens, slots=1)
        engine = await launch_embedded(options, Home(Path(folder)), on_change=lambda _state, _detail: None)
        try:
            await asyncio.wait_for(engine.supervisor.ensure_ready(), _READY_S)
            async with httpx.AsyncClient(base_url=engine.base_url, timeout=_ANSWER_S) as client:
                said: dict[tuple[bytes, ...], _Said] = {}
                for each in asked:
                    messages = tuple(each.messages)
                    if messages not in said:
                        said[messages] = await _ask(client, messages)
        finally:
            await engine.supervisor.stop()
    return [_answered(each, said[tuple(each.messages)]) for each in asked]


def _answered(asked: Prompt, said: _Said) -> Answered:
    is_hit = asked.value in (said.choices[0].message.content or "")
    return Answered(prompt=asked, prompt_tokens=said.usage.prompt_tokens, is_hit=is_hit)


async def _ask(client: httpx.AsyncClient, messages: Sequence[bytes]) -> _Said:
    body = {
        "messages": [msgspec.json.decode(raw) for raw in messages],
        "max_tokens": _ANSWER_TOKENS,
        "temperature": 0,
    }
    answer = await client.post("/v1/chat/completions", json=body)
    if answer.is_error:
        raise BenchFailed(f"the engine answered {answer.status_code}: {answer.text[:300]}")
    return msgspec.json.decode(answer.content, type=_Said)


def hits(answered: Sequence[Answered]) -> Mapping[str, Sequence[Answered]]:
    """By method."""
    methods = dict.fromkeys(each.prompt.method for each in answered)
    return {method: [each for each in answered if each.prompt.method == method] for method in methods}
