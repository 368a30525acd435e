"""The doctor's probes: on copies of other machines' file systems and tools, and on this machine as it is."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from serve.doctor import probe_gpus, survey
from serve.doctor.facts import DiskKind
from serve.doctor.probe_host import probe_host, probe_installed, probe_ports
from serve.doctor.probe_storage import block_kind, probe_disk
from serve.doctor.system import LocalSystem
from serve.profile.model import Platform

NVIDIA_SMI = """#!/bin/sh
case "$1" in
  --query-gpu=*) echo "NVIDIA GeForce RTX 5090, 32607, 12.0, 581.29, 5, 8, 16"
                 echo "NVIDIA H200, 143771, 9.0, 581.29, [N/A], [N/A], [N/A]" ;;
  *) echo "| NVIDIA-SMI 581.29    Driver Version: 581.29    CUDA Version: 13.0     |" ;;
esac
"""


def write(root: Path, path: str, text: str) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n")


def link(root: Path, path: str, to: str) -> None:
    source = root / path.lstrip("/")
    source.parent.mkdir(parents=True, exist_ok=True)
    target = root / to.lstrip("/")
    target.mkdir(parents=True, exist_ok=True)
    source.symlink_to(os.path.relpath(target, source.parent))


def radeon(root: Path) -> None:
    """A Radeon in an x8 slot, behind the two bridges on its own board, and a processor's node beside it."""
    slot = "/sys/devices/pci0000:00/0000:00:01.1"
    device = f"{slot}/0000:01:00.0/0000:02:00.0/0000:03:00.0"
    for path, width, rate in (
        (slot, "8", "32.0 GT/s PCIe"),
        (f"{slot}/0000:01:00.0", "8", "16.0 GT/s PCIe"),
        (f"{slot}/0000:01:00.0/0000:02:00.0", "16", "16.0 GT/s PCIe"),
        (device, "16", "16.0 GT/s PCIe"),
    ):
        write(root, f"{path}/current_link_width", width)
        write(root, f"{path}/max_link_width", "16")
        write(root, f"{path}/max_link_speed", rate)
    write(root, f"{device}/mem_info_vram_total", str(24 << 30))
    write(root, f"{device}/product_name", "Radeon RX 7900 XTX")
    link(root, "/sys/class/drm/renderD128/device", device)
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    write(root, f"{nodes}/0/properties", "cpu_cores_count 12\ngfx_target_version 0")
    write(root, f"{nodes}/1/properties", "simd_count 192\ngfx_target_version 110000\ndrm_render_minor 128")
    write(root, "/dev/kfd", "")
    write(root, "/opt/rocm/.info/version", "7.2.0-43")
    write(root, "/sys/module/amdgpu/version", "6.16.6")


def test_a_radeon_is_read_from_the_kernel(tmp_path: Path) -> None:
    radeon(tmp_path)
    gpus = probe_gpus(LocalSystem(tmp_path, search_path=""))
    (gpu,) = gpus.found
    assert (gpu.name, gpu.platform, gpu.arch, gpu.memory_bytes) == (
        "Radeon RX 7900 XTX",
        Platform.ROCM,
        "gfx1100",
        24 << 30,
    )
    # The card itself says x16; its slot has 8 lanes.
    assert gpu.link is not None
    assert (gpu.link.generation, gpu.link.width, gpu.link.max_width) == (4, 8, 16)
    assert gpu.link.bytes_per_s == pytest.approx(15.75e9, rel=0.01)
    assert (gpus.driver, gpus.rocm, gpus.cuda, gpus.problems) == ("6.16.6", "7.2.0-43", None, ())


