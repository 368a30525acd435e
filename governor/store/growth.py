"""How a session's prompt grew, where its prefix broke, and what that cost, from the rows of the turn log. Pure.

It lives beside the rows that it reads. Only the main line counts: titles, compactions and reviews are prompts of their
own that share a beginning with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from governor.context import (
    COMPRESSED,
    COMPRESSED_EDIT,
    FIRST_PROMPT,
    FRESH,
    NOT_CACHED,
    PLACELESS,
    CauseTotal,
    Growth,
    PrefixBreak,
    TurnGrowth,
)
from governor.events import PrefixLost
from governor.store.model import StoredTurn, TurnClosed
from governor.types import MAIN_KINDS, PromptShape, SessionId
from governor.visible import visible

_LEAST_LOSS_TOKENS = 256
"""Less is what an engine prefills again in any case: it caches whole pages, and leaves the last token out."""
_LONGEST_DETAIL = 120
_BREAK = re.compile(r"(?:tools|message (\d{1,9}))(?:, byte (\d{1,12}))?: (\w+)(?: \((.*)\))?", re.DOTALL)


def growth_of(rows: Iterable[StoredTurn], *, last: int) -> Growth:
    """The growth of one session over its last turns; ``rows`` are the session's, the oldest first.

    A break costs what was prefilled less what was new: tokens of the prompt that were not served from a cache, less
    those by which it is longer than the prompt before. Without a break the same is a loss only where it is more than
    an engine prefills again anyway.
    """
    turns: list[TurnGrowth] = []
    side_turns, window_tokens, before = 0, None, None
    for row in rows:
        closed = row.closed
        if closed is None or closed.kind is None:
            continue
        if closed.kind not in MAIN_KINDS:
            side_turns += 1
            continue
        turn = _turn(row, closed, before)
        turns.append(turn)
        before = turn.prompt_tokens if turn.prompt_tokens is not None else before
        window_tokens = closed.window_tokens if closed.window_tokens is not None else window_tokens
    shown = turns[-last:]
    return Growth(turns=tuple(shown), causes=_causes(shown), side_turns=side_turns, window_tokens=window_tokens)


def newest_session(rows: Iterable[StoredTurn]) -> SessionId | None:
    """The session of the newest turn of a main line; of the newest turn at all where there is none. ``rows`` are the
    newest first."""
    newest = None
    for row in rows:
        closed = row.closed
        if closed is None or closed.session is None:
            continue
        if closed.kind in MAIN_KINDS:
            return closed.session
        newest = newest or closed.session
    return newest


def read_break(text: str) -> PrefixBreak:
    """A break as :class:`governor.tokens.breaks.Break` writes it; anything else is a cause without a place."""
    found = _BREAK.fullmatch(text)
    if found is None:
        return PrefixBreak(cause="unknown", detail=visible(text, _LONGEST_DETAIL))
    message, byte, cause, detail = found.groups()
    return PrefixBreak(
        cause=cause,
        message=None if message is None else int(message),
        byte=None if byte is None else int(byte),
        detail=visible(detail or "", _LONGEST_DETAIL),
    )


def _turn(row: StoredTurn, closed: TurnClosed, before: int | None) -> TurnGrowth:
    reported = closed.usage.prompt_tokens
    prompt = reported if reported is not None else closed.prompt_tokens_counted
    growth = None if prompt is None or before is None else prompt - before
    prefilled = closed.usage.new_tokens
    lost = None if prefilled is None or growth is None else max(0, prefilled - max(0, growth))
    return TurnGrowth(
        turn_id=row.turn_id,
        at=row.opened_at,
        prompt_tokens=prompt,
        estimated=reported is None and prompt is not None,
        growth_tokens=growth,
        cached_tokens=closed.usage.cached_tokens,
        messages=closed.message_count,
        shared_messages=closed.shared_messages,
        losses=_named(row.losses) or _guessed(closed, lost),
    )


def _named(losses: Iterable[PrefixLost]) -> tuple[PrefixBreak, ...]:
    """As the governor found them when the turn ended."""
    return tuple(
        PrefixBreak(
            cause=loss.cause,
            message=loss.message,
            byte=loss.byte,
            detail=visible(loss.detail, _LONGEST_DETAIL),
            lost_tokens=loss.tokens,
            lost_s=loss.seconds,
        )
        for loss in losses
        if loss.cause != FIRST_PROMPT
    )


def _guessed(closed: TurnClosed, lost: int | None) -> tuple[PrefixBreak, ...]:
    """From the turn's row alone: of a break that cost nothing, and in logs that do not have losses."""
    if closed.broke_at is not None:
        broke = read_break(closed.broke_at)
        return (msgspec.structs.replace(broke, lost_tokens=lost),)
    if any(edit.startswith(COMPRESSED_EDIT) for edit in closed.edits):
        return (PrefixBreak(cause=COMPRESSED, lost_tokens=lost),)
    if lost is not None and lost >= _LEAST_LOSS_TOKENS:
        cause = FRESH if closed.shape is PromptShape.FRESH else NOT_CACHED
        return (PrefixBreak(cause=cause, lost_tokens=lost),)
    return ()


def _causes(turns: Sequence[TurnGrowth]) -> tuple[CauseTotal, ...]:
    by_cause: dict[str, list[tuple[str, PrefixBreak]]] = {}
    for turn in turns:
        for broke in turn.losses:
            by_cause.setdefault(broke.cause, []).append((turn.turn_id, broke))
    totals = [
        CauseTotal(
            cause=cause,
            count=len(breaks),
            lost_tokens=sum(broke.lost_tokens or 0 for _, broke in breaks),
            unknown=sum(broke.lost_tokens is None for _, broke in breaks),
            lost_s=_sum(broke.lost_s for _, broke in breaks),
            last_turn=breaks[-1][0],
            last_place="" if cause in PLACELESS else breaks[-1][1].place,
            last_detail=breaks[-1][1].detail,
        )
        for cause, breaks in by_cause.items()
    ]
    return tuple(sorted(totals, key=lambda total: (-total.lost_tokens, -total.count, total.cause)))


def _sum(seconds: Iterable[float | None]) -> float | None:
    """Of what is known."""
    known = [each for each in seconds if each is not None]
    return sum(known) if known else None
