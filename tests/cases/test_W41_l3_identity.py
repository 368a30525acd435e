"""W41 l3-identity: pages on disk are never loaded by an engine whose bytes they are not.

A program in the engine's place records the arguments and the environment it is started with.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from governor.settings import Home
from serve.argv import sglang_command
from serve.errors import L3Refused
from serve.filesystem import MEMORY_KINDS, filesystem_kind
from serve.l3 import claim_l3, l3_identity, resolve_weights
from serve.placement import prepare
from serve.profile import Profile, load_profile

RECORDER = """#!{python}
import json, os, sys
with open(os.environ["RECORD"], "w") as sink:
    json.dump({{"argv": sys.argv, "l3": os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"]}}, sink)
"""
Change = Callable[[Profile], Profile]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is not in memory, wherever the tests' own folder is."""
    if filesystem_kind(tmp_path) not in MEMORY_KINDS:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen3_5ForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    return folder


def started(disk: Path, profile: Profile, weights: Path, version: str | None = None) -> str:
    """Start the recorder as the engine; the L3 folder it was given."""
    program = disk / "engine"
    program.write_text(RECORDER.format(python=sys.executable))
    program.chmod(0o755)
    home = Home(disk / "home")
    site = prepare(profile, home, port=30000, python=str(program), model_path=str(weights), version=version)
    command = sglang_command(profile, site, version)
    record = disk / "record.json"
    subprocess.run(command.argv, env={**os.environ, **command.env, "RECORD": str(record)}, check=True)
    seen: dict[str, Any] = msgspec.json.decode(record.read_bytes())
    assert seen["argv"][1:3] == ["-m", "sglang.launch_server"]
    return str(seen["l3"])


def part(table: str, **values: object) -> Change:
    def changed(profile: Profile) -> Profile:
        tree = msgspec.to_builtins(profile)
        tree[table] = tree[table] | values
        return msgspec.convert(tree, Profile)

    return changed


CHANGES: dict[str, Change] = {
    "KV type": part("model", kv_cache_dtype="fp8_e5m2"),
    "weights' type": part("model", dtype="float16"),
    "quantisation": part("model", quantization="gptq"),
    "page size": part("memory", page_size=32),
    "tensor parallelism": part("parallel", tp_size=2),
    "data parallelism": part("parallel", dp_size=2),
    "layout": part("hicache", mem_layout="page_first"),
    "states' type": part("mamba", ssm_dtype="float16"),
    "convolutions' type": part("mamba", conv_dtype="float16"),
    "draft": part("speculative", algorithm="DFLASH"),
    "another flag": part("flags", **{"--json-model-override-args": "{}"}),
}


def test_no_change_keeps_the_folder_and_a_change_of_what_does_not_matter_too(disk: Path, weights: Path) -> None:
    profile = load_profile("rx7900xtx-tp2")
    first = started(disk, profile, weights)
    assert started(disk, profile, weights) == first
    assert started(disk, part("memory", max_running_requests=4)(profile), weights) == first
    assert started(disk, part("l3", max_size_gb=50)(profile), weights) == first
    assert started(disk, part("reporting", decode_log_interval=4)(profile), weights) == first


@pytest.mark.parametrize("what", sorted(CHANGES))
def test_each_single_change_has_a_folder_of_its_own(disk: Path, weights: Path, what: str) -> None:
    base = part("parallel", tp_size=1)(load_profile("rx7900xtx-tp2"))
    assert started(disk, CHANGES[what](base), weights) != started(disk, base, weights)


def test_another_engine_version_has_a_folder_of_its_own(disk: Path, weights: Path) -> None:
    profile = load_profile("rx7900xtx-tp2")
    assert started(disk, profile, weights, "0.5.22") != started(disk, profile, weights, "0.5.23")


def test_other_weights_under_the_same_name_have_a_folder_of_their_own(disk: Path, weights: Path) -> None:
    profile = load_profile("rx7900xtx-tp2")
    first = started(disk, profile, weights)
    (weights / "config.json").write_text('{"architectures": ["Qwen3_5ForCausalLM"], "bits": 16}')
    second = started(disk, profile, weights)
    (weights / "model.safetensors").write_bytes(b"\1" * 64)
    assert len({first, second, started(disk, profile, weights)}) == 3


def test_an_adapter_has_a_folder_of_its_own(disk: Path, weights: Path) -> None:
    profile = load_profile("rx7900xtx-tp2")
    adapter = disk / "adapter"
    adapter.mkdir()
    (adapter / "adapter.bin").write_bytes(b"1")
    with_adapter = part("model", lora=[f"a={adapter}"])(profile)
    first = started(disk, with_adapter, weights)
    (adapter / "adapter.bin").write_bytes(b"2")
    assert len({started(disk, profile, weights), first, started(disk, with_adapter, weights)}) == 3


def test_a_branch_on_the_hub_is_told_by_its_commit(tmp_path: Path) -> None:
    profile = load_profile("nvidia-single")
    ref = tmp_path / "models--Qwen--Qwen3.8-27B-FP8" / "refs" / "main"
    ref.parent.mkdir(parents=True)
    ref.write_text("a" * 40)
    (first,) = resolve_weights(profile, "Qwen/Qwen3.8-27B-FP8", tmp_path)
    assert first.commit == "a" * 40
    ref.write_text("b" * 40)
    assert (first,) != resolve_weights(profile, "Qwen/Qwen3.8-27B-FP8", tmp_path)


def test_weights_that_are_not_here_yet_have_no_l3(disk: Path) -> None:
    profile = load_profile("nvidia-single")
    weights = resolve_weights(profile, "Qwen/Qwen3.8-27B-FP8", disk / "empty")
    with pytest.raises(L3Refused, match="Download them first"):
        claim_l3(disk / "l3", l3_identity(profile, "0.5.23", weights))


def test_a_marker_edited_by_hand_refuses_the_start_with_the_reason(disk: Path, weights: Path) -> None:
    profile = load_profile("rx7900xtx-tp2")
    pages = Path(started(disk, profile, weights))
    marker = pages.parent / "identity.json"
    marker.write_text(marker.read_text().replace('"bfloat16"', '"float16"', 1))
    with pytest.raises(L3Refused, match=r"were written with \w*dtype 'float16' \(now 'bfloat16'\).*Delete"):
        started(disk, profile, weights)
    marker.write_text("{")
    with pytest.raises(L3Refused, match="cannot be read"):
        started(disk, profile, weights)


def test_pages_without_a_marker_are_refused(disk: Path, weights: Path) -> None:
    profile = load_profile("rx7900xtx-tp2")
    pages = Path(started(disk, profile, weights))
    (pages.parent / "identity.json").unlink()
    started(disk, profile, weights)
    (pages.parent / "identity.json").unlink()
    (pages / "0123.bin").write_bytes(b"x")
    with pytest.raises(L3Refused, match=r"no identity\.json says"):
        started(disk, profile, weights)


def test_a_link_in_place_of_the_folder_is_refused(disk: Path, weights: Path) -> None:
    profile = load_profile("rx7900xtx-tp2")
    pages = Path(started(disk, profile, weights))
    elsewhere = disk / "elsewhere"
    pages.rename(elsewhere)
    pages.symlink_to(elsewhere)
    with pytest.raises(L3Refused, match="is a link"):
        started(disk, profile, weights)
