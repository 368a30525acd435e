"""Profile to command: snapshots, translation between SGLang versions, refusals with their evidence."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest

from serve.argv import LaunchCommand, Site, command_diff, flag_groups, sglang_command
from serve.errors import ProfileRefused
from serve.profile import Profile, load_profile
from serve.profile.model import FlagValue, HiCache, IoBackend, Memory, Model, Parallel, Platform, Reporting, Scheduling
from serve.sglang_flags import FIRST_KNOWN, LAST_KNOWN, NEVER_RELEASED, RENAMED, absence, added_in, dropped_in
from serve.unsafe import ALL, dangers, state_slots_per_request
from tests.profiles import OWN_WEIGHTS, SGLANG_PROFILES, SITE, site_for

SNAPSHOTS = Path(__file__).parents[1] / "data" / "argv"
VERSIONS = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")


def shown(command: LaunchCommand) -> str:
    env = [f"{name}={shlex.quote(value)}" for name, value in sorted(command.env.items())]
    return "\n".join([*env, *(shlex.join(words) for words in flag_groups(command.argv))]) + "\n"


def with_flags(version: str, **flags: FlagValue) -> LaunchCommand:
    """A bare profile with further flags, as ``version`` would get them."""
    spelled = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    return sglang_command(bare(flags=spelled), SITE, version)


def bare(**fields: object) -> Profile:
    tree: dict[str, object] = {
        "summary": "x",
        "engine": "sglang",
        "versions": {"oldest": "0.5.17", "newest": "0.5.23"},
        "model": {"path": "w"},
        "reporting": {"kv_events": False},
    }
    return msgspec.convert(tree | fields, Profile)


def has(command: LaunchCommand, *words: str) -> bool:
    return words in set(flag_groups(command.argv))


@pytest.mark.parametrize("name", SGLANG_PROFILES)
def test_the_command_of_each_profile_is_the_recorded_one(name: str) -> None:
    profile = load_profile(name)
    found = shown(sglang_command(profile, site_for(profile)))
    assert found == (SNAPSHOTS / f"{name}.txt").read_text()


def test_no_snapshot_is_left_of_a_profile_that_is_gone() -> None:
    assert {path.stem for path in SNAPSHOTS.glob("*.txt")} == set(SGLANG_PROFILES)


def test_the_7900_xtx_gets_what_the_field_reports_found_necessary() -> None:
    command = sglang_command(load_profile("rx7900xtx-tp2"), OWN_WEIGHTS)
    for words in (
        ("--tp-size", "2"),
        ("--page-size", "64"),
        ("--attention-backend", "triton"),
        ("--hicache-io-backend", "direct"),
        ("--hicache-mem-layout", "page_first_direct"),
        ("--hicache-write-policy", "write_through"),
        ("--hicache-size", "20"),
        ("--mamba-radix-cache-strategy", "extra_buffer"),
        ("--speculative-algorithm", "NEXTN"),
        ("--speculative-num-steps", "3"),
        ("--prefill-decode-interval", "1"),
        ("--enable-cache-report",),
        ("--enable-metrics",),
    ):
        assert has(command, *words), words
    assert command.env["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] == str(OWN_WEIGHTS.l3_folder)


@pytest.mark.parametrize("name", SGLANG_PROFILES)
def test_each_profile_has_a_command_for_all_its_versions(name: str) -> None:
    profile = load_profile(name)
    covered = [version for version in VERSIONS if profile.versions.covers(version)]
    assert covered[0] == profile.versions.oldest
    for version in covered:
        assert sglang_command(profile, site_for(profile), version).argv


@pytest.mark.parametrize("version", VERSIONS)
def test_the_old_name_of_the_mamba_strategy_is_translated(version: str) -> None:
    command = with_flags(version, mamba_scheduler_strategy="extra_buffer")
    assert has(command, "--mamba-radix-cache-strategy", "extra_buffer")
    assert [note.key for note in command.notes][-1] == "flags.--mamba-scheduler-strategy"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("old", sorted(RENAMED))
def test_what_is_renamed_never_stands_under_its_old_name(old: str, version: str) -> None:
    new = RENAMED[old]
    command = sglang_command(bare(flags={old: True if new.value else "7"}), SITE, version)
    assert has(command, new.flag, new.value or "7")
    assert not any(words[0] == old for words in flag_groups(command.argv))
    assert absence(new.flag, version) is None


@pytest.mark.parametrize("version", ["0.5.19", "0.5.23"])
def test_one_prefill_batch_in_a_row_becomes_a_decode_round_after_each(version: str) -> None:
    profile = bare(scheduling=Scheduling(max_consecutive_prefill_batches=1))
    command = sglang_command(profile, SITE, version)
    assert has(command, "--prefill-decode-interval", "1")
    assert has(with_flags(version, max_consecutive_prefill_batches=1), "--prefill-decode-interval", "1")


@pytest.mark.parametrize(
    ("version", "flags", "says"),
    [
        ("0.5.17", {"max_consecutive_prefill_batches": 1}, "0.5.19 on"),
        ("0.5.23", {"max_consecutive_prefill_batches": 3}, "gfx1100 fork only"),
        ("0.5.18", {"prefill_decode_interval": 1}, "exists from SGLang 0.5.19 on, not in 0.5.18"),
        ("0.5.18", {"torchao_config": "int4wo"}, "was dropped in SGLang 0.5.18"),
        ("0.5.20", {"hicache_host_memory_fraction": 0.5}, "exists from SGLang 0.5.21 on"),
        ("0.5.23", {"hicache_mamba_ratio": 2}, "is in no release"),
        ("0.5.23", {"port": 1}, "is set by the governor"),
    ],
)
def test_what_a_version_lacks_is_refused_with_the_reason(version: str, flags: dict[str, FlagValue], says: str) -> None:
    with pytest.raises(ProfileRefused, match=says):
        with_flags(version, **flags)


def test_the_flag_table_is_consistent() -> None:
    assert (VERSIONS[0], VERSIONS[-1]) == (FIRST_KNOWN, LAST_KNOWN)
    for old, new in RENAMED.items():
        assert (added_in(new.flag), dropped_in(new.flag)) == (None, None)
        assert old not in NEVER_RELEASED
    assert absence("--tp-size", "0.5.17") is None


def test_a_version_outside_the_profile_is_refused() -> None:
    with pytest.raises(ProfileRefused, match=r"for SGLang 0\.5\.23 to 0\.5\.23, not 0\.5\.17"):
        sglang_command(load_profile("sglang-cpu"), OWN_WEIGHTS, "0.5.17")


def test_every_reason_is_told_at_once() -> None:
    profile = bare(
        model=Model(hybrid=True),
        hicache=HiCache(enabled=True, io_backend=IoBackend.KERNEL),
        l3={"backend": "file"},
        reporting=Reporting(),
    )
    with pytest.raises(ProfileRefused) as caught:
        sglang_command(profile, Site(port=1))
    told = "\n".join(caught.value.reasons)
    for part in ("model.path", "no folder was given", "no address was given", "#30055", "page_size", "max_size_gb"):
        assert part in told


@pytest.mark.parametrize(
    ("danger", "version", "fields"),
    [
        ("hybrid-layer-first", "0.5.23", {"hicache": {"mem_layout": "layer_first", "io_backend": "direct"}}),
        ("hybrid-kernel-io", "0.5.23", {"hicache": {"io_backend": "kernel"}}),
        ("hybrid-kernel-io", "0.5.23", {"hicache": {}}),
        (
            "sm120-fp8-hicache",
            "0.5.23",
            {
                "hicache": {"io_backend": "direct"},
                "hardware": {"platform": "cuda", "arch": "sm_120"},
                "model": {"path": "w", "kv_cache_dtype": "fp8_e4m3"},
            },
        ),
        ("l3-page-of-one", "0.5.23", {"l3": {"backend": "file", "max_size_gb": 1}}),
        ("l3-without-cap", "0.5.23", {"l3": {"backend": "file"}, "memory": {"page_size": 64}}),
        ("hybrid-selective-write", "0.5.23", {"hicache": {"write_policy": "write_through_selective"}}),
        (
            "no-buffer-pages-overlap",
            "0.5.23",
            {"mamba": {"radix_cache_strategy": "no_buffer"}, "memory": {"page_size": 64}},
        ),
        (
            "slots-cap-requests",
            "0.5.23",
            {"mamba": {"max_cache_size": 19}, "memory": {"max_running_requests": 4, "page_size": 64}},
        ),
        (
            "fewer-slots-than-chunks",
            "0.5.23",
            {"mamba": {"max_cache_size": 30}, "memory": {"max_total_tokens": 256_000, "chunked_prefill_size": 8192}},
        ),
        ("rocm-aiter", "0.5.23", {"hardware": {"platform": "rocm", "arch": "gfx1100"}}),
        ("priority-policy", "0.5.23", {"scheduling": {"priority": "higher_first", "policy": "lpm"}}),
        ("hybrid-mixed-chunk", "0.5.22", {"scheduling": {"mixed_chunk": True}}),
        ("int8-checkpoint-hicache", "0.5.23", {"flags": {"--enable-int8-mamba-checkpoint": True}}),
        ("hicache-without-radix", "0.5.23", {"flags": {"--disable-radix-cache": True}}),
    ],
)
def test_a_danger_is_refused_with_evidence_and_can_be_taken_on(
    danger: str, version: str, fields: dict[str, dict[str, object]]
) -> None:
    tree = {**fields, "model": {"path": "w", "hybrid": True} | fields.get("model", {})}
    tree["hicache"] = {"enabled": True, "io_backend": "direct"} | fields.get("hicache", {})
    if fields.get("hicache") == {}:
        tree["hicache"] = {"enabled": True}
    profile = bare(**tree)
    found = {item.id: item for item in dangers(profile, version)}
    assert danger in found
    with pytest.raises(ProfileRefused) as caught:
        sglang_command(profile, SITE, version)
    told = "\n".join(caught.value.reasons)
    assert found[danger].evidence in told
    assert danger in told
    accepted = msgspec.structs.replace(profile, accept_unsafe=tuple(found))
    assert sglang_command(accepted, SITE, version).argv


def test_every_danger_has_an_id_of_its_own_and_evidence() -> None:
    assert len({danger.id for danger in ALL}) == len(ALL)
    assert all(danger.evidence and danger.cure and danger.reason for danger in ALL)


def test_mixed_chunks_are_mended_in_0_5_23() -> None:
    profile = bare(model=Model(path="w", hybrid=True), scheduling=Scheduling(mixed_chunk=True))
    assert [found.id for found in dangers(profile, "0.5.22")] == ["hybrid-mixed-chunk"]
    assert dangers(profile, "0.5.23") == ()


@pytest.mark.parametrize(
    ("mamba", "overlap", "slots"),
    [("extra_buffer", None, 5), ("extra_buffer", False, 4), ("extra_buffer_lazy", None, 4), ("no_buffer", False, 3)],
)
def test_slots_a_request_takes(mamba: str, overlap: bool | None, slots: int) -> None:
    profile = bare(mamba={"radix_cache_strategy": mamba}, kernels={"overlap_schedule": overlap})
    assert state_slots_per_request(profile) == slots


def test_the_size_cap_of_l3_is_shared_out_to_the_ranks() -> None:
    profile = load_profile("rx7900xtx-tp2")
    assert profile.parallel.tp_size == 2
    command = sglang_command(profile, OWN_WEIGHTS)
    assert command.env["SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE"] == str(100 * 10**9)
    assert command.env["SGLANG_HICACHE_FILE_BACKEND_MIN_FREE_SPACE"] == str(20 * 10**9)


def test_kv_events_listen_on_one_address_only_where_the_engine_can() -> None:
    profile = bare(reporting=Reporting())
    site = msgspec.structs.replace(SITE, kv_events_endpoint="tcp://127.0.0.1:5557")
    assert '"bind":true' in " ".join(sglang_command(profile, site, "0.5.22").argv)
    with pytest.raises(ProfileRefused, match="would connect"):
        sglang_command(profile, site, "0.5.21")
    assert "bind" not in " ".join(sglang_command(profile, SITE, "0.5.23").argv)


def test_the_environment_is_implied_then_the_sites_then_the_profiles() -> None:
    profile = bare(
        hardware={"platform": Platform.CPU},
        parallel=Parallel(tp_size=2),
        environment={"A": "profile"},
        scheduling=Scheduling(waiting_timeout_s=2.5),
    )
    site = msgspec.structs.replace(SITE, environment={"A": "site", "B": "site"})
    env = sglang_command(profile, site).env
    assert env == {
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
        "SGLANG_REQ_WAITING_TIMEOUT": "2.5",
        "A": "profile",
        "B": "site",
    }
    forced = msgspec.structs.replace(site, environment={"SGLANG_CPU_OMP_THREADS_BIND": "4|5"})
    assert sglang_command(profile, forced).env["SGLANG_CPU_OMP_THREADS_BIND"] == "4|5"


def test_a_pinned_commit_and_adapters_reach_the_command() -> None:
    profile = bare(model=Model(path="w", lora=("a=/a", "b=/b")))
    command = sglang_command(profile, msgspec.structs.replace(SITE, revision="c0ffee"))
    assert has(command, "--revision", "c0ffee")
    assert has(command, "--lora-paths", "a=/a", "b=/b")
    assert has(command, "--enable-lora")


def test_the_difference_of_two_commands_names_flags_and_variables() -> None:
    one = sglang_command(bare(memory=Memory(page_size=64), environment={"A": "1"}), SITE)
    two = sglang_command(bare(memory=Memory(page_size=32)), SITE)
    assert command_diff(one, two) == ("- --page-size 64", "+ --page-size 32", "- A=1")
    assert command_diff(one, one) == ()
