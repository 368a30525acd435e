"""Installs an engine into a virtual environment of its own: typed steps, each checked, resumable."""

from serve.install.installed import InstalledEngine, engines_folder, find_engine
from serve.install.installer import Installer
from serve.install.model import Command, InstallRecipe, Step
from serve.install.recipes import recipe_for

__all__ = [
    "Command",
    "InstallRecipe",
    "InstalledEngine",
    "Installer",
    "Step",
    "engines_folder",
    "find_engine",
    "recipe_for",
]
