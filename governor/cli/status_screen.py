"""The state of a governor as one screen of text, for any width, with and without colour. Pure.

Text of clients and engines is made fit to be shown, and never becomes markup: lines are built of styled pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from governor.cli.console import milliseconds, shown
from governor.context import FIRST_PROMPT, words_of
from governor.snapshot import AgentView, LossView, QueueView, ResidencyView, Snapshot, StoreView, TierView, TurnView
from governor.types import TurnState
from governor.visible import LONGEST_REASON, visible

NARROWEST = 60
_LABEL = 9
_AROUND_AGENTS = 2
"""Lines: their titles, and how many more there are."""
_MOST_CAUSES, _MOST_ALERTS = 3, 5
_LEAST_AGENTS, _LEAST_WAITING, _MOST_WAITING = 4, 2, 8
_THOUSAND, _MILLION = 1_000, 1_000_000
_WITH_REASONS = 110
"""On a screen so wide what an agent waits for stands beside it."""
_SHORT_NAME, _LONGEST_NAME = 14, 24
_TIER_CELLS = (16, 8, 8, 8, 7)
_AGENT_CELLS = (-9, 16, 5, 5, 5, 4, 6)
"""Cells of each figure; on the left where negative."""
_GOOD = frozenset({TurnState.OK, TurnState.TRUNCATED})
_ENGINE_PHASES = frozenset({"prefill", "decode"})


def screen(now: Snapshot, *, where: str, width: int, height: int | None = None) -> list[Text]:
    """All lines. ``where``: how the governor is reached. ``height`` ``None``: no screen to fit on."""
    width = max(width, NARROWEST)
    head = [*_head(now, where), *_kv(now.queue), *_tiers(now.cache.tiers, now.cache.unknown)]
    tail = [*_losses(now.agents), *_log(now.store), *_alerts(now)]
    # One line is the shell's.
    room = None if height is None else height - len(head) - len(tail) - 1
    queue = list(_queue(now, _MOST_WAITING if room is None else max(_LEAST_WAITING, min(_MOST_WAITING, room // 4))))
    agents = _agents(now, None if room is None else room - len(queue), width)
    return [_cut(line, width) for line in (*head, *agents, *queue, *tail)]


def _head(now: Snapshot, where: str) -> Iterator[Text]:
    engine = now.engine
    ready = engine.mode == "ready"
    yield _titled("governor", f"{now.version} at {where}, up {_span(now.now - now.started_at)}")
    line = _titled("engine", f"{_safe(engine.name)} {_safe(engine.version)} ")
    line.append(_safe(engine.mode), "green" if ready else "bold red")
    if engine.detail:
        line.append(f" {_safe(engine.detail)}")
    figures = [f"window {shown(engine.window_tokens)}", f"slots {shown(engine.slots)}"]
    if now.prefill is not None:
        figures.append(f"prefill {now.prefill.tokens_per_s:,.0f} tokens/s")
    yield line
    yield _titled("", ", ".join([*map(_safe, engine.models), *figures]))


def _kv(line: QueueView) -> Iterator[Text]:
    booked = f"{line.booked_tokens:,} booked by {len(line.leases)}"
    if line.capacity_tokens is None:
        yield _titled("KV", f"{booked}; the engine does not tell how much it has")
        return
    free, foreign = shown(line.free_tokens), f"{line.foreign_tokens:,} foreign of {line.capacity_tokens:,}"
    yield _titled("KV", f"{booked}, {free} free, {foreign}")


def _tiers(tiers: Sequence[TierView], unknown: str | None) -> Iterator[Text]:
    if unknown is not None or not tiers:
        yield _titled("tiers", f"not known: {_safe(unknown or 'nothing is told of them')}")
        return
    titles = ("held/room", "states", "written", "served", "returns")
    yield _columns("tiers", tuple(zip(titles, _TIER_CELLS, strict=True)))
    for tier in tiers:
        figures = (
            _part(tier.held_tokens, tier.capacity_tokens, at_least=tier.is_part),
            f"{shown(tier.held_states)}/{shown(tier.state_slots)}",
            short(tier.written_tokens),
            short(tier.served_tokens),
            "-" if tier.served_per_written is None else f"{tier.served_per_written:.2f}",
        )
        line = _columns(f"  {_safe(tier.tier)}", tuple(zip(figures, _TIER_CELLS, strict=True)), bold=False)
        yield line if tier.complaint is None else line.append("  gives nothing", "yellow")


def _agents(now: Snapshot, room: int | None, width: int) -> Iterator[Text]:
    if not now.agents:
        yield _titled("agents", "none has a key, and none has sent anything")
        return
    contexts: dict[str, ResidencyView] = {}
    for context in now.cache.contexts:
        contexts.setdefault(context.agent, context)
    listed = sorted(now.agents, key=lambda agent: (not _is_busy(agent), -(agent.last_seen or 0.0), agent.name))
    widest = _LONGEST_NAME if width >= _WITH_REASONS else _SHORT_NAME
    name_width = min(widest, max(_LABEL - 1, *(cell_len(_safe(agent.name)) + 2 for agent in listed)))
    titles = ("state", "context/ceiling", "L1", "L2", "L3", "hit", "first")
    yield _columns("agents", tuple(zip(titles, _AGENT_CELLS, strict=True)), name_width)
    left = len(listed)
    for agent in listed:
        lines = list(_agent(agent, contexts.get(agent.name), now, name_width, width))
        if room is not None:
            room -= len(lines)
            if room < _AROUND_AGENTS and len(listed) - left >= _LEAST_AGENTS:
                break
        left -= 1
        yield from lines
    if left:
        busy = sum(map(_is_busy, listed[-left:]))
        yield Text(f"  and {left} more, of whom {busy} have a turn open or are held")


def _agent(
    agent: AgentView, context: ResidencyView | None, now: Snapshot, name_width: int, width: int
) -> Iterator[Text]:
    turns = [turn for turn in now.turns if turn.agent == agent.name]
    tokens = _context_tokens(agent, context)
    figures = (
        _state(agent, turns),
        _part(tokens, agent.window_tokens),
        short(context.l1_tokens if context else None),
        short(context.l2_tokens if context else None),
        short(context.l3_tokens if context else None),
        _hit(agent),
        milliseconds(agent.last_ttft_ms),
    )
    cells = tuple(zip(figures, _AGENT_CELLS, strict=True))
    line = _columns(f"  {_safe(agent.name)}", cells, name_width, bold=False)
    problem = agent.policy_problem or agent.held_reason
    if width >= _WITH_REASONS:
        problem = problem or _waits_for(agent, turns, now)
        yield line.append(f"  {_safe(problem)}", "yellow") if problem else line
        return
    yield line  # what it waits for stands in the queue
    if problem:
        yield Text(f"    {_safe(problem)}", "yellow")


def _context_tokens(agent: AgentView, context: ResidencyView | None) -> int | None:
    if context is not None:
        return context.context_tokens
    usage = agent.last_usage
    return (
        None if usage is None or usage.prompt_tokens is None else usage.prompt_tokens + (usage.completion_tokens or 0)
    )


def _state(agent: AgentView, turns: Sequence[TurnView]) -> str:
    """What its turns do, the engine's work first."""
    if agent.held:
        return "held"
    phases = sorted((turn.phase for turn in turns), key=lambda phase: phase not in _ENGINE_PHASES)
    if not phases:
        return "idle"
    return phases[0] if len(phases) == 1 else f"{phases[0]} +{len(phases) - 1}"


