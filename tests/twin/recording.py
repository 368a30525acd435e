"""How the real engine served a plan, kept as a file: the figures only, for the plan is made up again from its seed."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec

from tests.twin.traffic import PLANS, Served, Step

_FIGURES = Served.__struct_fields__


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One play."""

    plan: str
    seed: int
    served: tuple[Served, ...]

    @property
    def steps(self) -> list[Step]:
        return PLANS[self.plan](self.seed)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises :class:`msgspec.DecodeError`."""
        lines = path.read_text("utf-8").splitlines()
        head = msgspec.json.decode(lines[0])
        rows = [dict(zip(_FIGURES, msgspec.json.decode(line), strict=True)) for line in lines[1:]]
        return cls(plan=head["plan"], seed=head["seed"], served=msgspec.convert(tuple(rows), tuple[Served, ...]))

    def write(self, path: Path) -> None:
        """One line a turn: its figures in the order of :class:`Served`."""
        rows = [[getattr(each, name) for name in _FIGURES] for each in self.served]
        head = {"plan": self.plan, "seed": self.seed, "figures": _FIGURES}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(msgspec.json.encode(line).decode() for line in [head, *rows]) + "\n", "utf-8")
