"""The summary of a history, written by the engine itself: what it is asked, and whether its answer is one.

The request is the history as the engine has it in its cache, and one more message. So whatever stands before that
message stays as it was: messages, tools, and all that a template may show.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from governor.compress.draft import Left, Raw, SizeOf
from governor.compress.limits import Limits
from governor.compress.messages import read_message, text_of
from governor.compress.plan import NoPlan, plan
from governor.compress.stages.images import without_media
from governor.policy.model import CompressionPolicy, CompressionStage
from governor.wire.jsonobject import JsonObject
from governor.wire.messages import decode, joined
from serve.engine import Capabilities

THINKING_TOKENS = 2048
"""Room to think beside the summary; where the engine takes a budget, it is told this one."""
_WORDS_PER_TOKEN = 0.5
"""English has more; other languages, paths and ids have fewer."""
_LEAST_BYTES = 120
"""A line and a half."""
_ECHO_CHARS = 60
"""Of one line, more than two texts have in common by chance."""
_CAP_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_LEFT_OUT = (
    "n", "best_of", "stop", "stop_token_ids", "stop_regex", "seed", "logprobs", "top_logprobs", "logit_bias",
    "min_tokens", "ignore_eos", "response_format", "regex", "ebnf", "json_schema", "structural_tag", "grammar",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "stream_options", "continue_final_message",
    "input_ids", "prediction", "modalities", "audio", "return_hidden_states", "return_token_ids",
    "return_prompt_token_ids", "return_meta_info", "echo",
)  # fmt: skip
"""Fields that bind or shape an answer, and are none of the prompt. ``input_ids`` would stand in the prompt's place."""
_MADE_TO_FIT = (CompressionStage.OVERSIZED, CompressionStage.TRIM, CompressionStage.STUB, CompressionStage.DROP)
_CALL_OPENINGS = ("<tool_call>", "<function=", "<|tool_call", "[TOOL_CALLS]")


