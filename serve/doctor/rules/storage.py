"""The disk under L3: its kind, its room, and how many files it would hold."""

from __future__ import annotations

from collections.abc import Iterator

from serve.doctor.case import Case
from serve.doctor.facts import Disk, DiskKind
from serve.doctor.findings import Finding, Severity
from serve.sglang_settings import GB

_HERE = "this machine"
FILES_WARN_AT = 0.85
"""Share of the profile's ``max_files``."""


def storage_rules(case: Case) -> Iterator[Finding]:
    disk = case.facts.disk
    if case.profile.l3.backend is None or disk is None:
        return
    if not disk.writable:
        yield Finding(
            id="l3-not-writable",
            severity=Severity.ERROR,
            what=f"{disk.path} cannot be written to",
            why="nothing is stored in L3, and the engine only logs it",
            evidence=_HERE,
            cure="set l3.dir to a folder of yours",
        )
    yield from _kind(disk)
    yield from _room(case, disk)
    yield from _files(case, disk)


def _kind(disk: Disk) -> Iterator[Finding]:
    if disk.kind is DiskKind.MEMORY:
        yield Finding(
            id="l3-in-memory",
            severity=Severity.ERROR,
            what=f"{disk.path} is on {disk.filesystem}, which is RAM",
            why="L3 would take the memory that L2 and the system need, and be lost at the next start",
            evidence=f"{_HERE}; the governor refuses such a folder at the start",
            cure="set l3.dir to a folder on an NVMe drive",
        )
    elif disk.kind is DiskKind.NETWORK:
        yield Finding(
            id="l3-on-network",
            severity=Severity.WARNING,
            what=f"{disk.path} is on {disk.filesystem}",
            why="pages are read one file after another, each with a round trip: slower than a prefill, perhaps",
            evidence="SGLang mem_cache/hicache_storage.py:881-905 reads serially",
            cure="set l3.dir to a local NVMe drive",
        )
    elif disk.kind is DiskKind.ROTATING:
        yield Finding(
            id="l3-on-rotating-disk",
            severity=Severity.WARNING,
            what=f"{disk.path} is on a disk that turns",
            why="a page costs a seek of some 10 ms: 1,000 pages take longer than prefilling 64K tokens on a GPU",
            evidence="/sys/block/*/queue/rotational",
            cure="set l3.dir to an NVMe drive, or leave L3 off",
        )
    elif disk.kind in (DiskKind.SSD, DiskKind.VIRTUAL):
        yield Finding(
            id="l3-not-nvme",
            severity=Severity.INFO,
            what=f"{disk.path} is on {'flash that is not NVMe' if disk.kind is DiskKind.SSD else 'a virtual disk'}",
            why="SATA reads 0.5 GB/s; a 128K context of a 27B hybrid takes some 20 s",
            evidence="the block device's name",
            cure="set l3.dir to an NVMe drive, if there is one",
        )


def _room(case: Case, disk: Disk) -> Iterator[Finding]:
    l3 = case.profile.l3
    if disk.free_bytes is None:
        return
    spare = l3.min_free_gb * GB
    cap = l3.max_size_gb * GB if l3.max_size_gb is not None else None
    if disk.free_bytes < spare:
        yield Finding(
            id="l3-disk-full",
            severity=Severity.ERROR,
            what=f"{disk.free_bytes / GB:.0f} GB are free under {disk.path}; l3.min_free_gb is {l3.min_free_gb}",
            why="nothing is stored, and what is there is deleted to make room",
            evidence=_HERE,
            cure="free some space, or set l3.dir to another disk",
        )
    elif cap is not None and disk.free_bytes + disk.bytes < cap + spare:
        room = (disk.free_bytes + disk.bytes - spare) / GB
        yield Finding(
            id="l3-cap-over-room",
            severity=Severity.WARNING,
            what=f"l3.max_size_gb is {l3.max_size_gb}; beside l3.min_free_gb the disk has room for {room:.0f} GB",
            why="the free space is what limits L3, not the cap, and other programs fill the same disk",
            evidence=_HERE,
            cure=f"max_size_gb = {max(1, int(room * 0.9))}",
        )


def _files(case: Case, disk: Disk) -> Iterator[Finding]:
    l3 = case.profile.l3
    if disk.files > l3.max_files * FILES_WARN_AT:
        yield Finding(
            id="l3-many-files",
            severity=Severity.WARNING,
            what=f"{disk.path} holds {disk.files:,} files; l3.max_files is {l3.max_files:,}",
            why="each start lists them all, and file systems run out of index entries before space",
            evidence="a production folder with pages of one token held 268,000 to 619,000",
            cure="page_size = 64, and delete folders of settings that you no longer use",
        )
    expected = case.plan.disk.files if case.plan is not None and case.plan.disk is not None else None
    if expected is None:
        return
    page = case.profile.memory.page_size or 1
    limits = [(l3.max_files, "l3.max_files")]
    if disk.free_files is not None:
        limits.append((disk.free_files + disk.files, "the disk's index entries"))
    limit, name = min(limits)
    if expected > limit:
        yield Finding(
            id="l3-file-count",
            severity=Severity.ERROR if page < 16 else Severity.WARNING,
            what=f"a full L3 would be {expected:,} files with pages of {page}; {name} allow {limit:,}",
            why="a file for each page and rank: writes fail when no entry is left, though there is space",
            evidence="SGLang mem_cache/hicache_storage.py:822; the Tanguille/cluster field report",
            cure="page_size = 64, or a smaller max_size_gb",
        )