def _waits_for(agent: AgentView, turns: Sequence[TurnView], now: Snapshot) -> str:
    waiting = next((each for each in now.queue.waiting if each.agent == agent.name), None)
    if waiting is not None:
        return f"{now.now - waiting.since:.0f} s: {waiting.reason}"
    return next((turn.waits_for for turn in turns if turn.waits_for), "")


def _hit(agent: AgentView) -> str:
    if agent.cached_tokens is None or not agent.prompt_tokens:
        return "-"
    return f"{min(1.0, agent.cached_tokens / agent.prompt_tokens):.0%}"


def _is_busy(agent: AgentView) -> bool:
    return agent.running + agent.waiting > 0 or agent.held


def _queue(now: Snapshot, most: int) -> Iterator[Text]:
    waiting = now.queue.waiting
    if not waiting:
        yield _titled("queue", "nothing waits")
        return
    oldest = max(now.now - each.since for each in waiting)
    yield _titled("queue", f"{len(waiting)} wait, the oldest for {oldest:.0f} s")
    for each in waiting[:most]:
        paused = " (paused)" if each.paused else ""
        waited = f"{now.now - each.since:.0f} s"
        yield Text(f"  {each.position}. {_safe(each.agent)}{paused}, {waited}: {_safe(each.reason)}")
    if len(waiting) > most:
        yield Text(f"  and {len(waiting) - most} more ('governor queue')")


