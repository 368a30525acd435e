"""How far two engines served the same plan alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

from tests.twin.traffic import Served, Turn

PAGE_TOKENS = 64
BOUND = 0.95
"""Of turns whose cached tokens must be within a page."""


class Agreement:
    """Turn by turn: the engine's figures beside the twin's."""

    def __init__(self, turns: Sequence[Turn], engine: Sequence[Served], twin: Sequence[Served]) -> None:
        by_number = {each.number: each for each in twin}
        served = {each.number: each for each in engine}
        self.rows = [(turn, served[turn.number], by_number[turn.number]) for turn in turns]

    @property
    def share(self) -> float:
        """Of turns within a page."""
        return self._share(is_close)

    @property
    def equal_share(self) -> float:
        """Of turns with the very same number."""
        return self._share(lambda engine, twin: engine.cached_tokens == twin.cached_tokens)

    @property
    def tier_share(self) -> float:
        """Of turns within a page in each tier."""
        return self._share(is_close_by_tier)

    @property
    def disagreements(self) -> list[tuple[Turn, Served, Served]]:
        return [row for row in self.rows if not is_close(row[1], row[2])]

    def first_token_ratio(self) -> float:
        """Median of the twin's time to the first token over the engine's."""
        return median(twin.first_s / engine.first_s for _, engine, twin in self.rows if engine.first_s and twin.first_s)

    def table(self) -> str:
        """By part and by kind, then every turn that differs."""
        lines = [self._line("all", self.rows)]
        for name in ("part", "kind"):
            values = Counter(str(getattr(turn, name)) for turn, _, _ in self.rows)
            for value in values:
                lines.append(self._line(value, [row for row in self.rows if str(getattr(row[0], name)) == value]))
        lines.append(f"first token, twin to engine: median {self.first_token_ratio():.2f}")
        lines += [describe(*row) for row in self.rows if not is_close_by_tier(row[1], row[2])]
        return "\n".join(lines)

    def _share(self, agrees: Callable[[Served, Served], bool]) -> float:
        return sum(agrees(engine, twin) for _, engine, twin in self.rows) / len(self.rows)

    @staticmethod
    def _line(name: str, rows: list[tuple[Turn, Served, Served]]) -> str:
        pairs = [(engine, twin) for _, engine, twin in rows]
        close = sum(is_close(*pair) for pair in pairs)
        equal = sum(engine.cached_tokens == twin.cached_tokens for engine, twin in pairs)
        tiers = sum(is_close_by_tier(*pair) for pair in pairs)
        return (
            f"{name:18s} {len(pairs):4d} turns  within a page {close:4d} ({close / len(pairs):.1%})  "
            f"equal {equal:4d}  each tier within a page {tiers:4d} ({tiers / len(pairs):.1%})"
        )


def is_close(engine: Served, twin: Served) -> bool:
    return abs(engine.cached_tokens - twin.cached_tokens) <= PAGE_TOKENS


def is_close_by_tier(engine: Served, twin: Served) -> bool:
    return all(
        abs(getattr(engine, tier) - getattr(twin, tier)) <= PAGE_TOKENS for tier in ("device", "host", "storage")
    )


def describe(turn: Turn, engine: Served, twin: Served) -> str:
    def tiers(served: Served) -> str:
        return f"{served.device}/{served.host}/{served.storage}"

    return (
        f"  {turn.rid} agent {turn.agent} {turn.part}, {turn.kind}: {len(turn.prompt)} tokens, "
        f"engine {tiers(engine)} at {engine.at:.2f} s, twin {tiers(twin)} at {twin.at:.2f} s"
    )