class SummaryInput(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is given to summarise."""

    messages: tuple[Raw, ...]
    """The instruction is the last."""
    tokens: int
    """Of the whole prompt, by the sizes given."""
    is_warm: bool
    """All but the instruction is what was given, and so is in the engine's cache if that was."""
    left: tuple[Left, ...] = ()
    """Where it had to be cut to fit: what left it, for the archive, since the summary may name its handles."""


class Rejection(StrEnum):
    """Why an answer is no summary."""

    ERROR = "error"
    """The engine refused, failed, gave up, or did not answer in time."""
    UNREADABLE = "unreadable"
    """Not an answer in the form of a chat completion."""
    EMPTY = "empty"
    THINKING_ONLY = "thinking_only"
    """It came to no text after its reasoning."""
    CUT = "cut"
    """It ended at its cap, so that its end is missing."""
    TOOL_CALL = "tool_call"
    """It called a tool."""
    TOO_SHORT = "too_short"
    """It says next to nothing."""
    TOO_LONG = "too_long"
    """It is longer than its room."""
    ECHO = "echo"
    """It repeats what it was told to do."""
    NOTHING = "nothing"
    """Never asked: there is no answer yet that it could be about."""
    TOO_LARGE = "too_large"
    """Never asked: the history does not fit the window, however it is cut."""
    BROKEN_OFF = "broken_off"
    """Somebody else's turn came."""


class Rejected(msgspec.Struct, frozen=True):
    reason: Rejection
    detail: str = ""
    """For people."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason.value


def instruction(summary_tokens: int) -> str:
    """What the engine is asked, for a summary of at most so many tokens."""
    words = max(50, round(summary_tokens * _WORDS_PER_TOKEN, -1))
    return f"""\
[Not part of the task.] The beginning of this conversation is about to be taken out of it to make room, and a summary \
will stand in its place. Write that summary now, for yourself: you go on from it without having read the rest.

Keep:
- what the user asked for, and every constraint, preference and correction, in the user's words where they matter;
- facts found out and the state of things now, with file paths, commands, names, numbers, URLs and ids verbatim;
- decisions and their reasons, and what was tried and given up;
- errors, with their exact lines, and what solved them;
- handles like gov-0123456789abcdef, where what is behind them may be needed again;
- what is still open, and the next step.
Carry over from earlier records in this conversation all that still holds.

Do not call tools, do not go on with the task, do not address anybody. Answer only with the summary, in the language \
of the conversation, in {words:.0f} words at most."""


def asked_about(messages: Sequence[Raw]) -> int:
    """How many messages, from the first, a summary is written about: all but what follows the last answer or result,
    which stays in the prompt verbatim and may be new to the engine."""
    end = len(messages)
    while end:
        message = read_message(messages[end - 1])
        if message.role == "assistant" or message.is_result:
            return end
        end -= 1
    return 0


def cap_tokens(policy: CompressionPolicy) -> int:
    """Most that the engine may write, its thinking included."""
    return policy.summary_tokens + THINKING_TOKENS


def summary_input(
    messages: Sequence[Raw],
    sizes: Sequence[int],
    *,
    size_of: SizeOf,
    fixed_tokens: int,
    policy: CompressionPolicy,
    window_tokens: int | None,
) -> SummaryInput | None:
    """The messages of :func:`asked_about` with the instruction behind them. Pure.

    Media and base64 are left out, and what does not fit ``window_tokens`` beside the answer is made to fit by the
    deterministic stages, whatever the policy allows for the prompt itself; both cost the cache. ``None`` where even
    that does not help. ``sizes``, ``size_of`` and ``fixed_tokens`` are those of :func:`~governor.compress.plan.plan`.
    """
    told = msgspec.json.encode({"role": "user", "content": instruction(policy.summary_tokens)})
    bare = [without_media(raw) for raw in messages]
    is_warm = all(new is old for new, old in zip(bare, messages, strict=True))
    given = (*bare, told)
    sized = [
        size if new is old else size_of(bytes(new)) for new, old, size in zip(bare, messages, sizes, strict=True)
    ] + [size_of(told)]
    tokens = fixed_tokens + sum(sized)
    most = tokens if window_tokens is None else window_tokens - cap_tokens(policy)
    if tokens <= most:
        return SummaryInput(messages=given, tokens=tokens, is_warm=is_warm)
    made = plan(
        given,
        sized,
        size_of=size_of,
        fixed_tokens=fixed_tokens,
        policy=msgspec.structs.replace(policy, stages=_MADE_TO_FIT, protected_tools=()),
        limits=Limits(
            trigger_tokens=1, target_tokens=max(1, most), gain_tokens=1, recent_tokens=0, oversized_tokens=most // 4
        ),
    )
    if isinstance(made, NoPlan):
        return None
    return SummaryInput(messages=made.messages, tokens=made.after_tokens, is_warm=False, left=made.left)


def summary_body(body: bytes, messages: Sequence[Raw], policy: CompressionPolicy, capabilities: Capabilities) -> bytes:
    """The request for a summary, from one of this conversation; what the governor edits of any request is still to be
    done. Raises :class:`~governor.errors.BadRequest`.

    A tool choice that forces a call becomes ``auto``; ``none`` stays, as SGLang leaves the tools out of the prompt with
    it, and so does ``auto``.
    """
    asked = JsonObject(body)
    cap, *_ = capabilities.output_cap_fields
    changes: dict[str, bytes | None] = dict.fromkeys((*_CAP_FIELDS, *capabilities.shadow_cap_fields, *_LEFT_OUT))
    changes |= {"messages": joined(messages), "stream": b"false", cap: str(cap_tokens(policy)).encode()}
    choice = decode(asked.raw("tool_choice"))
    if choice not in (None, "auto", "none") and not (isinstance(choice, dict) and choice.get("type") == "none"):
        changes["tool_choice"] = b'"auto"'
    if capabilities.thinking_budget_field is not None:
        changes[capabilities.thinking_budget_field] = str(THINKING_TOKENS).encode()
    return asked.edited(changes)


class _Said(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"")
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    message: _Said
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: tuple[_Choice, ...] = ()
    error: Any = None


_COMPLETION = msgspec.json.Decoder(_Completion)


def accept(body: bytes, *, room_tokens: int, size_of: SizeOf, told: str) -> str | Rejected:
    """The summary in a whole chat completion, its reasoning left out; or why there is none. Pure; raises nothing.
    ``told``: the instruction."""
    try:
        answer = _COMPLETION.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Rejected(Rejection.UNREADABLE, str(error))
    if answer.error:
        return Rejected(Rejection.ERROR, str(answer.error))
    if not answer.choices:
        return Rejected(Rejection.UNREADABLE, "no choice")
    said, finish = answer.choices[0].message, answer.choices[0].finish_reason
    if finish not in (None, "stop", "length", "tool_calls", "function_call"):
        return Rejected(Rejection.ERROR, f"finished with {finish}")
    written = text_of(said.content)
    has_thought = bool(said.reasoning_content or said.reasoning)
    text = _without_tags(written if has_thought else _without_thought(written))
    if said.tool_calls or said.function_call or text.startswith(_CALL_OPENINGS):
        return Rejected(Rejection.TOOL_CALL)
    if not text:
        return Rejected(Rejection.THINKING_ONLY if has_thought or written.strip() else Rejection.EMPTY)
    if finish == "length":
        return Rejected(Rejection.CUT)
    return _judged(text, room_tokens, size_of, told)


def _judged(text: str, room_tokens: int, size_of: SizeOf, told: str) -> str | Rejected:
    if len(text.encode("utf-8", "replace")) < _LEAST_BYTES:
        return Rejected(Rejection.TOO_SHORT, f"{len(text)} characters")
    if any(line[:_ECHO_CHARS] in text for line in told.splitlines() if len(line) >= _ECHO_CHARS):
        return Rejected(Rejection.ECHO)
    tokens = size_of(msgspec.json.encode({"role": "assistant", "content": text}))
    if tokens > room_tokens:
        return Rejected(Rejection.TOO_LONG, f"{tokens:,} tokens in a room of {room_tokens:,}")
    return text


def _without_thought(text: str) -> str:
    """What follows the thought, which may have begun in the prompt; nothing where it has no end."""
    before, end, after = text.partition("</think>")
    if end:
        return after
    return "" if before.lstrip().startswith("<think>") else before


def _without_tags(text: str) -> str:
    """Templates take what stands before a ``</think>`` in an old answer for its reasoning, and leave it out."""
    return text.replace("<think>", "< think>").replace("</think>", "< /think>").strip()