def _losses(agents: Sequence[AgentView]) -> Iterator[Text]:
    """What was computed twice, by cause; and of failed turns how many."""
    lost: dict[str, list[LossView]] = {}
    for agent in agents:
        for loss in agent.losses:
            if loss.cause != FIRST_PROMPT:
                lost.setdefault(loss.cause, []).append(loss)
    dearest = sorted(lost, key=lambda cause: -sum(loss.tokens for loss in lost[cause]))
    causes = [f"{_price(lost[cause])} {words_of(cause)}" for cause in dearest]
    more = f"; and {len(causes) - _MOST_CAUSES} more causes" if len(causes) > _MOST_CAUSES else ""
    yield _titled("lost", "; ".join(causes[:_MOST_CAUSES]) + more if causes else "no prefix was computed twice")
    turns = sum(sum(agent.turns.values()) for agent in agents)
    failed = sum(count for agent in agents for state, count in agent.turns.items() if state not in _GOOD)
    yield _titled("turns", f"{turns:,} ended, {failed:,} of them not well")


def _price(losses: Sequence[LossView]) -> str:
    """``1.5k (4 s)``; ``+`` where the engine did not tell the size of each, no seconds where nobody knows them."""
    unmeasured = sum(loss.unmeasured for loss in losses)
    tokens = short(None if unmeasured == sum(loss.count for loss in losses) else sum(loss.tokens for loss in losses))
    known = [loss.seconds for loss in losses if loss.seconds is not None]
    return f"{tokens}{'+' if unmeasured and tokens != '-' else ''}{f' ({sum(known):.0f} s)' if known else ''}"


def _log(store: StoreView) -> Iterator[Text]:
    if store.ok and not store.dropped:
        yield _titled("log", f"written, {store.pending:,} pending")
        return
    why = f": {_safe(store.last_error)}" if store.last_error else ""
    yield _titled("log").append(f"{store.pending:,} pending, {store.dropped:,} dropped{why}", "red")


def _alerts(now: Snapshot) -> Iterator[Text]:
    if not now.alerts:
        yield _titled("alerts", "none")
    for number, alert in enumerate(now.alerts[:_MOST_ALERTS]):
        yield _titled("alerts" if number == 0 else "").append(_safe(alert), "yellow")
    if len(now.alerts) > _MOST_ALERTS:
        yield _titled("", f"and {len(now.alerts) - _MOST_ALERTS} more")


def short(tokens: int | None) -> str:
    """In at most five characters, up to a billion; ``-`` where it is not known."""
    if tokens is None:
        return "-"
    for unit, letter in ((_MILLION, "M"), (_THOUSAND, "k")):
        if tokens >= unit:
            return f"{tokens / unit:.3g}{letter}" if tokens < _THOUSAND * unit else f"{tokens / unit:,.0f}{letter}"
    return str(tokens)


def _part(part: int | None, whole: int | None, *, at_least: bool = False) -> str:
    """Of a whole; the share where both are known. ``+`` where the part may be larger."""
    share = f" {part / whole:4.0%}" if part is not None and whole and not at_least else " " * 5
    return f"{short(part)}{'+' if at_least else ''}/{short(whole)}{share}"


def _span(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days"


def _titled(label: str, text: str = "") -> Text:
    return Text.assemble((label.ljust(_LABEL), "bold"), text)


def _columns(label: str, figures: Sequence[tuple[str, int]], label_width: int = _LABEL, *, bold: bool = True) -> Text:
    """Each in so many cells, on the right; on the left where the number is negative. Titles are ``bold``."""
    line = Text(set_cell_size(label, max(label_width, _LABEL - 1)), "bold" if bold else "")
    for text, cells in figures:
        line.append(f" {text:<{-cells}}" if cells < 0 else f" {text:>{cells}}", "bold" if bold else "")
    return line


def _safe(text: str) -> str:
    return visible(text, LONGEST_REASON)


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    line.rstrip()
    return line
