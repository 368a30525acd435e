"""W42 l3-growth: the folder of pages stays within its limits, and nothing outside it is touched."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from serve.errors import L3Refused
from serve.filesystem import filesystem_kind
from serve.l3 import L3Identity, Weights, claim_l3, l3_identity
from serve.l3_guard import L3Guard, L3Limits, L3Report, watch_l3
from serve.profile import load_profile
from serve.profile.model import OnL3Full

QUOTA = 64_000
PAGE = 1000
LIMITS = L3Limits(max_bytes=QUOTA, max_files=10_000, min_free_bytes=0)


def write_page(folder: Path, number: int, used: int, size: int = PAGE) -> Path:
    """A page of two ranks as SGLang's file backend names it, last used at ``used`` (Unix seconds)."""
    for rank in (0, 1):
        path = folder / f"{number:064x}_model_{rank}_2.bin"
        path.write_bytes(b"x" * (size // 2))
        os.utime(path, (used, used))
    return path


def numbers(folder: Path) -> set[int]:
    return {int(path.name[:64], 16) for path in folder.glob("*.bin")}


def total(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file() and not path.is_symlink())


def test_a_full_folder_is_brought_under_its_cap_by_what_was_read_longest_ago(tmp_path: Path) -> None:
    for number in range(100):
        write_page(tmp_path, number, used=1_000_000 + number)
    os.utime(tmp_path / f"{0:064x}_model_1_2.bin", (2_000_000, 1_000_000))  # read again since
    report = L3Guard(tmp_path, LIMITS).check()
    assert total(tmp_path) == report.bytes <= QUOTA * 0.9
    assert numbers(tmp_path) == {0, *range(100 - 56, 100)}
    assert report.evicted_files == 2 * 43
    assert report.warnings == (
        "over the size cap (0.00 GB of 0.00 GB): 86 files (0.00 GB) that were read longest ago are deleted",
    )
    assert L3Guard(tmp_path, LIMITS).check().evicted_files == 0


def test_pages_lose_all_ranks_together(tmp_path: Path) -> None:
    for number in range(80):
        write_page(tmp_path, number, used=1_000_000 + number)
    L3Guard(tmp_path, LIMITS).check()
    names = [path.name for path in tmp_path.iterdir()]
    assert {name[:64] for name in names if "_0_2" in name} == {name[:64] for name in names if "_1_2" in name}


def test_links_subfolders_and_files_in_writing_are_left_alone(tmp_path: Path) -> None:
    pages, outside = tmp_path / "pages", tmp_path / "outside"
    pages.mkdir()
    outside.mkdir()
    precious = outside / "precious.bin"
    precious.write_bytes(b"p" * 500_000)
    (pages / f"{1:064x}_link.bin").symlink_to(precious)
    (pages / "folder-link").symlink_to(outside)
    (pages / "sub").mkdir()
    (pages / "sub" / "deep.bin").write_bytes(b"d" * 500_000)
    (pages / ".abc.tmp").write_bytes(b"t" * 500_000)
    for number in range(100, 200):
        write_page(pages, number, used=1_000_000 + number)
    report = L3Guard(pages, LIMITS).check()
    assert report.bytes <= QUOTA
    assert precious.read_bytes() == b"p" * 500_000
    assert {path.name for path in pages.iterdir() if not path.name.endswith("_2.bin")} == {
        f"{1:064x}_link.bin",
        "folder-link",
        "sub",
        ".abc.tmp",
    }
    assert (pages / "sub" / "deep.bin").exists()


def test_a_folder_that_is_a_link_is_not_cleaned(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    for number in range(100):
        write_page(real, number, used=1)
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(L3Refused, match="cannot be watched"):
        L3Guard(tmp_path / "link", LIMITS).check()
    assert len(numbers(real)) == 100


def test_too_many_files_are_thinned_out(tmp_path: Path) -> None:
    for number in range(100):
        write_page(tmp_path, number, used=1_000_000 + number, size=2)
    limits = L3Limits(max_bytes=None, max_files=100, min_free_bytes=0)
    report = L3Guard(tmp_path, limits).check()
    assert report.files == len(list(tmp_path.iterdir())) == 90
    assert numbers(tmp_path) == set(range(55, 100))
    assert "the file limit (200 of 100)" in report.warnings[0]


def test_a_disk_that_runs_full_is_relieved_and_what_cannot_be_is_told(tmp_path: Path) -> None:
    for number in range(10):
        write_page(tmp_path, number, used=1_000_000 + number)
    real = os.statvfs(tmp_path)
    free = 50_000

    def space(_folder: int) -> os.statvfs_result:
        fields = list(real)
        fields[1] = 1  # f_frsize
        fields[4] = free - total(tmp_path)  # f_bavail
        return os.statvfs_result(fields)

    roomy = L3Limits(max_bytes=None, max_files=1000, min_free_bytes=42_000)
    report = L3Guard(tmp_path, roomy, space=space).check()
    assert report.free_bytes >= 42_000
    assert 0 < len(numbers(tmp_path)) < 10
    hopeless = L3Limits(max_bytes=None, max_files=1000, min_free_bytes=60_000)
    report = L3Guard(tmp_path, hopeless, space=space).check()
    assert report.files == 0
    assert "used by something else" in report.warnings[-1]


def test_near_a_limit_a_person_is_warned_and_nothing_is_deleted(tmp_path: Path) -> None:
    for number in range(60):
        write_page(tmp_path, number, used=1)
    report = L3Guard(tmp_path, LIMITS).check()
    assert report.evicted_files == 0
    assert report.warnings == ("near the size cap (0.00 GB of 0.00 GB)",)


def test_where_the_owner_chose_so_l3_is_switched_off_instead(tmp_path: Path) -> None:
    for number in range(100):
        write_page(tmp_path, number, used=1)
    report = L3Guard(tmp_path, LIMITS, OnL3Full.DETACH).check()
    assert report.detach
    assert len(numbers(tmp_path)) == 100


async def test_an_engine_that_goes_on_writing_is_kept_under_the_cap(tmp_path: Path) -> None:
    told: list[L3Report] = []
    watch = asyncio.create_task(watch_l3(L3Guard(tmp_path, LIMITS), told.append, every_s=0.01))
    try:
        for number in range(300):
            write_page(tmp_path, number, used=1_000_000 + number)
            if number % 20 == 0:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            while not told or told[-1].bytes != total(tmp_path) or told[-1].bytes > QUOTA:  # noqa: ASYNC110 - a disk
                await asyncio.sleep(0.01)
    finally:
        watch.cancel()
    assert 299 in numbers(tmp_path)
    assert any(report.evicted_files and report.warnings for report in told)


def identity() -> L3Identity:
    return l3_identity(load_profile("rx7900xtx-tp2"), "0.5.23", (Weights("w", "1", on_hub=False),))


def test_a_folder_in_memory_is_refused() -> None:
    memory = next((path for path in (Path("/dev/shm"), Path("/run")) if filesystem_kind(path) == "tmpfs"), None)  # noqa: S108
    if memory is None:
        pytest.skip("this machine has no tmpfs")
    with pytest.raises(L3Refused, match="L3 would fill the RAM"):
        claim_l3(memory / "governor-test-l3", identity())
    assert not (memory / "governor-test-l3").exists()


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "ext4"), ("/srv/a b/x", "xfs"), ("/srv", "ext4"), ("/tmp/x", "tmpfs"), ("/tmpfoo", "ext4")],  # noqa: S108
)
def test_the_file_system_is_that_of_the_longest_mount(path: str, kind: str) -> None:
    mounts = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "23 22 8:2 / /srv/a\\040b rw - xfs /dev/sdb1 rw\n"
        "24 22 8:2 / /tmp rw - ext4 /dev/sdc1 rw\n"
        "25 22 0:30 / /tmp rw,nosuid master:2 - tmpfs tmpfs rw\n"
        "a line that is none\n"
    )
    assert filesystem_kind(Path(path), mounts) == kind
