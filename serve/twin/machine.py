"""A machine of the twin: one engine's settings and costs, as a file that says where its figures are from.

The shipped ones are fitted from what is in ``machines/measured``.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import tomlkit

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
        raise ServeError(f"Machine {name!r}: {named_field(error)}. Correct it, or fit it again.") from error


def named_field(error: Exception) -> str:
    """What msgspec says, with the field in front: ``engine.tiers: Object missing required field `device_tokens```."""
    message = str(error)
    found = re.fullmatch(r"(?s)(.*) - at `(?:key in )?`?\$\.?(.*?)`", message)
    return f"{found[2]}: {found[1]}" if found and found[2] else message


def machine_toml(machine: Machine) -> str:
    """As a machine file. What is ``None`` is left out, for which TOML has no word."""
    document = tomlkit.document()
    document.add(tomlkit.comment("Written by `governor twin fit`: correct the measurements and fit again."))
    for key, value in msgspec.to_builtins(machine).items():
        document.add(key, _item(value))
    return tomlkit.dumps(document)


def _item(value: Any) -> Any:
    """Lists of texts one a line."""
    if isinstance(value, dict):
        return {key: _item(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        return tomlkit.item(list(value)).multiline(True)
    return value
