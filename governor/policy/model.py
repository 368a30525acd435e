"""The typed model of a policy file. One TOML file an agent; what it leaves out comes from the files under it.

Resolution, nearest first: the agent's own file, the shipped policy it names in ``base``, ``default.toml``.
Each field is explained directly beneath it; ``policies/policy.schema.json`` is generated from here. Types bound each
value by itself; what values must hold between them is in ``governor.policy.checks``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from governor.types import AgentClass, TurnKind

PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
ShareOrTokens = Annotated[float, msgspec.Meta(gt=0, le=1_000_000_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
ModelName = Annotated[str, msgspec.Meta(min_length=1)]


class KeepAlive(StrEnum):
    """What a held stream is fed while its turn waits or prefills."""

    COMMENT = "comment"
    """An SSE comment line. Invisible to every client library."""
    CHUNK = "chunk"
    """A chunk with ``choices: []``. Also resets idle timers that sit above the client library."""


class DeveloperRole(StrEnum):
    """What becomes of ``developer`` messages."""

    PASS = "pass"  # noqa: S105
    """Forwarded as they are."""
    SYSTEM = "system"
    """Sent as ``system``, merged into one leading message, order kept."""


class HistoryMode(StrEnum):
    """What a client's own last answer becomes in its next prompt."""

    AS_SENT = "as_sent"
    """What the client made of it: without its thinking, in other spaces, and so computed once more."""
    EXACT = "exact"
    """The tokens that the engine wrote, where the client means the same; else what the client sent."""


class CompressionMode(StrEnum):
    """What becomes of a prompt that has grown over its trigger."""

    OFF = "off"
    """Nothing is looked at."""
    OBSERVE = "observe"
    """The prompt is sent as it is; what would have been done and saved is recorded."""
    ENFORCE = "enforce"
    """The prompt is made shorter."""


class Exhausted(StrEnum):
    """What becomes of a prompt over its trigger when ``attempts`` in a row could not make it shorter."""

    OVERFLOW = "overflow"
    """Once, the client gets the overflow error that it knows, with numbers, so that it helps itself; then the prompt is
    sent as it is while it fits."""
    PASS = "pass"  # noqa: S105
    """It is sent as it is while it fits."""


class ClientLoops(StrEnum):
    """What is done about a client whose own compactions do not make its prompts shorter."""

    TELL = "tell"
    """It is shown."""
    STOP = "stop"
    """Its prompts are made shorter here where ``mode`` allows it; where that does not help, ``usage`` tells it a number
    under the one that it compacts at, with the true one beside it."""


class SystemBytes(StrEnum):
    """What becomes of a system prompt that differs from the session's first only in clocks, counters and ids."""

    AS_SENT = "as_sent"
    """Forwarded; the break is reported."""
    PIN = "pin"
    """The session's first one is sent in its place, while nothing else in it changes."""


class Attribution(StrEnum):
    """What becomes of a system block that does nothing but name the client's build, with a nonce for each request."""

    DROP = "drop"
    KEEP = "keep"


class ToolOrder(StrEnum):
    """In which order tools are sent."""

    AS_SENT = "as_sent"
    BY_NAME = "by_name"
    """By name, and the keys within each schema by name, so that a reconnect does not lose the cache."""


class Interleaved(StrEnum):
    """What becomes of a user message between a tool call and its result, which strict engines refuse."""

    AS_SENT = "as_sent"
    REPAIR = "repair"
    """It is moved behind the last result of that call's message."""


