"""Which folder an engine's L3 has: one for each identity, so that pages never meet an engine they do not fit.

SGLang's file names hold the served model's name and the rank, not the weights, the data types or the layout
(``mem_cache/hicache_storage.py``): with one folder for all, changed settings load wrong bytes without an error. The
folder is therefore named after a fingerprint of everything that shapes the bytes, and a marker in it says of what.

::

    PARENT/FINGERPRINT/identity.json      the marker; refused when it does not match
    PARENT/FINGERPRINT/pages/             what the engine gets; it may empty it
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec

from serve.errors import L3Refused
from serve.filesystem import MEMORY_KINDS, filesystem_kind
from serve.profile.model import FlagValue, Profile

MARKER = "identity.json"
PAGES = "pages"
UNRESOLVED = "unresolved"
"""Revision of weights that are on the hub only: which they are shows after the download."""
_SMALL_BYTES = 4 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Weights(msgspec.Struct, frozen=True):
    """One set of weights, told from all others."""

    name: str
    """Of the folder, or on the hub."""
    version: str
    """A digest of the folder, or the commit on the hub."""
    on_hub: bool

    @property
    def commit(self) -> str | None:
        """To pin the engine to, so that it loads what was looked at."""
        return self.version if self.on_hub and self.version != UNRESOLVED else None


class L3Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that shapes the bytes of a page or a state, or what they mean."""

    engine: str
    engine_version: str
    weights: tuple[Weights, ...]
    """The model's, the draft's, the adapters' (:func:`resolve_weights`)."""
    quantization: str | None
    dtype: str | None
    kv_cache_dtype: str | None
    ssm_dtype: str | None
    conv_dtype: str | None
    tp_size: int
    dp_size: int
    page_size: int | None
    mem_layout: str | None
    io_backend: str | None
    """SGLang rewrites the layout to suit it."""
    draft_algorithm: str | None
    """The draft's KV is stored within the target's pages."""
    flags: dict[str, FlagValue]
    """The profile's further flags, since nothing says which of them matter."""
    environment: dict[str, str]

    @property
    def fingerprint(self) -> str:
        """24 hexadecimal digits of a SHA-256. Equal for equal identities, on every machine."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:24]

    @property
    def is_resolved(self) -> bool:
        return all(weights.version != UNRESOLVED for weights in self.weights)


class L3Folder(msgspec.Struct, frozen=True):
    root: Path

    @property
    def pages(self) -> Path:
        """For the engine."""
        return self.root / PAGES

    @property
    def marker(self) -> Path:
        return self.root / MARKER


def l3_identity(profile: Profile, version: str, weights: tuple[Weights, ...]) -> L3Identity:
    """Pure. ``weights`` comes from :func:`resolve_weights`."""
    return L3Identity(
        engine=profile.engine,
        engine_version=version,
        weights=weights,
        quantization=profile.model.quantization,
        dtype=profile.model.dtype,
        kv_cache_dtype=profile.model.kv_cache_dtype,
        ssm_dtype=profile.mamba.ssm_dtype,
        conv_dtype=profile.mamba.conv_dtype,
        tp_size=profile.parallel.tp_size,
        dp_size=profile.parallel.dp_size,
        page_size=profile.memory.page_size,
        mem_layout=profile.hicache.mem_layout,
        io_backend=profile.hicache.io_backend,
        draft_algorithm=profile.speculative.algorithm,
        flags=profile.flags,
        environment=profile.environment,
    )


def l3_folder(parent: Path, identity: L3Identity) -> L3Folder:
    """Pure: where the identity's folder is, made or not."""
    return L3Folder(parent / identity.fingerprint)


def claim_l3(parent: Path, identity: L3Identity) -> L3Folder:
    """Make the identity's folder or take the one that is there, for one start of the engine.

    Blocks for a few file operations. Raises :class:`~serve.errors.L3Refused` when the folder is in memory, is a link,
    or holds pages that are not known to be this identity's.
    """
    if not identity.is_resolved:
        names = ", ".join(weights.name for weights in identity.weights if weights.version == UNRESOLVED)
        raise L3Refused(
            f"which commit of {names} the engine will get is not known before the download, so pages cannot be told "
            "from those of other weights. Download them first, or set model.revision to a commit."
        )
    folder = l3_folder(parent, identity)
    kind = filesystem_kind(parent)
    if kind in MEMORY_KINDS:
        raise L3Refused(f"{parent} is on {kind}: L3 would fill the RAM. Set l3.dir to a folder on a disk.")
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.root.mkdir(mode=0o700, exist_ok=True)
        folder.pages.mkdir(mode=0o700, exist_ok=True)
        for path in (folder.root, folder.pages):
            if path.is_symlink():
                raise L3Refused(f"{path} is a link, and cleaning it up would reach other files. Remove the link.")
        _check_marker(folder, identity)
    except OSError as error:
        raise L3Refused(f"the L3 folder {folder.root} cannot be used: {error.strerror}. Set l3.dir.") from error
    return folder


