"""Rules of the doctor: a good machine has nothing to mend, and each fault is found, graded and cured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from serve.doctor import Case, Facts, Finding, Severity, diagnose, suggested_profile
from serve.doctor.facts import DiskKind, Gpu, Gpus, Link, Port
from serve.plan import Demand, Plan, PlanInputs, make_plan
from serve.plan.known import QWEN_27B
from serve.profile import Profile, load_profile, shipped_names
from serve.profile.model import Platform
from serve.sglang_settings import GB
from serve.unsafe import ALL
from tests.doctor import IGPU, NVME, RTX5090, XTX, case, changed, machine

ROOT = Path(__file__).parents[2]
XTX_PROFILE = changed(load_profile("rx7900xtx-tp2"), memory={"mem_fraction_static": 0.9})
GOOD = machine(XTX, XTX)


def planned(profile: Profile, *demands: Demand) -> Plan:
    return make_plan(profile, QWEN_27B, PlanInputs(weight_bytes=QWEN_27B.weight_bytes(4.156)), demands)


def found(profile: Profile, facts: Facts, plan: Plan | None = None) -> dict[str, Finding]:
    return {finding.id: finding for finding in diagnose(case(profile, facts, plan))}


def test_a_good_machine_has_nothing_to_mend() -> None:
    findings = diagnose(case(XTX_PROFILE, GOOD, planned(XTX_PROFILE)))
    assert [finding for finding in findings if finding.severity is not Severity.INFO] == []


def test_the_gravest_come_first() -> None:
    findings = diagnose(case(load_profile("rx7900xtx-tp2"), machine(disk=None, ram_bytes=30 << 30, shm_bytes=1 << 26)))
    grades = [finding.severity for finding in findings]
    assert grades[0] is Severity.ERROR
    assert Severity.WARNING in grades
    assert grades == sorted(grades, key=[Severity.ERROR, Severity.WARNING, Severity.INFO].index)


def with_disk(**fields: Any) -> Facts:
    return machine(XTX, XTX, disk=msgspec.structs.replace(NVME, **fields))


def with_link(width: int, bytes_per_s: float | None) -> Gpu:
    return msgspec.structs.replace(XTX, link=Link(generation=3, width=width, max_width=16, bytes_per_s=bytes_per_s))


@pytest.mark.parametrize(
    ("facts", "finding_id", "severity", "said"),
    [
        (machine(), "no-gpu", Severity.ERROR, "needs 2"),
        (machine(XTX), "too-few-gpus", Severity.ERROR, "is for 2 GPUs of kind gfx1100"),
        (machine(RTX5090, RTX5090), "too-few-gpus", Severity.ERROR, "RTX 5090 (sm_120)"),
        (machine(XTX, XTX, IGPU), "other-gpus-visible", Severity.WARNING, "Ryzen graphics"),
        (
            machine(*[msgspec.structs.replace(XTX, memory_bytes=20 << 30)] * 2),
            "less-gpu-memory",
            Severity.WARNING,
            "20.0 GiB",
        ),
        (machine(with_link(4, 3.9e9), XTX), "narrow-link", Severity.WARNING, "PCIe 3.0 x4 of x16, 3.9 GB/s"),
        (machine(with_link(8, 7.9e9), XTX), "narrow-link", Severity.INFO, "x8 of x16"),
        (machine(XTX, XTX, ram_bytes=32 << 30), "host-pools-over-ram", Severity.ERROR, "20 GB on each of 2 ranks"),
        (machine(XTX, XTX, ram_bytes=42 << 30), "host-pools-over-ram", Severity.WARNING, "45 GB of RAM"),
        (machine(XTX, XTX, shm_bytes=64 << 20), "small-shm", Severity.WARNING, "64 MiB"),
        (
            machine(XTX, XTX, ports=(Port(port=30000, purpose="the engine", free=False),)),
            "port-taken",
            Severity.WARNING,
            "30000",
        ),
        (with_disk(writable=False), "l3-not-writable", Severity.ERROR, "/var/lib/l3"),
        (with_disk(kind=DiskKind.MEMORY, filesystem="tmpfs"), "l3-in-memory", Severity.ERROR, "tmpfs"),
        (with_disk(kind=DiskKind.NETWORK, filesystem="nfs4"), "l3-on-network", Severity.WARNING, "nfs4"),
        (with_disk(kind=DiskKind.ROTATING), "l3-on-rotating-disk", Severity.WARNING, "turns"),
        (with_disk(kind=DiskKind.SSD), "l3-not-nvme", Severity.INFO, "not NVMe"),
        (with_disk(kind=DiskKind.VIRTUAL), "l3-not-nvme", Severity.INFO, "virtual disk"),
        (with_disk(free_bytes=10 * GB), "l3-disk-full", Severity.ERROR, "10 GB are free"),
        (with_disk(free_bytes=100 * GB), "l3-cap-over-room", Severity.WARNING, "has room for 80 GB"),
        (with_disk(files=900_000), "l3-many-files", Severity.WARNING, "900,000"),
        (with_disk(free_files=1000), "l3-file-count", Severity.WARNING, "allow 1,000"),
    ],
)
def test_faults_of_a_machine(facts: Facts, finding_id: str, severity: Severity, said: str) -> None:
    finding = found(XTX_PROFILE, facts, planned(XTX_PROFILE))[finding_id]
    assert finding.severity is severity
    assert said in finding.what
    assert finding_id not in found(XTX_PROFILE, GOOD, planned(XTX_PROFILE))


def test_what_l3_holds_already_counts_as_room() -> None:
    full = with_disk(free_bytes=30 * GB, bytes=190 * GB)
    assert "l3-cap-over-room" not in found(XTX_PROFILE, full)


@pytest.mark.parametrize(
    ("sections", "finding_id", "severity"),
    [
        ({"hicache": {"io_backend": "kernel"}}, "hybrid-kernel-io", Severity.ERROR),
        ({"hicache": {"mem_layout": "layer_first"}}, "hybrid-layer-first", Severity.ERROR),
        ({"mamba": {"max_cache_size": 20}}, "slots-cap-requests", Severity.ERROR),
        ({"mamba": {"max_cache_size": 20}}, "requests-capped", Severity.WARNING),
        ({"memory": {"chunked_prefill_size": 1024}}, "fewer-states-than-chunks", Severity.WARNING),
        ({"memory": {"page_size": 1}}, "l3-page-of-one", Severity.ERROR),
        ({"memory": {"page_size": 1}}, "l3-file-count", Severity.ERROR),
        ({"memory": {"page_size": 128}}, "page-over-grid", Severity.WARNING),
        ({"memory": {"max_running_requests": None}}, "requests-unset", Severity.WARNING),
        ({"mamba": {"max_cache_size": None}}, "slots-unset", Severity.WARNING),
        ({"memory": {"mem_fraction_static": None}}, "window-over-l1", Severity.WARNING),
        ({"hicache": {"size_gb": 4}}, "window-over-l2", Severity.WARNING),
        ({"hicache": {"write_policy": "write_back"}}, "write-back-l3", Severity.WARNING),
        ({"l3": {"prefetch_policy": "timeout"}}, "l3-prefetch-cut", Severity.WARNING),
        ({"scheduling": {"mixed_chunk": True}}, "mixed-chunk-untested", Severity.WARNING),
        ({"reporting": {"metrics": False}}, "no-metrics", Severity.WARNING),
        ({"reporting": {"cache_report": False}}, "no-cache-report", Severity.WARNING),
        ({"reporting": {"kv_events": False}}, "no-kv-events", Severity.WARNING),
        ({"reporting": {"plugin": False}}, "no-plugin", Severity.WARNING),
        ({"versions": {"oldest": "0.5.17", "newest": "0.5.20"}}, "sglang-version", Severity.ERROR),
    ],
)
def test_faults_of_a_profile(sections: dict[str, dict[str, object]], finding_id: str, severity: Severity) -> None:
    profile = changed(XTX_PROFILE, **sections)
    assert found(profile, GOOD, planned(profile))[finding_id].severity is severity
    assert finding_id not in found(XTX_PROFILE, GOOD, planned(XTX_PROFILE))


def test_fp8_and_hicache_on_sm_120_is_found_by_the_card_that_is_there() -> None:
    """The profile for any NVIDIA card does not name an architecture."""
    profile = changed(load_profile("nvidia-single"), model={"kv_cache_dtype": "fp8_e4m3"})
    assert found(profile, machine(RTX5090))["sm120-fp8-hicache"].severity is Severity.ERROR
    hopper = msgspec.structs.replace(RTX5090, arch="sm_90", memory_bytes=80 << 30)
    assert "sm120-fp8-hicache" not in found(profile, machine(hopper))


def test_a_danger_that_the_owner_takes_on_is_still_told() -> None:
    profile = msgspec.structs.replace(
        changed(XTX_PROFILE, hicache={"io_backend": "kernel"}), accept_unsafe=("hybrid-kernel-io",)
    )
    finding = found(profile, GOOD)["hybrid-kernel-io"]
    assert finding.severity is Severity.WARNING
    assert "accept_unsafe" in finding.what


def test_every_danger_that_applies_is_told() -> None:
    profile = changed(
        XTX_PROFILE, hicache={"io_backend": "kernel", "mem_layout": "layer_first"}, l3={"max_size_gb": None}
    )
    applying = {danger.id for danger in ALL if danger.applies(profile, "0.5.23")}
    assert len(applying) >= 3
    assert applying <= found(profile, GOOD).keys()


def test_four_agents_of_the_incident_are_over_capacity() -> None:
    agents = [Demand(name=f"agent {at}", ceiling_tokens=127_795) for at in range(4)]
    finding = found(XTX_PROFILE, GOOD, planned(XTX_PROFILE, *agents))["working-set-over-capacity"]
    assert finding.severity is Severity.WARNING
    assert "511,180" in finding.what
    few = found(XTX_PROFILE, GOOD, planned(XTX_PROFILE, *agents[:3]))["working-set-over-capacity"]
    assert few.severity is Severity.INFO
    assert "host memory" in few.why
    huge = found(XTX_PROFILE, GOOD, planned(XTX_PROFILE, Demand(name="hog", ceiling_tokens=10**6)))
    assert "hog" in huge["ceiling-over-l1"].what


def test_no_plan_is_an_error_where_the_gpus_are_there() -> None:
    told = {f.id: f for f in diagnose(Case(facts=GOOD, profile=XTX_PROFILE, plan_problem="does not fit"))}
    assert told["no-plan"].severity is Severity.ERROR
    away = {f.id: f for f in diagnose(Case(facts=machine(), profile=XTX_PROFILE, plan_problem="unknown"))}
    assert away["no-plan"].severity is Severity.WARNING


def test_a_gpu_that_does_not_answer_is_told() -> None:
    facts = msgspec.structs.replace(machine(), gpus=Gpus(problems=("/dev/kfd cannot be opened",)))
    assert found(XTX_PROFILE, facts)["gpu-unreachable"].severity is Severity.ERROR
    assert found(load_profile("embedded"), facts)["gpu-unreachable"].severity is Severity.WARNING


@pytest.mark.parametrize(
    ("host", "finding_id"),
    [
        ({"cpu_flags": ("sse2",)}, "cpu-lacks-instructions"),
        ({"system": "darwin"}, "no-embedded-engine"),
        ({"machine": "aarch64"}, "no-embedded-engine"),
    ],
)
def test_what_the_embedded_engine_needs(host: dict[str, Any], finding_id: str) -> None:
    assert found(load_profile("embedded"), machine(**host))[finding_id].severity is Severity.ERROR
    good = diagnose(case(load_profile("embedded"), machine()))
    assert [finding.id for finding in good] == ["no-gpu"]
    assert good[0].severity is Severity.INFO


def test_the_embedded_engine_itself() -> None:
    facts = machine()
    without = msgspec.structs.replace(facts, installed=msgspec.structs.replace(facts.installed, llamacpp=None))
    assert found(load_profile("embedded"), without)["embedded-engine-missing"].severity is Severity.ERROR


def test_sglang_on_a_processor_needs_ram() -> None:
    told = found(load_profile("sglang-cpu"), machine(available_bytes=1 << 30))
    assert told["little-ram"].severity is Severity.WARNING
    assert told["no-gpu"].severity is Severity.INFO


def test_an_engine_that_is_not_there_is_no_fault() -> None:
    facts = msgspec.structs.replace(GOOD, installed=msgspec.structs.replace(GOOD.installed, sglang=None))
    assert found(XTX_PROFILE, facts)["sglang-not-found"].severity is Severity.INFO


@pytest.mark.parametrize(
    ("gpus", "name"),
    [
        ((), "embedded"),
        ((XTX, XTX), "rx7900xtx-tp2"),
        ((XTX, XTX, IGPU), "rx7900xtx-tp2"),
        ((XTX,), "embedded"),
        ((RTX5090,), "rtx5090-32g"),
        ((Gpu(name="H200", platform=Platform.CUDA, arch="sm_90", memory_bytes=141 << 30),), "nvidia-single"),
        ((Gpu(name="RTX 3090", platform=Platform.CUDA, arch="sm_86", memory_bytes=24 << 30),) * 2, "nvidia-tp2"),
        ((Gpu(name="RTX 4090", platform=Platform.CUDA, arch="sm_89", memory_bytes=48 << 30),), "rtx4090-48g"),
    ],
)
def test_a_profile_for_each_machine(gpus: tuple[Gpu, ...], name: str) -> None:
    profiles = [load_profile(shipped) for shipped in shipped_names()]
    assert suggested_profile(Gpus(found=gpus), profiles) == name


def test_every_finding_is_on_the_page() -> None:
    rules = "\n".join(path.read_text() for path in (ROOT / "serve" / "doctor" / "rules").glob("*.py"))
    page = (ROOT / "docs" / "design" / "doctor.md").read_text()
    ids = {line.split('"')[1] for line in rules.splitlines() if line.strip().startswith('id="')}
    assert len(ids) > 30
    assert [name for name in sorted(ids) if f"`{name}`" not in page] == []