class CompressionStage(StrEnum):
    """One way to make a prompt shorter."""

    REASONING = "reasoning"
    """Old reasoning is left out."""
    REPEATED = "repeated"
    """A text that stands in a later message again is left out."""
    SUPERSEDED = "superseded"
    """The result of a tool call that was made again later is left out."""
    IMAGES = "images"
    """Old images and base64 are replaced by a line that names them."""
    OVERSIZED = "oversized"
    """A result larger than the room for one, even a fresh one, is cut down to what it can have."""
    TRIM = "trim"
    """Old results are cut down by what they are: JSON, a log, a diff, a table, code."""
    STUB = "stub"
    """Old results are replaced by a line that names them."""
    SUMMARY = "summary"
    """All old rounds are replaced by a summary that the engine itself has written."""
    DROP = "drop"
    """The oldest rounds are left out; one message says so."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class OutputPolicy(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Output caps in tokens, by turn kind. A client that asks for less gets less; never more."""

    tool_step: PositiveInt = 8192
    """Cap while tools can be called."""
    final: PositiveInt = 16384
    """Cap of a plain answer."""
    compaction: PositiveInt = 12000
    """Cap of the client's own summary of its history."""
    title: PositiveInt = 512
    """Cap of a conversation title."""
    background: PositiveInt = 8192
    """Cap of reviews that no person waits for."""
    default: PositiveInt | None = None
    """Used when the client names no cap; unset means the cap of the turn's kind."""
    floor: PositiveInt = 16
    """Smallest answer worth starting. With less room than this the client is told that its context is full."""
    thinking: Count | None = None
    """Thinking budget in tokens. Engines that take one are told; where an answer can be continued exactly, the thinking
    phase is closed when it is used up, and the answer follows. Unset leaves the client's value alone."""
    loop_chars: Count = 4000
    """An answer whose last so many characters are one short piece again and again is ended, as one that has reached its
    cap. 0: never."""

    def cap_for(self, kind: TurnKind) -> int:
        """Of a client's turn. The governor's own, a summary, is bounded by ``compression``."""
        return int(getattr(self, kind.value))


