"""What each patch on the kernels' sources sees in the shapes it knows, and in those it does not."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from serve.patches import Facts, Look, Status
from serve.patches.allreduce import look_at_rank_data, look_at_store
from serve.patches.kernel_build import look_at_build
from serve.patches.setup_script import verdict
from tests.patch_sources import (
    ALLOWLIST,
    BUDGET,
    BUDGET_SMALL,
    BUDGET_WRAPPED,
    RANK_DATA,
    RANK_DATA_ONE_LINE,
    RANK_DATA_PLAIN,
    RANK_DATA_SPLIT,
    STORE_GATE,
    STORE_GATE_BY_ARCH,
    all_reduce,
    setup_script,
)

LookAt = Callable[[str, Facts], Look]
NO_FACTS = Facts()


def crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("look_at", "text", "status"),
    [
        (look_at_store, all_reduce(), Status.NEEDED),
        (look_at_store, crlf(all_reduce()), Status.NEEDED),
        (look_at_store, all_reduce(STORE_GATE_BY_ARCH), Status.FIXED_UPSTREAM),
        (look_at_store, RANK_DATA, Status.NOT_APPLICABLE),
        (look_at_store, all_reduce(STORE_GATE.replace("defined(__has_builtin) && ", "")), Status.UNKNOWN_SHAPE),
        (look_at_store, all_reduce(STORE_GATE + STORE_GATE), Status.UNKNOWN_SHAPE),
        (look_at_store, all_reduce(""), Status.UNKNOWN_SHAPE),
        (look_at_store, all_reduce("// governor:gfx1100-allreduce-store\n" + STORE_GATE), Status.UNKNOWN_SHAPE),
        (look_at_rank_data, all_reduce(), Status.NEEDED),
        (look_at_rank_data, crlf(all_reduce()), Status.NEEDED),
        (look_at_rank_data, all_reduce(rank_data=RANK_DATA_ONE_LINE), Status.NEEDED),
        (look_at_rank_data, all_reduce(rank_data=RANK_DATA.replace("const ", "")), Status.NEEDED),
        (look_at_rank_data, all_reduce(rank_data=RANK_DATA_SPLIT), Status.FIXED_UPSTREAM),
        (look_at_rank_data, all_reduce(rank_data=RANK_DATA_PLAIN), Status.FIXED_UPSTREAM),
        (look_at_rank_data, "int x;\n", Status.NOT_APPLICABLE),
        (look_at_rank_data, all_reduce(rank_data=RANK_DATA + RANK_DATA_PLAIN), Status.UNKNOWN_SHAPE),
        (look_at_rank_data, all_reduce(rank_data=RANK_DATA.replace("ptrs[8]", "ptrs[16]")), Status.UNKNOWN_SHAPE),
        (look_at_rank_data, all_reduce(rank_data=RANK_DATA.replace(";\n}", ";\n  int n;\n}")), Status.UNKNOWN_SHAPE),
        (look_at_rank_data, all_reduce(rank_data=f"// {RANK_DATA_ONE_LINE}"), Status.UNKNOWN_SHAPE),
        (look_at_build, setup_script(), Status.NEEDED),
        (look_at_build, crlf(setup_script()), Status.NEEDED),
        (look_at_build, setup_script(budget=BUDGET_WRAPPED), Status.NEEDED),
        (look_at_build, setup_script(budget=BUDGET_SMALL), Status.NEEDED),
        (look_at_build, setup_script(budget=""), Status.NEEDED),
        (look_at_build, setup_script('if amdgpu_target not in ["gfx942", "gfx1100"]:'), Status.NEEDED),
        (look_at_build, setup_script('if amdgpu_target not in ["gfx1100"]:', BUDGET_SMALL), Status.FIXED_UPSTREAM),
        (look_at_build, setup_script('known = ["gfx942"]\nif amdgpu_target not in known:'), Status.UNKNOWN_SHAPE),
        (look_at_build, setup_script(budget="topk_dynamic_smem_bytes = budget_of()"), Status.UNKNOWN_SHAPE),
        (look_at_build, setup_script("if not is_known(amdgpu_target):"), Status.UNKNOWN_SHAPE),
        (look_at_build, setup_script(f"{ALLOWLIST}\n    sys.exit(1)\n{ALLOWLIST}"), Status.UNKNOWN_SHAPE),
        (look_at_build, "import os\n", Status.UNKNOWN_SHAPE),
        (look_at_build, "not python at all {", Status.UNKNOWN_SHAPE),
    ],
)
def test_shapes(look_at: LookAt, text: str, status: Status) -> None:
    look = look_at(text, NO_FACTS)

    assert look.status is status, look.detail
    assert (look.patched is not None) == (status is Status.NEEDED)
    if look.patched is not None:
        assert look_at(look.patched, NO_FACTS).status is Status.APPLIED
        assert ("\r\n" in text) == ("\r\n" in look.patched)
        assert "\r\n" not in text or look.patched.count("\r\n") == look.patched.count("\n")
    if status is Status.UNKNOWN_SHAPE:
        assert "expected" in look.detail
        assert "saw" in look.detail


def test_the_store_patch_adds_one_condition() -> None:
    patched = look_at_store(all_reduce(), NO_FACTS).patched

    assert patched is not None
    assert (
        "#if !defined(__GFX11__) && defined(__has_builtin) && __has_builtin(__builtin_amdgcn_global_load_b128) && \\\n"
        "    __has_builtin(__builtin_amdgcn_global_store_b128)\n" in patched
    )
    assert len(patched.splitlines()) == len(all_reduce().splitlines()) + 1


def test_the_restrict_patch_leaves_a_whole_struct() -> None:
    for text in (RANK_DATA, RANK_DATA_ONE_LINE):
        patched = look_at_rank_data(text, NO_FACTS).patched
        assert patched is not None
        code = " ".join(line.split("//")[0] for line in patched.splitlines())
        assert "".join(code.split()) == "struct__align__(16)RankData{constvoid*ptrs[8];};"


def test_a_store_patch_half_taken_back_is_left_alone() -> None:
    patched = look_at_store(all_reduce(), NO_FACTS).patched
    assert patched is not None
    half = patched.replace("!defined(__GFX11__) && ", "")

    look = look_at_store(half, NO_FACTS)

    assert look.status is Status.UNKNOWN_SHAPE
    assert "the mark" in look.detail


def test_half_patched_build_gets_the_other_half() -> None:
    allowlist_only = setup_script('if amdgpu_target not in ["gfx942", "gfx950", "gfx1250", "gfx1100"]:')

    look = look_at_build(allowlist_only, NO_FACTS)

    assert "the budget does not" in look.detail
    assert look.patched is not None
    assert verdict(look.patched, "gfx1100").budget_bytes == 48 * 1024


def test_a_build_patched_by_the_radeon_package_is_fixed_already() -> None:
    text = setup_script(
        'if amdgpu_target not in ["gfx942", "gfx950", "gfx1250", "gfx1100", "gfx1101", "gfx1102"]:',
        '_LDS_64KB_ARCHS = ("gfx942", "gfx1100", "gfx1101", "gfx1102")\ntopk_dynamic_smem_bytes = (\n'
        "    48 * 1024 if amdgpu_target in _LDS_64KB_ARCHS else 32 * 1024 * 4\n)",
    )

    assert look_at_build(text, NO_FACTS).status is Status.FIXED_UPSTREAM


def test_the_radeon_package_finds_its_own_two_changes_in_ours() -> None:
    """It refuses to build where it finds neither its anchors nor these words."""
    for budget in (BUDGET, BUDGET_SMALL):
        patched = look_at_build(setup_script(budget=budget), NO_FACTS).patched
        assert patched is not None
        assert '"gfx1100", "gfx1101", "gfx1102"]:' in patched
        assert "_LDS_64KB_ARCHS" in patched


@pytest.mark.parametrize("budget", [BUDGET, BUDGET_SMALL, BUDGET_WRAPPED])
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1250"])
def test_what_is_told_of_the_script_is_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str, arch: str
) -> None:
    patched = look_at_build(setup_script(budget=budget), NO_FACTS).patched
    assert patched is not None
    monkeypatch.setenv("AMDGPU_TARGET", arch)
    for text in (setup_script(budget=budget), patched):
        script = tmp_path / "setup_rocm.py"
        script.write_text(text)
        told = verdict(text, arch)
        try:
            ran = runpy.run_path(str(script))
        except SystemExit:
            assert not told.allowed
        else:
            assert told.allowed
            assert told.budget_bytes == ran["topk_dynamic_smem_bytes"]
    assert verdict(patched, arch).allowed == (arch in {"gfx942", "gfx950", "gfx1250", "gfx1100"})
