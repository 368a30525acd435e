"""What is said about a client's own compactions: its prompts and their ends, a pass and what it came to, and what is to
be done about one that loops."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from governor.compress.limits import Limits
from governor.policy.model import ClientLoops, CompressionMode, CompressionPolicy
from governor.tokens.breaks import BreakCause
from governor.types import AgentName, PromptShape, SessionId, TurnId, TurnKind

RELIEF_SHARE = 0.9
"""A loop is over when a client's own prompt has come under this share of what it is safe with, and it was told so. One
that only our compression keeps short would grow back into the same loop."""


class ClientOutcome(StrEnum):
    """What a client's compaction came to. All but the first are in vain."""

    ACCEPTED = "accepted"
    GAIN_TOO_SMALL = "gain_too_small"
    NO_SHRINK = "no_shrink"
    """The client went on with the history that it had, or with one of the same size."""
    GREW = "grew"
    """Its history was replaced, and the next prompt was longer than the last."""


class News(StrEnum):
    """What is seen for the first time."""

    LOOP = "loop"
    """Passes in vain in a row are as many as the policy lets pass."""
    DEAF = "deaf"
    """The client went on compacting whatever usage it was told."""


class ClientPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A turn's prompt as the client sent it."""

    turn_id: TurnId
    agent: AgentName
    session: SessionId
    path: int
    """Of the session: :attr:`governor.tokens.chain.Located.path`."""
    parent: int | None
    """The path that a branch broke off from."""
    kind: TurnKind
    shape: PromptShape
    cause: BreakCause | None
    tokens: int
    """Of the whole prompt, before the governor makes it shorter. The best figure at hand."""


class ClientEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A turn's end."""

    turn_id: TurnId
    ok: bool
    """Its answer ended well."""
    reported_tokens: int | None
    """What the engine reported; ``None`` also where it was sent another prompt than the client's."""
    told_tokens: int | None
    """``usage.prompt_tokens`` as the client was told."""
    lowered: bool = False
    """And that was not the truth."""


class ClientPass(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction by a client, measured."""

    turn_id: TurnId
    """The turn whose prompt shows it."""
    agent: AgentName
    session: SessionId
    outcome: ClientOutcome
    before_tokens: int
    """Of the conversation's last prompt."""
    after_tokens: int
    """Of this one: what the client has added since is in it."""
    in_vain: int
    """Passes in a row without gain, this one counted."""
    calls: tuple[TurnId, ...] = ()
    """The client's calls for it; none where it made its history shorter by itself."""
    failed: bool = False
    """One of the calls did not end well."""
    repeated: bool = False
    """One of the calls was the very one that it had made before."""
    news: News | None = None

    @property
    def detail(self) -> str:
        """One line for a person."""
        words = [f"{self.before_tokens} -> {self.after_tokens} tokens"]
        if not self.calls:
            words.append("without a call for a summary")
        if self.failed:
            words.append("a call for a summary failed")
        if self.repeated:
            words.append("the same call as before")
        if self.in_vain > 1:
            words.append(f"{self.in_vain} in a row without gain")
        return ", ".join(words)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How the client stands with a turn that has not ended."""

    in_vain: int = 0
    """Its compactions in a row without gain."""
    loops: bool = False
    """They are as many as the policy lets pass."""
    is_deaf: bool = False
    """It went on compacting whatever it was told."""
    safe_tokens: int | None = None
    """What it can be told without compacting again; ``None``: not known."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about it."""

    compress_below: int | None = None
    """Make this prompt shorter than so many tokens, though it may be under its trigger."""
    tell_at_most: int | None = None
    """Tell the client no more than this as ``usage.prompt_tokens``."""


def advise(standing: Standing, policy: CompressionPolicy) -> Advice:
    """By ``client_loops`` and ``mode``. Both may be advised at once: where the engine's prompt came out short enough,
    what it reports is under the second figure and is told as it is."""
    stops = policy.client_loops is ClientLoops.STOP
    if not standing.loops or standing.is_deaf or standing.safe_tokens is None or not stops:
        return Advice()
    return Advice(
        compress_below=standing.safe_tokens if policy.mode is CompressionMode.ENFORCE else None,
        tell_at_most=standing.safe_tokens,
    )


def limits_for(advice: Advice, limits: Limits) -> Limits:
    """The limits under which a prompt is made shorter: with a loop to be ended, all are lowered in proportion, so that
    the prompt has as far to grow again as the policy wants it to."""
    below = advice.compress_below
    if below is None or below >= limits.trigger_tokens:
        return limits
    share = below / limits.trigger_tokens
    return msgspec.structs.replace(
        limits,
        trigger_tokens=below,
        target_tokens=max(1, int(limits.target_tokens * share)),
        gain_tokens=max(1, int(limits.gain_tokens * share)),
    )
