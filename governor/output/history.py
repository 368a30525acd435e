"""What the engine wrote last in each conversation, token by token, to go on from. Pure; kept in memory, and bounded.

An answer is found again by all that was sent before it: the messages, byte for byte, and every field that decides over
how they are rendered. So a review that branches off, a retry and a second client find what is theirs, and nothing else.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from governor.tokens.breaks import CARRIER_MARK
from governor.types import AgentName
from governor.wire.messages import decode
from governor.wire.request import GenerationRequest
from governor.wire.same import difference
from serve.engine import TokenIds

_UNRENDERED = frozenset(
    {
        "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos",
        "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "logit_bias", "n", "user", "metadata", "store", "service_tier", "safety_identifier",
        "prompt_cache_key", "parallel_tool_calls", "custom_params", "return_cached_tokens_details",
    }
)  # fmt: skip
"""Fields that change nothing about the prompt. Any other one that changes ends the continuation."""
_NOT_TEXT = (b'"image_url"', b'"input_audio"', b'"audio_url"', b'"video_url"')
"""What a prompt of tokens has no place for. In the text of a message these quotes are escaped."""
_NEW_ROLES = frozenset({"user", "tool"})
_CARRIER_BYTES_PER_TOKEN = 3
_ENTRY_BYTES = 400


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that can be gone on from."""

    ids: array[int]
    """Its prompt and all that was written."""
    output_tokens: int
    ended: bool
    """The last of ``ids`` has ended the answer; one that has reached its cap has no such token."""
    shown: bytes
    """The assistant's message, as a client that puts the answer together has it."""
    beyond_tokens: int
    """Of ``ids``, those of thinking and of superseded notes, which clients do not send again."""

    @property
    def size(self) -> int:
        """Bytes held."""
        return self.ids.itemsize * len(self.ids) + len(self.shown) + _ENTRY_BYTES


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A chat request, as far as answers are found by it."""

    rendering: bytes
    """Digest of what decides over how messages are rendered."""
    key: bytes
    """Of the answer that it will have."""
    carrier_tokens: int = 0
    """Of a trailing note that the next request has at its own end; a guess."""
    answered: bytes | None = None
    """Key of the answer before; ``None``: there is none, or something else follows it than results and questions."""
    answer_at: int = 0
    """Index of that answer's message."""


class TextAlone:
    """Remembers which messages are nothing but text, so that a conversation is not searched again at each turn."""

    def __init__(self, most: int = 65_536) -> None:
        self._found: set[bytes] = set()
        self._most = most

    def are(self, messages: Sequence[bytes], digests: Sequence[bytes]) -> bool:
        """``digests``: of each message. Changes state."""
        found = self._found
        for raw, digest in zip(messages, digests, strict=True):
            if digest in found:
                continue
            if any(mark in raw for mark in _NOT_TEXT):
                return False
            if len(found) >= self._most:
                found.clear()
            found.add(digest)
        return True


def asked(
    agent: AgentName, request: GenerationRequest, digests: Sequence[bytes], text_alone: TextAlone | None = None
) -> Asked | None:
    """``digests``: of each message; ``text_alone``: what is known of them. ``None``: the prompt is not text alone."""
    messages, roles = request.messages, request.roles
    if not (text_alone or TextAlone()).are(messages, digests):
        return None
    head = _head(agent, request)
    carries = roles[-1] == "user" and CARRIER_MARK in messages[-1]
    at = max((index for index, role in enumerate(roles) if role == "assistant"), default=0)
    follows = set(roles[at + 1 :])
    return Asked(
        rendering=head,
        key=_key(head, digests[: len(digests) - carries]),
        carrier_tokens=len(messages[-1]) // _CARRIER_BYTES_PER_TOKEN if carries else 0,
        answered=_key(head, digests[:at]) if at and follows and follows <= _NEW_ROLES else None,
        answer_at=at,
    )


def kept_of(ids: TokenIds, finish_reason: object, message: Mapping[str, Any], beyond_tokens: int) -> Kept | None:
    """``beyond_tokens``: see :class:`Kept`. ``None`` for an answer that cannot be gone on from: one that was cut off
    within its reasoning or a call, or ended in another way than by itself or at its cap."""
    ended = finish_reason in ("stop", "tool_calls")
    cut = finish_reason == "length" and bool(message.get("content")) and not message.get("tool_calls")
    if not ids.output or not (ended or cut):
        return None
    try:
        tokens = array("I", (*ids.prompt, *ids.output))
    except (OverflowError, TypeError):
        return None
    shown = msgspec.json.encode(message)
    return Kept(ids=tokens, output_tokens=len(ids.output), ended=ended, shown=shown, beyond_tokens=beyond_tokens)


def why_not(kept: Kept, sent: msgspec.Raw | bytes, most_beyond_tokens: int) -> str | None:
    """Why a conversation does not go on from what was kept of it; ``None``: it does. ``sent``: the answer's message as
    the client has it."""
    message: Any = decode(sent)
    changed = difference(msgspec.json.decode(kept.shown), message) if isinstance(message, dict) else "role"
    if changed is not None:
        return f"the client changed {changed}"
    if kept.beyond_tokens > most_beyond_tokens:
        return f"{kept.beyond_tokens} tokens of thinking, more than {most_beyond_tokens}"
    return None


class HistoryBook:
    """Answers by what was sent before them. The least recently used go first. To be used from one thread."""

    def __init__(self, most_bytes: int = 128 * 1024 * 1024) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def answers(self) -> list[Kept]:
        """The one that was used last comes last."""
        return list(self._kept.values())

    def keep(self, key: bytes, kept: Kept) -> None:
        """Changes state. One that is larger than all of the book is not kept."""
        self.forget(key)
        self._kept[key] = kept
        self._bytes += kept.size
        while self._bytes > self._most_bytes:
            self.forget(next(iter(self._kept)))

    def find(self, key: bytes) -> Kept | None:
        """It counts as used."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def forget(self, key: bytes) -> None:
        """May be repeated."""
        kept = self._kept.pop(key, None)
        self._bytes -= kept.size if kept is not None else 0

    def clear(self) -> None:
        """Another engine may have other tokens."""
        self._kept.clear()
        self._bytes = 0

    def check_integrity(self) -> None:
        """Raises :class:`AssertionError`. Changes nothing."""
        held = sum(kept.size for kept in self._kept.values())
        if held != self._bytes or held > self._most_bytes:
            raise AssertionError(f"history book: {held} bytes held, {self._bytes} counted, {self._most_bytes} allowed")


def _head(agent: AgentName, request: GenerationRequest) -> bytes:
    hasher = blake2b(agent.encode(), digest_size=16)
    for name in sorted(set(request.json.names()) - _UNRENDERED):
        value = bytes(request.json.raw(name) or b"")
        hasher.update(f"\x00{name}\x00{len(value)}\x00".encode() + value)
    return hasher.digest()


def _key(head: bytes, digests: Sequence[bytes]) -> bytes:
    return blake2b(head + b"".join(digests), digest_size=16).digest()
