"""Named ways to answer: small engines that check a request and answer ``ok``, or refuse it.

A mode looks at one request and returns the behaviour that answers it, so it works on every API and for streams too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from serve.scripted.ask import Ask, Message
from serve.scripted.behaviour import Behaviour

_OK = Behaviour(say="ok")
_SUMMARY = (
    "The user shows charts and wants them summarised. Each was looked at and described; none of the descriptions was "
    "disputed. Open: the summary of all charts."
)


class ModeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a mode can be told."""

    tokens: tuple[int, int] | None = None
    """Prompt and completion tokens that ``honour_include_usage`` reports."""
    window_tokens: int | None = None
    """Window of the ``window_check`` modes; ``None``: the engine's."""
    summary_window_tokens: int | None = None
    """Window of ``window_check_no_data_urls``; ``None``: the other one."""
    mix: tuple[str, ...] = ()
    """The ways of ``by_mix``, in turn."""
    hang_s: float = 30.0
    """How long ``by_mix`` keeps silent for ``timeout``."""


Mode: TypeAlias = Callable[[Ask, int, ModeOptions], Behaviour]
"""Of a request, its number among the calls of the mode (from 0) and the options."""


def record(ask: Ask, number: int, options: ModeOptions) -> Behaviour:
    """Note the body and answer."""
    return _OK


def echo_input(ask: Ask, number: int, options: ModeOptions) -> Behaviour:
    """Answer with everything that was sent: a summary that does not summarise."""
    return Behaviour(say="\n".join(message.text for message in ask.messages))


def honour_include_usage(ask: Ask, number: int, options: ModeOptions) -> Behaviour:
    """Report usage in a stream only when it was asked for."""
    return Behaviour(say="ok", usage=options.tokens)


def strict_pairs(ask: Ask, number: int, options: ModeOptions) -> Behaviour:
    """400 unless each message with tool calls is directly followed by exactly its results."""
    violation = pair_violation(ask.messages)
    return _OK if violation is None else _rejected(violation)


def require_reasoning_content(ask: Ask, number: int, options: ModeOptions) -> Behaviour:
    """400 when an assistant message with tool calls came without its reasoning."""
    for index, message in enumerate(ask.messages):
        if message.calls and not message.reasoning:
            return _rejected(f"messages[{index}]: reasoning_content is missing beside tool_calls")
    return _OK


def forbid_reasoning_content(ask: Ask, number: int, options: ModeOptions) -> Behaviour:
    """400 when any message carries reasoning."""
    for index, message in enumerate(ask.messages):
        if message.reasoning is not None:
            return _rejected(f"messages[{index}]: reasoning_content is not permitted")
    return _OK


def window_check(ask: Ask, number: int, options: ModeOptions) -> Behaviour:
    """400 when the prompt and the output cap exceed the window together."""
    return Behaviour(say="ok", window_tokens=options.window_tokens)


def window_check_no_data_urls(ask: Ask, number: int, options: ModeOptions) -> Behaviour:
    """``window_check`` for requests for a summary, which refuses images sent as data URLs too."""
    for index, message in enumerate(ask.messages):
        if message.has_data_url:
            return _rejected(f"messages[{index}]: data URLs are not accepted")
    return Behaviour(say=_SUMMARY, window_tokens=options.summary_window_tokens or options.window_tokens)


def pool_model(ask: Ask, number: int, options: ModeOptions) -> Behaviour:
    """Answer while the engine books prompt and cap in its KV pool (``ScriptedEngine.pool``)."""
    return _OK


_WAYS = {
    "ok": _OK,
    "stub_400": Behaviour(status=400),
    "stub_500": Behaviour(status=500),
    "rst": Behaviour(ends_before_head=True),
    "error_frame": Behaviour(break_after=2, error_frame=True),
    "client_cancel": Behaviour(say=2000),
}


def by_mix(ask: Ask, number: int, options: ModeOptions) -> Behaviour:
    """Fail in the way the request's ``user`` field names, else in the ways of ``mix`` in turn.

    Naming the way in the request keeps a test in step with the engine when the gateway answers some requests itself.
    Ways that concern the client or the gateway alone are answered ``ok``.
    """
    way = ask.user if ask.user in options.mix else options.mix[number % len(options.mix)] if options.mix else "ok"
    if way == "timeout":
        return Behaviour(hang_s=options.hang_s)
    return _WAYS.get(way, _OK)


MODES: dict[str, Mode] = {
    mode.__name__: mode
    for mode in (
        by_mix,
        echo_input,
        forbid_reasoning_content,
        honour_include_usage,
        pool_model,
        record,
        require_reasoning_content,
        strict_pairs,
        window_check,
        window_check_no_data_urls,
    )
}


def pair_violation(messages: Sequence[Message]) -> str | None:
    """The first place where tool calls and results do not pair, in words; ``None`` when all do."""
    index = 0
    while index < len(messages):
        message = messages[index]
        if message.answers_call is not None:
            return f"messages[{index}]: result {message.answers_call!r} follows no call of it"
        expected = [call.id for call in message.calls]
        results = [later.answers_call for later in messages[index + 1 : index + 1 + len(expected)]]
        if expected and sorted(expected) != sorted(result or "" for result in results):
            return f"messages[{index}]: calls {expected} are followed by results {results}"
        index += 1 + len(expected)
    return None


def _rejected(message: str) -> Behaviour:
    return Behaviour(status=400, message=message)
