"""From a profile to its recipe. Pure."""

from __future__ import annotations

from serve.errors import NothingToInstall
from serve.install.cpu import cpu_recipe
from serve.install.cuda import cuda_recipe
from serve.install.model import InstallRecipe
from serve.install.rocm import rocm_recipe
from serve.profile.model import Profile, Recipe

WEIGHT_PATCHES = frozenset({"gptq-mtp-rules"})
"""Patches of the weights' folder, which is the owner's and not a part of the installation."""


def recipe_for(profile: Profile) -> InstallRecipe:
    """Raises :class:`~serve.errors.NothingToInstall` where the profile's engine is not one that is installed."""
    match profile.install.recipe:
        case Recipe.CPU:
            recipe = cpu_recipe()
        case Recipe.CUDA:
            recipe = cuda_recipe()
        case Recipe.ROCM_GFX1100:
            recipe = rocm_recipe(tuple(name for name in profile.install.patches if name not in WEIGHT_PATCHES))
        case Recipe.NONE:
            raise NothingToInstall(f"The engine of profile {profile.name} needs no installation: use governor up.")
    if recipe.engine_version != profile.versions.chosen:
        raise NothingToInstall(
            f"Profile {profile.name} is for SGLang {profile.versions.chosen}; this governor can install "
            f"{recipe.engine_version}. Set versions.install = {recipe.engine_version!r}, or install the other by hand."
        )
    return recipe
