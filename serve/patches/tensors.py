"""Names of the tensors in a folder of safetensors files, from their headers alone."""

from __future__ import annotations

import json
from pathlib import Path

_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


def tensor_names(folder: Path, prefix: str) -> tuple[str, ...]:
    """Sorted. A file that is not whole, or is none of that format, counts as empty: a download may be under way."""
    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        names.update(name for name in _header(path) if name.startswith(prefix))
    return tuple(sorted(names))


def _header(path: Path) -> tuple[str, ...]:
    """The format: a little-endian 64-bit length, then that many bytes of JSON whose keys are the names."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if length > MAX_HEADER_BYTES:
                return ()
            header = json.loads(stream.read(length))
    except (OSError, ValueError, RecursionError):
        return ()
    return tuple(header) if isinstance(header, dict) else ()
