"""What kind of file system a path lies on. Linux only: read from ``/proc/self/mountinfo``."""

from __future__ import annotations

from pathlib import Path

MEMORY_KINDS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems whose files are RAM."""

_MOUNTINFO = Path("/proc/self/mountinfo")


def filesystem_kind(path: Path, mountinfo: str | None = None) -> str | None:
    """The type of the file system that ``path`` lies on or would be created on: ``ext4``, ``tmpfs``; ``None`` where the
    system does not tell. ``mountinfo`` is the text of ``/proc/self/mountinfo``, read if not given."""
    if mountinfo is None:
        try:
            mountinfo = _MOUNTINFO.read_text(errors="replace")
        except OSError:
            return None
    real = path.resolve()
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        mount, _, rest = line.partition(" - ")
        fields = mount.split()
        if len(fields) < 5 or not rest:
            continue
        point = Path(_unescaped(fields[4]))
        # Of two mounts on one point the later hides the earlier.
        if real.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), rest.split()[0])
    return best[1] if best else None


def _unescaped(point: str) -> str:
    """The kernel writes blanks and backslashes as octal."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, char)
    return point
