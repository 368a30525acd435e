"""Files of weights on disk: is this one GGUF, and is it still the one that was verified?

A hash over gigabytes takes seconds, so the result is remembered beside the file, with size and modification time.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from serve.embedded.progress import Progress
from serve.errors import BadModelSource, WeightsCorrupt

_MAGIC = b"GGUF"  # ggml's docs/gguf.md; a 32-bit version follows
_CHUNK_BYTES = 1024 * 1024
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class Verified(msgspec.Struct, frozen=True):
    """What was found when the whole file was last read."""

    size: int
    mtime_ns: int
    sha256: str


def check_gguf(path: Path) -> None:
    """Raises :class:`BadModelSource` unless ``path`` is a readable file that begins as GGUF does."""
    try:
        if path.is_dir():
            raise BadModelSource(f"{path} is a folder. Give the GGUF file in it.")
        with path.open("rb") as file:
            head = file.read(8)
    except FileNotFoundError as missing:
        raise BadModelSource(f"There is no file {path}. Check the path, or give hf:OWNER/REPO.") from missing
    except OSError as problem:
        raise BadModelSource(f"Cannot read {path}: {problem.strerror}.") from problem
    if head[:4] != _MAGIC or len(head) < 8:
        kind = "is empty" if not head else f"begins with {head[:4]!r}"
        raise BadModelSource(f"{path} is not a GGUF file: it {kind}. Safetensors and PyTorch files must be converted.")
    version = int.from_bytes(head[4:8], "little")
    if not 2 <= version <= 3:
        raise BadModelSource(f"{path} is GGUF version {version}; the engine reads 2 and 3. Convert it anew.")


def shard_names(name: str) -> list[str]:
    """All files of a model split as ``NAME-00001-of-00003.gguf``; ``[name]`` when it is not split."""
    match = _SHARD.search(name)
    if match is None:
        return [name]
    count = int(match.group(2))
    return [f"{name[: match.start()]}-{index:05d}-of-{count:05d}.gguf" for index in range(1, count + 1)]


def is_later_shard(name: str) -> bool:
    """True for all shards but the first, which stands for the model."""
    match = _SHARD.search(name)
    return match is not None and int(match.group(1)) != 1


def model_id(path: Path) -> str:
    """Name of a model after its file: without the ending and the shard's number."""
    return _SHARD.sub("", path.name).removesuffix(".gguf")


def is_verified(path: Path, sha256: str) -> bool:
    """True if the file is as it was when its hash was found to be ``sha256``. Does not read the file."""
    try:
        known = msgspec.json.decode(_note_path(path).read_bytes(), type=Verified)
        stat = path.stat()
    except (OSError, msgspec.MsgspecError):
        return False
    return known == Verified(stat.st_size, stat.st_mtime_ns, sha256)


def remember_verified(path: Path, sha256: str) -> None:
    stat = path.stat()
    _note_path(path).write_bytes(msgspec.json.encode(Verified(stat.st_size, stat.st_mtime_ns, sha256)))


def verify(path: Path, sha256: str, progress: Progress) -> None:
    """Read the whole file and remember the result. Raises :class:`WeightsCorrupt`; the file stays where it is."""
    check_sha256(path, sha256, progress)
    remember_verified(path, sha256)


def check_sha256(path: Path, sha256: str, progress: Progress) -> None:
    """Read the whole file. Raises :class:`WeightsCorrupt`."""
    total_bytes = path.stat().st_size
    progress.started(f"checking {path.name}", total_bytes)
    digest = hashlib.sha256()
    done_bytes = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                done_bytes += len(chunk)
                progress.moved(done_bytes, total_bytes)
    finally:
        progress.finished()
    if digest.hexdigest() != sha256:
        raise WeightsCorrupt(
            f"{path} is damaged: its sha256 is {digest.hexdigest()}, it should be {sha256}. Delete it and start again."
        )


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified")
