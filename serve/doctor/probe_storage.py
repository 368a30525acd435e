"""The disk under a folder: its kind, its room, how many files are there already."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from serve.doctor.facts import Disk, DiskKind
from serve.doctor.system import System
from serve.filesystem import MEMORY_KINDS, filesystem_kind

COUNT_LIMIT = 1_200_000
"""Files that are counted at the most: some seconds' work."""
_VIRTUAL = ("vd", "xvd", "zram", "loop")
"""Names of block devices whose ``rotational`` says nothing of the hardware."""
_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre")


def probe_disk(system: System, folder: Path) -> Disk:
    """Also for a folder that is not there yet: then of the nearest one above it. Blocks while it counts files."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    filesystem = filesystem_kind(nearest)
    free_bytes = free_files = None
    with contextlib.suppress(OSError):
        space = os.statvfs(nearest)
        free_bytes = space.f_bavail * space.f_frsize
        free_files = space.f_favail if space.f_files else None
    files = size = 0
    for entry in _files(folder):
        files += 1
        with contextlib.suppress(FileNotFoundError):
            size += entry.stat(follow_symlinks=False).st_size
        if files == COUNT_LIMIT:
            break
    return Disk(
        path=str(folder),
        exists=folder.is_dir(),
        writable=os.access(nearest, os.W_OK | os.X_OK),
        filesystem=filesystem,
        kind=_kind(system, nearest, filesystem),
        free_bytes=free_bytes,
        free_files=free_files,
        files=files,
        bytes=size,
    )


def _kind(system: System, path: Path, filesystem: str | None) -> DiskKind:
    if filesystem in MEMORY_KINDS:
        return DiskKind.MEMORY
    if filesystem is not None and filesystem.startswith(_NETWORK):
        return DiskKind.NETWORK
    try:
        device = path.stat().st_dev
    except OSError:
        return DiskKind.UNKNOWN
    return block_kind(system, os.major(device), os.minor(device))


def block_kind(system: System, major: int, minor: int) -> DiskKind:
    """Of a block device: a mapped one (LVM, LUKS, RAID) is its slowest member's, a partition its disk's."""
    node = system.real(f"/sys/dev/block/{major}:{minor}")
    if node is None:
        return DiskKind.UNKNOWN
    below = system.names(f"{node}/slaves")
    if below:
        kinds = [_disk_kind(system, system.real(f"{node}/slaves/{name}") or "") for name in below]
        slowest_first = (DiskKind.ROTATING, DiskKind.UNKNOWN, DiskKind.VIRTUAL, DiskKind.SSD, DiskKind.NVME)
        return next(kind for kind in slowest_first if kind in kinds)
    return _disk_kind(system, node)


def _disk_kind(system: System, node: str) -> DiskKind:
    for path in (node, node.rpartition("/")[0]):
        rotating = system.read(f"{path}/queue/rotational")
        name = path.rpartition("/")[2]
        if rotating is None:
            continue
        if name.startswith(_VIRTUAL):
            return DiskKind.VIRTUAL
        if rotating == "1":
            return DiskKind.ROTATING
        return DiskKind.NVME if name.startswith("nvme") else DiskKind.SSD
    return DiskKind.UNKNOWN


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Regular files at any depth; links are not followed."""
    try:
        entries = os.scandir(folder)
    except OSError:
        return
    with entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                yield entry
