"""Where engines are, and an installed one. What a launcher needs to start it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import platformdirs

from serve.install.model import InstallRecipe
from serve.install.record import Record


class InstalledEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that every step of its recipe was done for."""

    folder: Path
    python: Path
    """Its interpreter."""
    version: str
    """Of SGLang."""
    env: Mapping[str, str] = {}
    """To be set when it is started, over the profile's."""
    model_path: Path | None = None
    """Weights that were made with it; ``None``: the owner brings them."""


def engines_folder(environ: Mapping[str, str] | None = None) -> Path:
    """``$GOVERNOR_ENGINES`` if set, else ``engines`` in the user's data folder: gigabytes that all homes share."""
    chosen = (os.environ if environ is None else environ).get("GOVERNOR_ENGINES")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_data_dir("agent-governor")) / "engines"


def engine_folder(recipe: InstallRecipe, engines: Path, python_version: str) -> Path:
    """Where the recipe's engine is or will be."""
    return engines / f"{recipe.name}-{recipe.key(python_version)}"


def described(recipe: InstallRecipe, folder: Path) -> InstalledEngine:
    """The engine in ``folder``, finished or not."""
    env = {"PYTHONSAFEPATH": "1"}
    if recipe.python_path:
        env["PYTHONPATH"] = os.pathsep.join(str(path) for path in recipe.python_path)
    model = recipe.model and Path(recipe.model.replace("{engine}", str(folder)))
    return InstalledEngine(
        folder=folder,
        python=folder / "venv" / "bin" / "python",
        version=recipe.engine_version,
        env=env,
        model_path=model or None,
    )


def find_engine(recipe: InstallRecipe, engines: Path) -> InstalledEngine | None:
    """The finished installation, of whatever Python it has. Costs a few file reads; changes nothing."""
    own = "{}.{}".format(*sys.version_info[:2])
    for version in sorted(recipe.pythons, key=lambda version: version != own):
        folder = engine_folder(recipe, engines, version)
        engine = described(recipe, folder)
        if engine.python.exists() and Record(folder).is_complete(recipe):
            return engine
    return None
