"""Keeps an L3 folder within its limits: bytes, number of files, free space on the disk.

The engine has a cap of its own, per rank and in bytes only. This is the second line: it counts over all ranks, counts
files, and holds where the engine's cap does not (an engine that starts with a full folder, a cap that was lowered).

It touches regular files directly inside its own folder and nothing else: names are taken from the folder's own
descriptor, links are neither followed nor deleted, subfolders are left alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from serve.errors import L3Refused
from serve.profile.model import L3, OnL3Full
from serve.sglang_settings import GB

CHECK_EVERY_S = 30.0
WARN_AT = 0.85
"""Share of a limit at which a person is told."""
EVICT_TO = 0.9
"""Share of a limit that is kept when it was passed; the engine's own ratio."""

_log = logging.getLogger(__name__)
_HASH = re.compile(r"[0-9a-f]{16,}")
_IN_WRITING = ".tmp"


class L3Limits(msgspec.Struct, frozen=True, kw_only=True):
    max_bytes: int | None
    """Over all ranks; ``None``: only the other limits hold."""
    max_files: int
    min_free_bytes: int

    @classmethod
    def of(cls, l3: L3) -> L3Limits:
        cap = None if l3.max_size_gb is None else l3.max_size_gb * GB
        return cls(max_bytes=cap, max_files=l3.max_files, min_free_bytes=l3.min_free_gb * GB)


class L3Report(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the folder, after cleaning."""

    bytes: int
    files: int
    free_bytes: int
    evicted_files: int = 0
    evicted_bytes: int = 0
    warnings: tuple[str, ...] = ()
    """For a person: what is near or over its limit, and what was done."""
    detach: bool = False
    """The owner chose to switch L3 off instead of deleting, and a limit is passed."""


class _Page(msgspec.Struct):
    """All files of one hash: KV and state of every rank. With one of them gone the rest is of no use."""

    used_ns: int = 0
    bytes: int = 0
    names: list[str] = []


Space = Callable[[int], os.statvfs_result]


class L3Guard:
    """Guards one folder. :meth:`check` blocks: call it from a thread, one at a time."""

    def __init__(
        self, pages: Path, limits: L3Limits, on_full: OnL3Full = OnL3Full.EVICT, space: Space = os.fstatvfs
    ) -> None:
        self._pages = pages
        self._limits = limits
        self._on_full = on_full
        self._space = space

    def check(self) -> L3Report:
        """Look, and clean up if a limit is passed. Raises :class:`~serve.errors.L3Refused` if the folder is not one."""
        try:
            folder = os.open(self._pages, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise L3Refused(f"the L3 folder {self._pages} cannot be watched: {error.strerror}. Set l3.dir.") from error
        try:
            return self._checked(folder)
        finally:
            os.close(folder)

    def _checked(self, folder: int) -> L3Report:
        pages = _scan(folder)
        held = sum(page.bytes for page in pages)
        files = sum(len(page.names) for page in pages)
        free = _free_bytes(self._space(folder))
        over = self._over(held, files, free)
        if not over:
            near = self._over(held, files, free, WARN_AT)
            return L3Report(bytes=held, files=files, free_bytes=free, warnings=tuple(f"near {text}" for text in near))
        if self._on_full is OnL3Full.DETACH:
            told = tuple(f"over {text}: L3 has to be switched off, or the limit raised" for text in over)
            return L3Report(bytes=held, files=files, free_bytes=free, warnings=told, detach=True)
        gone_files, gone_bytes = self._evict(folder, pages, held, files, free)
        report = L3Report(
            bytes=held - gone_bytes,
            files=files - gone_files,
            free_bytes=_free_bytes(self._space(folder)),
            evicted_files=gone_files,
            evicted_bytes=gone_bytes,
        )
        done = f"{gone_files} files ({_gb(gone_bytes)}) that were read longest ago are deleted"
        told = tuple(f"over {text}: {done}" for text in over)
        still = self._over(report.bytes, report.files, report.free_bytes)
        told += tuple(f"still over {text}: the space is used by something else" for text in still)
        return msgspec.structs.replace(report, warnings=told)

    def _over(self, held: int, files: int, free: int, share: float = 1.0) -> list[str]:
        limits = self._limits
        found = []
        if limits.max_bytes is not None and held > limits.max_bytes * share:
            found.append(f"the size cap ({_gb(held)} of {_gb(limits.max_bytes)})")
        if files > limits.max_files * share:
            found.append(f"the file limit ({files:,} of {limits.max_files:,})")
        if free * share < limits.min_free_bytes:
            found.append(f"the free space to be left ({_gb(free)} free, {_gb(limits.min_free_bytes)} wanted)")
        return found

    def _evict(self, folder: int, pages: list[_Page], held: int, files: int, free: int) -> tuple[int, int]:
        """Delete pages, the least recently read first, until each limit has some room; what is gone."""
        limits = self._limits
        spare_bytes = 0 if limits.max_bytes is None else held - int(limits.max_bytes * EVICT_TO)
        if free < limits.min_free_bytes:
            spare_bytes = max(spare_bytes, int(limits.min_free_bytes / EVICT_TO) - free)
        over_files = files > limits.max_files
        spare_files = files - int(limits.max_files * EVICT_TO) if over_files else 0
        gone_files = gone_bytes = 0
        for page in sorted(pages, key=lambda page: page.used_ns):
            if gone_bytes >= spare_bytes and gone_files >= spare_files:
                break
            for name in page.names:
                try:
                    os.unlink(name, dir_fd=folder)
                except FileNotFoundError:
                    continue  # the engine was faster
            gone_files += len(page.names)
            gone_bytes += page.bytes
        return gone_files, gone_bytes


async def watch_l3(guard: L3Guard, on_report: Callable[[L3Report], None], every_s: float = CHECK_EVERY_S) -> None:
    """Check until cancelled; ``on_report`` is called on the loop after each look. A failed look is logged."""
    while True:
        try:
            on_report(await asyncio.to_thread(guard.check))
        except (L3Refused, OSError) as error:
            _log.warning("L3 is not watched: %s", error)
        await asyncio.sleep(every_s)


def _scan(folder: int) -> list[_Page]:
    """Files being written are left out: deleting one under the engine's hands fails its write."""
    pages: dict[str, _Page] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_IN_WRITING):
                continue
            try:
                at = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISREG(at.st_mode):
                continue
            found = _HASH.match(entry.name)
            page = pages.setdefault(found[0] if found else entry.name, _Page())
            # Most mounts update the access time once a day at the most (relatime), so a fresh write counts as use.
            page.used_ns = max(page.used_ns, at.st_atime_ns, at.st_mtime_ns)
            page.bytes += at.st_size
            page.names.append(entry.name)
    return list(pages.values())


def _free_bytes(space: os.statvfs_result) -> int:
    return space.f_bavail * space.f_frsize


def _gb(count: int) -> str:
    return f"{count / GB:.2f} GB"
