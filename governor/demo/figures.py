"""How long each agent has heard nothing: figures of one run. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Mode(StrEnum):
    """Who decides when a turn runs."""

    GOVERNED = "governed"
    UNGOVERNED = "ungoverned"

    @property
    def other(self) -> Mode:
        return Mode.UNGOVERNED if self is Mode.GOVERNED else Mode.GOVERNED


class AgentFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One agent in one run. Seconds are the twin's."""

    agent: str
    turns: int = 0
    """That came to their end."""
    failed: int = 0
    written_tokens: int = 0
    """Of answers, as the engine has counted them."""
    longest_stall_s: float = 0.0
    """Longest time in which it had asked and heard no token, the one that lasts now included. Its first turn does not
    count: there a prompt is computed that nobody has computed before, which takes minutes on an idle machine, too."""
    first_stall_s: float = 0.0
    """The same of its first turn."""
    silent_s: float | None = None
    """Since when it has waited for a token now; ``None``: it waits for none."""
    compactions: int = 0
    """Of its own."""
    vain_compactions: int = 0
    """Of those, after which its prompt was as long as before."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the incident so far."""

    mode: Mode
    life: int
    """Counts runs."""
    at_s: float | None = None
    """Since the agents have begun, in the twin's seconds; ``None``: they have not yet."""
    agents: tuple[AgentFigures, ...] = ()

    def of(self, agent: str) -> AgentFigures | None:
        return next((each for each in self.agents if each.agent == agent), None)


class StallWatch:
    """Listens to one agent. Times are the twin's seconds, from any moment on."""

    def __init__(self, agent: str) -> None:
        self._figures = AgentFigures(agent=agent)
        self._heard_at: float | None = None
        """When it last heard a token, or asked; ``None`` while it does not wait."""

    def on_asked(self, now: float) -> None:
        """A turn begins. May be repeated for each further try: silence counts from the first."""
        if self._heard_at is None:
            self._heard_at = now

    def on_token(self, now: float) -> None:
        self._end_silence(now)
        self._heard_at = now

    def on_ended(self, now: float, *, ok: bool, written_tokens: int = 0) -> None:
        """The turn is over; ``ok``: with an answer."""
        self._end_silence(now)
        self._heard_at = None
        figures = self._figures
        self._figures = msgspec.structs.replace(
            figures,
            turns=figures.turns + ok,
            failed=figures.failed + (not ok),
            written_tokens=figures.written_tokens + written_tokens,
        )

    def on_compacted(self, *, in_vain: bool) -> None:
        figures = self._figures
        self._figures = msgspec.structs.replace(
            figures, compactions=figures.compactions + 1, vain_compactions=figures.vain_compactions + in_vain
        )

    def figures(self, now: float) -> AgentFigures:
        """Until now."""
        if self._heard_at is None:
            return self._figures
        silent_s = now - self._heard_at
        return msgspec.structs.replace(self._with_silence(silent_s), silent_s=silent_s)

    def _end_silence(self, now: float) -> None:
        if self._heard_at is not None:
            self._figures = self._with_silence(now - self._heard_at)

    def _with_silence(self, silent_s: float) -> AgentFigures:
        figures = self._figures
        if figures.turns + figures.failed == 0:
            return msgspec.structs.replace(figures, first_stall_s=max(figures.first_stall_s, silent_s))
        return msgspec.structs.replace(figures, longest_stall_s=max(figures.longest_stall_s, silent_s))


def duration_text(seconds: float) -> str:
    """For people: ``57 s``, ``4 min 5 s``, ``49 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
