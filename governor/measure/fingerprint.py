"""A name for the weights that were measured. Reading all of 20 GB would take longer than most suites."""

from __future__ import annotations

import hashlib
from pathlib import Path

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
_EDGE_BYTES = 1 << 20
_SMALL_BYTES = 4 << 20


def model_hash(place: str) -> str | None:
    """Of a file, or of a folder's configuration and weights: names, sizes, the first and last MiB of each, all of what
    is small. ``None`` where it cannot be read from here."""
    root = Path(place)
    if not place or not root.exists():
        return None
    if root.is_dir():
        files = sorted(each for each in root.iterdir() if each.suffix in (*_WEIGHTS, ".json") and each.is_file())
    else:
        files = [root]
    if not files:
        return None
    digest = hashlib.sha256()
    try:
        for file in files:
            _add(digest, file)
    except OSError:
        return None
    return f"sha256:{digest.hexdigest()[:32]}"


def _add(digest: hashlib._Hash, file: Path) -> None:
    size = file.stat().st_size
    digest.update(f"{file.name} {size}\n".encode())
    with file.open("rb") as source:
        if size <= _SMALL_BYTES:
            digest.update(source.read())
            return
        digest.update(source.read(_EDGE_BYTES))
        source.seek(-_EDGE_BYTES, 2)
        digest.update(source.read(_EDGE_BYTES))
