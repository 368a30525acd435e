"""What several screens show alike: agents and their colours, states, bars of residency and of what served a prompt."""

from __future__ import annotations

from collections.abc import Mapping

from governor.events import TurnEnded
from governor.snapshot import AgentView, ResidencyView, Snapshot, TurnView
from governor.types import TurnState, Usage
from tui.cells import HUES, Cell, Part, Row, Tone, bar_cell, external
from tui.figures import UNKNOWN
from tui.picture import Picture
from tui.rates import BYTES_PER_TOKEN

GOOD_ENDS = {TurnState.OK, TurnState.TRUNCATED}
_PHASES = ("decode", "prefill", "reading", "paused", "waiting")
"""An agent with several open turns is in the first of these that one of them is in."""

OTHER = "other"
L1, L2, L3 = "█", "▓", "▒"
NEW, UNUSABLE, UNSURE = "·", "x", "?"

TIER_LEGEND: Row = (
    Cell(f"{L1} L1", Tone.L1),
    Cell(f"{L2} L2", Tone.L2),
    Cell(f"{L3} L3", Tone.L3),
)
RESIDENCY_LEGEND: Row = (
    *TIER_LEGEND,
    Cell(f"{UNUSABLE} of no use", Tone.WARN),
    Cell(f"{NEW} gone", Tone.NEW),
    Cell(f"{UNSURE} unknown", Tone.DIM),
)
SERVED_LEGEND: Row = (
    *TIER_LEGEND,
    Cell("▚ cached somewhere", Tone.GOOD),
    Cell(f"{NEW} computed", Tone.NEW),
    Cell(f"{UNSURE} unknown", Tone.DIM),
)


def old(picture: Picture, what: str) -> Row:
    """For a page that is shown and could not be had again: that it is of before, and why."""
    why = picture.missing.get(what)
    return () if why is None else (external(f"of before: {why}", Tone.WARN),)


def hues(snapshot: Snapshot | None) -> Mapping[str, Tone]:
    """A colour for each agent, the same as long as there are the same agents."""
    names = () if snapshot is None else [agent.name for agent in snapshot.agents]
    return {name: HUES[index % len(HUES)] for index, name in enumerate(names)}


def named(name: str, tones: Mapping[str, Tone]) -> Cell:
    return external(name, tones.get(name, Tone.STRONG))


def phase_tone(phase: str) -> Tone:
    return {"decode": Tone.GOOD, "prefill": Tone.GOOD, "waiting": Tone.WARN, "paused": Tone.WARN}.get(phase, Tone.PLAIN)


def state(view: AgentView, turns: tuple[TurnView, ...]) -> Cell:
    """What the agent is at. ``turns`` are its open ones."""
    if view.held:
        return Cell("held", Tone.BAD)
    phases = {turn.phase for turn in turns}
    for phase in _PHASES:
        if phase in phases:
            return Cell(phase, phase_tone(phase))
    if phases:
        return external(min(phases))
    return Cell("unseen" if view.last_seen is None else "idle", Tone.DIM)


def newest_lines(snapshot: Snapshot) -> Mapping[str, ResidencyView]:
    """The line of each agent that was answered last."""
    lines = dict[str, ResidencyView]()
    for line in snapshot.cache.contexts:
        lines.setdefault(line.agent, line)
    return lines


def residency(line: ResidencyView | None, why_unknown: str | None, whole: int | None = None) -> Cell:
    """Where a context is. What nobody knows is drawn as unknown, or said so."""
    if line is None:
        return Cell("unknown" if why_unknown else UNKNOWN, Tone.DIM)
    return bar_cell(
        Part(line.l1_tokens or 0, Tone.L1, L1),
        Part(line.l2_tokens or 0, Tone.L2, L2),
        Part(line.l3_tokens or 0, Tone.L3, L3),
        Part(line.unusable_tokens or 0, Tone.WARN, UNUSABLE),
        Part(line.missing_tokens or 0, Tone.NEW, NEW),
        Part(_unsure(line), Tone.DIM, UNSURE),
        whole=whole,
    )


def _unsure(line: ResidencyView) -> int:
    """Tokens of which nobody knows where they are."""
    parts = (line.l1_tokens, line.l2_tokens, line.l3_tokens, line.unusable_tokens, line.missing_tokens)
    known = sum(part for part in parts if part is not None)
    return max(line.unknown_tokens, line.context_tokens - known if None in parts else 0)


def served(usage: Usage, whole: int | None = None) -> Cell:
    """From where a prompt was served."""
    prompt, cached = usage.prompt_tokens, usage.cached_tokens
    if prompt is None:
        return Cell(UNKNOWN, Tone.DIM)
    if cached is None:
        return bar_cell(Part(prompt, Tone.DIM, UNSURE), whole=whole)
    tiers = (usage.cached_device_tokens, usage.cached_host_tokens, usage.cached_storage_tokens)
    told = sum(tier or 0 for tier in tiers)
    return bar_cell(
        Part(tiers[0] or 0, Tone.L1, L1),
        Part(tiers[1] or 0, Tone.L2, L2),
        Part(tiers[2] or 0, Tone.L3, L3),
        Part(max(0, cached - told), Tone.GOOD, "▚"),
        Part(max(0, prompt - max(cached, told)), Tone.NEW, NEW),
        whole=whole,
    )


def cap_use(turns: tuple[TurnView, ...], last: TurnEnded | None) -> Cell:
    """How much of its output cap the running turn has used, about; else the last one, as reported."""
    for turn in turns:
        if turn.cap and turn.phase in {"decode", "paused"}:
            return _of_cap(turn.generated_bytes / BYTES_PER_TOKEN / turn.cap, "~")
    if last is None or not last.cap_applied or last.usage.completion_tokens is None:
        return Cell(UNKNOWN, Tone.DIM)
    return _of_cap(last.usage.completion_tokens / last.cap_applied, "")


def _of_cap(part: float, about: str) -> Cell:
    return Cell(f"{about}{min(part, 1):.0%}", Tone.WARN if part > 0.9 else Tone.PLAIN)


def context_tone(tokens: int, window: int | None, trigger: int | None) -> Tone:
    """Stressed from where it is made shorter, and where little is left."""
    if not window:
        return Tone.PLAIN
    if tokens >= 0.9 * window:
        return Tone.BAD
    return Tone.WARN if tokens >= (trigger or 0.7 * window) else Tone.PLAIN