@pytest.mark.parametrize(("target", "arch"), [(90010, "gfx90a"), (100306, "gfx1036"), (120001, "gfx1201")])
def test_architectures_as_the_toolchain_names_them(tmp_path: Path, target: int, arch: str) -> None:
    write(tmp_path, "/sys/class/kfd/kfd/topology/nodes/0/properties", f"gfx_target_version {target}")
    (gpu,) = probe_gpus(LocalSystem(tmp_path, search_path="")).found
    assert (gpu.arch, gpu.memory_bytes, gpu.link) == (arch, None, None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_a_device_of_other_users_is_told(tmp_path: Path) -> None:
    radeon(tmp_path)
    (tmp_path / "dev" / "kfd").chmod(0)
    assert "render" in probe_gpus(LocalSystem(tmp_path, search_path="")).problems[0]


def test_nvidia_is_asked_by_its_own_tool(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    write(tmp_path, "/bin/nvidia-smi", NVIDIA_SMI)
    tool.chmod(0o755)
    gpus = probe_gpus(LocalSystem(tmp_path, search_path=str(tool.parent)))
    consumer, server = gpus.found
    assert (consumer.name, consumer.arch, consumer.memory_bytes) == ("NVIDIA GeForce RTX 5090", "sm_120", 32607 << 20)
    assert consumer.link is not None
    assert (consumer.link.width, consumer.link.max_width) == (8, 16)
    assert consumer.link.bytes_per_s == pytest.approx(31.5e9, rel=0.01)
    assert (server.arch, server.link) == ("sm_90", None)
    assert (gpus.driver, gpus.cuda) == ("581.29", "13.0")


def test_a_tool_that_fails_is_no_gpu(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    write(tmp_path, "/bin/nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9")
    tool.chmod(0o755)
    write(tmp_path, "/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de")
    write(tmp_path, "/sys/bus/pci/devices/0000:01:00.0/class", "0x030000")
    write(tmp_path, "/sys/bus/pci/devices/0000:02:00.0/vendor", "0x1002")
    write(tmp_path, "/sys/bus/pci/devices/0000:02:00.0/class", "0x030000")
    gpus = probe_gpus(LocalSystem(tmp_path, search_path=str(tool.parent)))
    assert gpus.found == ()
    assert "nvidia-smi" in gpus.problems[0]
    assert "amdgpu" in gpus.problems[1]


def test_a_tool_that_is_no_program_is_none(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    write(tmp_path, "/bin/nvidia-smi", "no program")
    tool.chmod(0o755)
    assert LocalSystem(tmp_path, search_path=str(tool.parent)).run(["nvidia-smi"]) is None


def test_a_containers_limit_is_its_memory(tmp_path: Path) -> None:
    write(tmp_path, "/proc/meminfo", "MemTotal:  64000000 kB\nMemAvailable:  60000000 kB")
    write(tmp_path, "/proc/cpuinfo", "processor : 0\nflags\t\t: sse2 fma avx2")
    write(tmp_path, "/sys/fs/cgroup/memory.max", "max")
    system = LocalSystem(tmp_path)
    host = probe_host(system)
    assert (host.ram_bytes, host.available_bytes) == (64_000_000 << 10, 60_000_000 << 10)
    assert host.cpu_flags == ("avx2", "fma", "sse2")
    write(tmp_path, "/sys/fs/cgroup/memory.max", str(8 << 30))
    host = probe_host(system)
    assert (host.ram_bytes, host.available_bytes) == (8 << 30, 8 << 30)


@pytest.mark.parametrize(
    ("name", "rotating", "kind"),
    [
        ("nvme0n1", "0", DiskKind.NVME),
        ("sda", "0", DiskKind.SSD),
        ("sdb", "1", DiskKind.ROTATING),
        ("vda", "1", DiskKind.VIRTUAL),
    ],
)
def test_kinds_of_disks(tmp_path: Path, name: str, rotating: str, kind: DiskKind) -> None:
    disk = f"/sys/devices/pci0000:00/block/{name}"
    write(tmp_path, f"{disk}/queue/rotational", rotating)
    link(tmp_path, "/sys/dev/block/259:2", f"{disk}/{name}p2")
    system = LocalSystem(tmp_path)
    assert block_kind(system, 259, 2) is kind
    assert block_kind(system, 8, 0) is DiskKind.UNKNOWN
    link(tmp_path, "/sys/dev/block/253:0", "/sys/devices/virtual/block/dm-0")
    link(tmp_path, "/sys/devices/virtual/block/dm-0/slaves/part", f"{disk}/{name}p2")
    assert block_kind(system, 253, 0) is kind


def test_files_of_a_folder_are_counted(tmp_path: Path) -> None:
    pages = tmp_path / "l3" / "abc" / "pages"
    pages.mkdir(parents=True)
    for at in range(5):
        (pages / f"{at}.bin").write_bytes(b"x" * 100)
    (pages / "link").symlink_to(pages / "0.bin")
    disk = probe_disk(LocalSystem(), tmp_path / "l3")
    assert (disk.files, disk.bytes, disk.exists, disk.writable) == (5, 500, True, True)
    assert disk.free_bytes
    missing = probe_disk(LocalSystem(), tmp_path / "no" / "such")
    assert (missing.exists, missing.files, missing.filesystem) == (False, 0, disk.filesystem)


def test_memory_is_no_disk() -> None:
    shared = Path("/dev/shm")  # noqa: S108 - it is only looked at
    if not shared.is_dir():
        pytest.skip("there is no /dev/shm")
    assert probe_disk(LocalSystem(), shared / "l3").kind is DiskKind.MEMORY


def test_a_port_in_use_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        assert [port.free for port in probe_ports({taken: "x"})] == [False]
    assert [port.free for port in probe_ports({taken: "x"})] == [True]


def test_versions_of_another_interpreter_are_asked_for() -> None:
    here = probe_installed(LocalSystem(), sys.executable)
    assert here.sglang == probe_installed(LocalSystem()).sglang
    assert probe_installed(LocalSystem(), "/no/such/python").sglang is None


def test_this_machine(tmp_path: Path) -> None:
    facts = survey(probe_gpus(LocalSystem()), l3_folder=tmp_path / "l3", ports={})
    assert facts.host.ram_bytes is not None
    assert facts.host.available_bytes is not None
    assert facts.host.available_bytes <= facts.host.ram_bytes
    assert facts.host.cpu_flags
    assert facts.disk is not None
    assert facts.disk.filesystem
    assert facts.installed.governor
