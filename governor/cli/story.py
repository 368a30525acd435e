"""A turn's story, in order: its arrival, each decision about it, its first token, its end. Pure."""

from __future__ import annotations

import msgspec

from governor.cli.console import milliseconds, shown
from governor.context import FIRST_PROMPT, PLACELESS, PrefixBreak, words_of
from governor.events import PrefixLost, TurnDecided
from governor.snapshot import Snapshot, TurnView, WaitingView
from governor.store.model import StoredTurn, TurnClosed
from governor.types import TurnState, Usage


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One line of it."""

    offset_s: float | None
    """Since the turn's arrival; ``None``: nobody knows when."""
    what: str
    why: str = ""
    decided: TurnDecided | None = None
    """The decision that the line is about, with its figures."""


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """What the running governor says of an open turn."""

    at: float
    """Unix time."""
    turn: TurnView
    waiting: WaitingView | None = None


def now_of(snapshot: Snapshot, turn_id: str) -> Now | None:
    """``None``: the governor that answered does not have this turn."""
    turn = next((each for each in snapshot.turns if each.turn_id == turn_id), None)
    waiting = next((each for each in snapshot.queue.waiting if each.turn_id == turn_id), None)
    return None if turn is None else Now(at=snapshot.now, turn=turn, waiting=waiting)


def story(turn: StoredTurn, decisions: list[TurnDecided], now: Now | None = None) -> list[Step]:
    """``now``: for an open turn, where a governor runs."""
    closed = turn.closed
    known = [turn.opened_at, *(each.at for each in decisions), closed.closed_at if closed else None]
    began = next((at for at in known if at is not None), 0.0)

    def step(at: float, what: str, why: str = "", decided: TurnDecided | None = None) -> Step:
        return Step(offset_s=at - began, what=what, why=why, decided=decided)

    timed = [step(each.at, each.verdict.replace("_", " "), each.why, each) for each in decisions]
    if closed is not None:
        if closed.ttft_ms is not None and turn.opened_at is not None:
            timed.append(step(turn.opened_at + closed.ttft_ms / 1000, "first token"))
        timed.append(step(closed.closed_at, "ended", _end(turn.state, closed)))
        timed += [step(closed.closed_at, "prefix", _loss(loss)) for loss in turn.losses]
    elif now is not None:
        timed.append(step(now.at, "now", _standing(now)))
    timed.sort(key=lambda each: each.offset_s or 0.0)
    arrived = Step(offset_s=None if turn.opened_at is None else 0.0, what="arrived", why=_arrival(turn, now))
    cut = Step(offset_s=None, what="interrupted", why="the governor ended before the turn did")
    return [arrived, *timed, *((cut,) if turn.state is TurnState.INTERRUPTED and closed is None else ())]


def _arrival(turn: StoredTurn, now: Now | None) -> str:
    parts = [f"agent {turn.agent or '-'}"]
    closed = turn.closed
    if closed is not None:
        shape = () if closed.shape is None else (closed.shape.value,)
        parts += [closed.kind.value if closed.kind else "kind unknown", *shape]
        margin = f" (+{closed.prompt_tokens_margin:,})" if closed.prompt_tokens_margin else ""
        parts.append(f"prompt {shown(closed.prompt_tokens_counted)}{margin}")
        why = f" ({closed.cap_reason})" if closed.cap_reason else ""
        parts.append(f"cap {shown(closed.cap_applied)}{why}")
        parts += [edit for edit in closed.edits if ":" in edit]  # others are names of fields
    elif now is not None:
        view = now.turn
        parts += [view.kind.value if view.kind else "kind unknown"]
        parts += [f"prompt {shown(view.prompt_tokens)}", f"cap {shown(view.cap)}"]
    return ", ".join(parts)


def _standing(now: Now) -> str:
    view, waiting = now.turn, now.waiting
    if waiting is not None:
        return f"{view.phase}, place {waiting.position}: {waiting.reason}"
    return view.phase if view.waits_for is None else f"{view.phase}: {view.waits_for}"


def _end(state: TurnState, closed: TurnClosed) -> str:
    usage = closed.usage
    cached = f", {shown(usage.cached_tokens)} cached{_tiers(usage)}" if usage.cached_tokens is not None else ""
    parts = [
        state.value + (f" ({closed.finish_reason})" if closed.finish_reason else ""),
        f"in {shown(usage.prompt_tokens)}{cached}",
        f"new {shown(usage.new_tokens)}",
        f"out {_output(closed)}",
    ]
    if closed.pieces is not None and closed.pieces > 1:
        parts.append(f"paused {closed.pieces - 1}x, {milliseconds(closed.paused_ms)} in all")
    if closed.reason:
        parts.append(closed.reason)
    return "; ".join([*parts, *closed.flags])


def _loss(loss: PrefixLost) -> str:
    """What was computed again, why, where, and what it took."""
    price = "" if loss.seconds is None else f", {loss.seconds:.1f} s (±{loss.margin_s or 0.0:.1f})"
    verb = "computed once" if loss.cause == FIRST_PROMPT else "computed again"
    place = PrefixBreak(cause=loss.cause, message=loss.message, byte=loss.byte).place
    where = "" if loss.cause in PLACELESS else f", {place}"
    detail = f" ({loss.detail})" if loss.detail else ""
    return f"{shown(loss.tokens)} tokens {verb}{price}: {words_of(loss.cause)}{where}{detail}"


def _output(closed: TurnClosed) -> str:
    if closed.usage.completion_tokens is None and closed.completion_tokens_estimated is not None:
        return f"~{closed.completion_tokens_estimated:,}"
    return shown(closed.usage.completion_tokens)


def _tiers(usage: Usage) -> str:
    tiers = (usage.cached_device_tokens, usage.cached_host_tokens, usage.cached_storage_tokens)
    if tiers == (None, None, None):
        return ""
    return " (" + ", ".join(f"L{level} {shown(tokens)}" for level, tokens in enumerate(tiers, start=1)) + ")"
