"""A machine of the twin: one engine's settings and costs, as a file that says where its figures are from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from serve.errors import ServeError
from serve.twin.cost import Cost
from serve.twin.engine_model import EngineSettings

SUFFIX = ".toml"


class Residual(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured figure and what the twin says."""

    what: str
    measured: float
    twin: float

    @property
    def error(self) -> float:
        """Relative: 0.1 is 10 % more than measured."""
        return self.twin / self.measured - 1


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine file holds."""

    name: str
    summary: str
    sources: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    """Figures that nobody has measured, with what they were taken from."""
    model: str = "twin"
    """Served name."""
    engine: EngineSettings
    cost: Cost
    residuals: tuple[Residual, ...] = ()


def machine_names() -> list[str]:
    """The shipped ones."""
    folder = resources.files("serve.twin").joinpath("machines")
    return sorted(each.name.removesuffix(SUFFIX) for each in folder.iterdir() if each.name.endswith(SUFFIX))


def load_machine(name: str) -> Machine:
    """A shipped machine by name, or a file by path. Raises :class:`~serve.errors.ServeError`, naming the field."""
    try:
        if name.endswith(SUFFIX):
            text = Path(name).read_text("utf-8")
        else:
            text = resources.files("serve.twin").joinpath("machines", name + SUFFIX).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(machine_names())
        raise ServeError(
            f"There is no machine {name!r} for the twin ({known}, or a path that ends in .toml)."
        ) from error
    try:
        return msgspec.toml.decode(text.encode(), type=Machine)
    except msgspec.DecodeError as error:
        raise ServeError(f"Machine {name!r}: {error}.") from error