def _check_marker(folder: L3Folder, identity: L3Identity) -> None:
    advice = f"Delete {folder.root} to begin anew."
    try:
        found = msgspec.json.decode(folder.marker.read_bytes(), type=L3Identity)
    except FileNotFoundError:
        with os.scandir(folder.pages) as entries:
            is_used = next(entries, None) is not None
        if is_used:
            raise L3Refused(f"{folder.pages} holds pages but no {MARKER} says of what engine. {advice}") from None
        scratch = folder.marker.with_suffix(".tmp")
        scratch.write_bytes(msgspec.json.format(msgspec.json.encode(identity), indent=2))
        scratch.replace(folder.marker)
        return
    except msgspec.MsgspecError as error:
        raise L3Refused(f"{folder.marker} cannot be read: {error}. {advice}") from error
    if found != identity:
        ours, theirs = msgspec.to_builtins(identity), msgspec.to_builtins(found)
        changed = [f"{name} {theirs[name]!r} (now {ours[name]!r})" for name in ours if ours[name] != theirs[name]]
        raise L3Refused(f"{folder.marker} says that the pages were written with {', '.join(changed)}. {advice}")


def resolve_weights(profile: Profile, model_path: str, hub_cache: Path | None = None) -> tuple[Weights, ...]:
    """What tells the profile's weights from others: a digest for a local folder, the commit for a hub name.

    A folder's small files (``config.json``, tokenizer, index) count by content, the large ones by name, size and time
    of change, since hashing tens of gigabytes would delay each start by minutes. Blocks; raises
    :class:`~serve.errors.L3Refused` if a local path cannot be read.
    """
    revision = profile.model.revision if model_path == profile.model.path else None
    draft = profile.speculative.draft_model_path
    others = ((draft,) if draft else ()) + tuple(lora.partition("=")[2] or lora for lora in profile.model.lora)
    model = _resolve(model_path, revision, hub_cache)
    return (model, *(_resolve(path, None, hub_cache) for path in others))


def _resolve(path: str, revision: str | None, hub_cache: Path | None) -> Weights:
    folder = Path(path).expanduser()
    if folder.is_dir():
        return Weights(folder.name, _digest(folder), on_hub=False)
    if path.startswith((".", "/", "~")):
        raise L3Refused(f"there is no folder {path} with weights. Check the profile's paths.")
    version = revision if revision is not None and _COMMIT.fullmatch(revision) else None
    return Weights(path, version or _cached_commit(path, revision, hub_cache), on_hub=True)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    try:
        for file in sorted(folder.rglob("*")):
            if not file.is_file() or ".cache" in file.relative_to(folder).parts:
                continue
            at = file.stat()
            digest.update(f"{file.relative_to(folder).as_posix()}\0{at.st_size}\0".encode())
            digest.update(file.read_bytes() if at.st_size <= _SMALL_BYTES else str(at.st_mtime_ns).encode())
    except OSError as error:
        raise L3Refused(f"the weights in {folder} cannot be read: {error.strerror}. Check its rights.") from error
    return digest.hexdigest()[:24]


def _cached_commit(path: str, revision: str | None, hub_cache: Path | None) -> str:
    """The commit that a branch or tag had when it was last downloaded."""
    if hub_cache is None:
        from huggingface_hub.constants import HF_HUB_CACHE  # noqa: PLC0415 - half a second that tests need not pay

        hub_cache = Path(HF_HUB_CACHE)
    ref = hub_cache / f"models--{path.replace('/', '--')}" / "refs" / (revision or "main")
    try:
        return ref.read_text().strip() or UNRESOLVED
    except OSError:
        return UNRESOLVED
