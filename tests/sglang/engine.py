"""The installed CPU engine for tests: in the user's cache folder, installed at the first use, once a machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import platformdirs

from serve.install import InstalledEngine, Installer, recipe_for
from serve.install.runner import SubprocessRunner
from serve.profile import load_profile

PROFILE = "sglang-cpu"
ENGINES = Path(platformdirs.user_cache_dir("agent-governor")) / "engines"


def ensure_engine(say: Callable[[str], None] = print) -> InstalledEngine:
    """Seconds when it is there, else one and a half minutes and more. Raises :class:`serve.errors.InstallFailed`."""
    installer = Installer(recipe_for(load_profile(PROFILE)), ENGINES, SubprocessRunner(), say)
    if not installer.is_complete:
        say(f"installing {PROFILE} into {installer.engine.folder} (once a machine)")
    return installer.install()


@cache
def installed_engine() -> InstalledEngine:
    return ensure_engine()
