"""What is known of a profile's weights on this machine: shape and size, for the plan and the doctor. Reads disk.

A folder tells both exactly. A hub name tells them when it lies in the hub's cache; else, for the models that shipped
profiles name, the shape is known and the size is estimated. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from serve.errors import BadModelSource
from serve.plan.known import NAMES, SMOLLM2, known_shape
from serve.plan.shape import ModelShape, UnknownShape, bits_named, shape_of
from serve.profile.model import EngineKind, Profile

CONFIG = "config.json"


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    shape: ModelShape
    weight_bytes: int
    """Of all ranks."""
    weights_assumed: bool
    """The size is an estimate."""


def model_facts(profile: Profile, model: str | None = None, hub_cache: Path | None = None) -> ModelFacts:
    """Of ``model`` (a folder or a name), else of what the profile names.

    Raises :class:`~serve.errors.BadModelSource` where nothing is known of it.
    """
    name = model or profile.model.path or profile.model.served_name
    if name is None and profile.engine is EngineKind.LLAMACPP:
        return ModelFacts(shape=SMOLLM2, weight_bytes=SMOLLM2.weight_bytes(5), weights_assumed=True)
    if name is None:
        raise BadModelSource(f"profile {profile.name} names no model. Give one with --model DIR.")
    folder = _folder(name, hub_cache)
    if folder is not None:
        shape = _read_shape(folder)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        if size:
            return ModelFacts(shape=shape, weight_bytes=size, weights_assumed=False)
    else:
        found = known_shape(name)
        if found is None:
            raise BadModelSource(
                f"nothing is known of {name!r}: it is no folder, not in the hub's cache, and none of "
                f"{', '.join(NAMES)}. Give its folder with --model DIR (its {CONFIG} is enough)."
            )
        shape = found
    bits = shape.weight_bits or _guessed_bits(profile, name) or 16.0
    return ModelFacts(shape=shape, weight_bytes=shape.weight_bytes(bits), weights_assumed=True)


def _guessed_bits(profile: Profile, name: str) -> float | None:
    """From the words of the name, the profile's quantisation and the patches that it needs, in this order."""
    for text in (name, profile.model.path, profile.model.quantization, *profile.install.patches):
        bits = bits_named(text) if text else None
        if bits is not None:
            return bits
    return None


def _folder(name: str, hub_cache: Path | None) -> Path | None:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith((".", "/", "~")):
        raise BadModelSource(f"there is no folder {name}. Check --model, or model.path of the profile.")
    repository = (hub_cache or _hub_cache()) / f"models--{name.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if (snapshot / CONFIG).is_file() else None


def _hub_cache() -> Path:
    """Where ``huggingface_hub`` puts it; importing that takes half a second."""
    named = os.environ.get("HF_HUB_CACHE")
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    return Path(named).expanduser() if named else home / "hub"


def _read_shape(folder: Path) -> ModelShape:
    path = folder / CONFIG
    try:
        return shape_of(json.loads(path.read_text()), folder.name)
    except (OSError, ValueError) as error:
        detail = str(error) if isinstance(error, UnknownShape) else f"{path}: {error}"
        raise BadModelSource(
            f"{detail}. A plan needs a model of the Qwen3-Next, 3.5 to 3.8 or a dense kind."
        ) from error
