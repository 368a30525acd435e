"""From a profile to its recipe. Pure."""

from __future__ import annotations

from serve.errors import InstallFailed, NothingToInstall
from serve.install.cpu import cpu_recipe
from serve.install.cuda import cuda_recipe
from serve.install.model import InstallRecipe
from serve.install.rocm import rocm_recipe
from serve.patches import ALL, Place
from serve.profile.model import Profile, Recipe


def recipe_for(profile: Profile) -> InstallRecipe:
    """Raises :class:`~serve.errors.NothingToInstall` where the profile's engine is not one that is installed, and
    :class:`~serve.errors.InstallFailed` where the profile names a patch that there is not."""
    match profile.install.recipe:
        case Recipe.CPU:
            recipe = cpu_recipe()
        case Recipe.CUDA:
            recipe = cuda_recipe()
        case Recipe.ROCM_GFX1100:
            recipe = rocm_recipe(_kernel_patches(profile))
        case Recipe.NONE:
            raise NothingToInstall(f"The engine of profile {profile.name} needs no installation: use governor up.")
    if recipe.engine_version != profile.versions.chosen:
        raise NothingToInstall(
            f"Profile {profile.name} is for SGLang {profile.versions.chosen}; this governor can install "
            f"{recipe.engine_version}. Set versions.install = {recipe.engine_version!r}, or install the other by hand."
        )
    return recipe


def _kernel_patches(profile: Profile) -> tuple[str, ...]:
    """Those of the sources; the weights' folder is the owner's and no part of an installation."""
    places = {patch.id: patch.place for patch in ALL}
    unknown = [name for name in profile.install.patches if name not in places]
    if unknown:
        raise InstallFailed(f"Profile {profile.name} names patches that there are not: {', '.join(unknown)}.")
    return tuple(name for name in profile.install.patches if places[name] is Place.KERNEL_SOURCE)