class ContextPolicy(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the window this agent may use."""

    ceiling_tokens: PositiveInt | None = None
    """Prompt + output of one turn, in tokens; unset means the engine's whole window. Enforced, never advertised below
    64,000, since Hermes refuses to start under that."""


class CompressionPolicy(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When and how a long prompt is made shorter. The system prompt, the tools, the first and the last user message and
    the tool calls that wait for an answer stay as they are. Shares are of the agent's window."""

    mode: CompressionMode = CompressionMode.OFF
    """Whether prompts are made shorter."""
    trigger: ShareOrTokens = 0.8
    """A prompt from here on is made shorter. Up to 1 a share of the window, above 1 tokens."""
    target: ShareOrTokens = 0.5
    """What it is brought down to, or left alone. Up to 1 a share of the window, above 1 tokens."""
    gain: ShareOrTokens = 0.1
    """Least that must be freed for it to be worth the lost cache. Up to 1 a share of the window, above 1 tokens."""
    stages: tuple[CompressionStage, ...] = tuple(CompressionStage)
    """What may be done, in this order, until the target is met."""
    attempts: PositiveInt = 2
    """Failures in a row after which it is not tried again until the prompt was below its trigger."""
    cooldown_tokens: Count = 4096
    """How much a prompt must have grown since the last attempt before the next."""
    recent: ShareOrTokens = 0.15
    """The newest messages, up to so much, are touched only when nothing else is left. Up to 1 a share of the window,
    above 1 tokens."""
    protected_tools: tuple[str, ...] = ()
    """Tools whose results are never changed; they only leave with their round."""
    stub_over_tokens: PositiveInt = 300
    """Texts up to this are not worth a line in their place, by any stage."""
    trim_over_tokens: PositiveInt = 2000
    """Old results above this are trimmed."""
    trim_target_tokens: PositiveInt = 800
    """What a trimmed result may have."""
    oversized: ShareOrTokens = 0.25
    """The room for one result, however fresh. Up to 1 a share of the window, above 1 tokens."""
    summary_tokens: PositiveInt = 2048
    """Most that the engine may write for a summary."""
    exhausted: Exhausted = Exhausted.OVERFLOW
    """What becomes of a prompt that could not be made shorter."""
    client_loops: ClientLoops = ClientLoops.TELL
    """What is done about a client whose own compactions do not help. Works with every ``mode``."""
    client_window: PositiveInt | None = None
    """Window that ``/v1/models`` tells this agent's client while ``mode`` is ``enforce``, so that the client does not
    compact before the governor does; by default the true one."""
    recall_tool: bool = False
    """Offer the model a tool, ``governor_recall``, that brings back what left the prompt. Needs ``enforce``; a session
    keeps what it began with."""
    archive_days: PositiveInt = 30
    """How long what left the prompt is kept."""


class LimitPolicy(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much this agent may do at once and over time. Over the limit a turn waits; it is refused only after
    ``hold_s``."""

    concurrency: PositiveInt = 4
    """Turns running at once. Compactions pass regardless."""
    turns_per_minute: PositiveInt | None = None
    """Turns admitted in any minute; unset means no limit."""
    queue: Count = 64
    """Turns that may wait. One more is answered 429 with Retry-After."""
    hold_s: Seconds = 600.0
    """Longest wait for admission before a 429 with Retry-After."""


class SharePolicy(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This agent's part of the engine's KV memory (L1), in tokens."""

    weight: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    """Service over weight is made equal between agents of one class: 2 gets twice as much as 1."""
    floor_tokens: Count = 0
    """KV tokens that others leave free for this agent at any time. The sum of all floors must fit the engine."""
    ceiling_tokens: PositiveInt | None = None
    """KV tokens that its running turns may hold together; unset means no limit. One turn alone always may run."""
    waiting_s: Seconds | None = None
    """Longest wait before this agent's turn beats everything else; unset means 15 s for interactive, 40 s for normal
    and 300 s for background agents."""
    prewarm: bool = False
    """Bring a conversation back into L1 before its next turn is expected, when nobody else wants the engine: a request
    for one token. Only on engines that tell how much they hold and keep what an aborted request has computed."""
    retained_tokens: Count | None = None
    """KV tokens of this agent's conversations at rest that are cared for, the latest first: their turns go earlier
    while they are still in L1, and they are prewarmed. Unset means all."""


class SlicePolicy(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a running answer makes room for others. It is paused and later continued exactly where it was."""

    enabled: bool = True
    """Off: an answer that runs is never paused for others."""
    quantum_s: Seconds = 15.0
    """An answer runs at least so long before it can be paused."""
    yield_after_s: Seconds = 4.0
    """Others wait at least so long before an answer is paused for them."""
    lookahead: PositiveInt = 4096
    """Output tokens reserved at a time while an answer is written; SGLang itself looks 4,096 ahead."""


class StreamPolicy(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a stream is kept alive while nothing can be sent yet."""

    keepalive: KeepAlive = KeepAlive.COMMENT
    """What to send."""
    keepalive_after_s: Seconds = 10.0
    """Quiet time before the headers and the first keep-alive are sent. Until then a failure is still an HTTP error."""
    keepalive_every_s: Seconds = 10.0
    """Time between keep-alives."""


class RequestPolicy(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Edits of the request. Everything not named here passes through byte for byte."""

    developer_role: DeveloperRole = DeveloperRole.PASS
    """What becomes of ``developer`` messages."""
    strip_reasoning: bool = False
    """Remove ``reasoning_content`` and ``reasoning`` from assistant messages, for engines that refuse them."""
    history: HistoryMode = HistoryMode.AS_SENT
    """What the client's last answer becomes in the next prompt. Chats on engines that take and give token ids."""
    history_thinking_tokens: Count = 16384
    """Tokens of thinking that ``exact`` may gather, superseded notes included. Beyond it one prompt is sent as the
    client has it, which drops them, and gathering begins anew."""
    system_bytes: SystemBytes = SystemBytes.AS_SENT
    """What becomes of clocks and counters in the system prompt."""
    attribution: Attribution = Attribution.DROP
    """What becomes of a client's billing line at the head of the system prompt. User text that quotes one stays."""
    tool_order: ToolOrder = ToolOrder.AS_SENT
    """In which order tools are sent."""
    interleaved: Interleaved = Interleaved.AS_SENT
    """What becomes of a user message between a call and its result."""
    sampling: dict[str, float | int | bool | str] = {}
    """Sampling fields set on every turn, whatever the client sends: ``temperature = 0.2``."""


class Policy(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one agent may do."""

    base: str | None = None
    """Shipped policy under this file, by name: ``hermes``, ``openclaw``, ``interactive``, ``background``."""
    models: tuple[ModelName, ...] = ()
    """Models this agent may use; empty means all that the engine serves."""
    agent_class: AgentClass = msgspec.field(name="class", default=AgentClass.NORMAL)
    """``interactive``, ``normal`` or ``background``: who goes first when turns wait."""
    output: OutputPolicy = OutputPolicy()
    context: ContextPolicy = ContextPolicy()
    compression: CompressionPolicy = CompressionPolicy()
    limits: LimitPolicy = LimitPolicy()
    share: SharePolicy = SharePolicy()
    slices: SlicePolicy = SlicePolicy()
    stream: StreamPolicy = StreamPolicy()
    request: RequestPolicy = RequestPolicy()


def as_tree(policy: Policy) -> dict[str, Any]:
    """The policy as nested plain values, with the names used in files."""
    tree: dict[str, Any] = msgspec.to_builtins(policy)
    return tree
