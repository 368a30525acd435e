"""Where the governor keeps things, and values that come from the environment.

Everything lives in one folder: ``$GOVERNOR_HOME``, or the user's data folder. Secrets have a type of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import platformdirs


class Secret:
    """A value that never shows: not in ``repr``, logs, tracebacks or comparisons with text."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__


class Home(msgspec.Struct, frozen=True):
    """The governor's folder on disk and the names in it. Paths only: creating is up to who writes."""

    root: Path

    @property
    def policies(self) -> Path:
        """One TOML file an agent."""
        return self.root / "policies"

    @property
    def agents(self) -> Path:
        """Agents and the hashes of their keys."""
        return self.root / "agents.json"

    @property
    def database(self) -> Path:
        return self.root / "turns.db"

    @property
    def models(self) -> Path:
        """Weights fetched for the embedded engine."""
        return self.root / "models"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """State of the running governor: lock, address, admin token."""
        return self.root / "run"

    @property
    def owner_key(self) -> Path:
        """The owner's own client credential, mode 0600, as ``~/.pgpass`` is one."""
        return self.root / "owner.key"


def home(environ: Mapping[str, str] | None = None) -> Home:
    """``$GOVERNOR_HOME`` if set, else the user's data folder."""
    env = os.environ if environ is None else environ
    chosen = env.get("GOVERNOR_HOME")
    return Home(Path(chosen).expanduser() if chosen else Path(platformdirs.user_data_dir("agent-governor")))
