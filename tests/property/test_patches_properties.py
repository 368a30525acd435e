"""For every text: what is patched can be patched again without effect and put back, and what is not known stays."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from serve.errors import PatchRefused
from serve.patches import ALL, Facts, Patch, Patcher, Place, Status
from serve.patches.gptq_mtp import MTP_RULES
from tests.patch_sources import (
    ALLOWLIST,
    BUDGET,
    BUDGET_SMALL,
    BUDGET_WRAPPED,
    EXCLUDE_RULE,
    INCLUDE_RULES,
    MTP_TENSORS,
    OTHER_RULES,
    RANK_DATA,
    RANK_DATA_ONE_LINE,
    RANK_DATA_PLAIN,
    RANK_DATA_SPLIT,
    STORE_GATE,
    STORE_GATE_BY_ARCH,
    all_reduce,
    contents,
    model_config,
    model_folder,
    setup_script,
    source_tree,
)

FACTS = Facts(mtp_tensors=MTP_TENSORS)
_RULES = {**INCLUDE_RULES, **EXCLUDE_RULE, **OTHER_RULES, "-:lm_head": {}, "+:.*mtp.norm": {"bits": 8}}

headers = st.builds(
    all_reduce,
    st.sampled_from([STORE_GATE, STORE_GATE_BY_ARCH, STORE_GATE * 2, ""]),
    st.sampled_from([RANK_DATA, RANK_DATA_ONE_LINE, RANK_DATA_PLAIN, RANK_DATA_SPLIT, RANK_DATA * 2, ""]),
)
scripts = st.builds(
    setup_script,
    st.sampled_from([ALLOWLIST, 'if amdgpu_target not in ["gfx1100"]:', "if amdgpu_target not in known():"]),
    st.sampled_from([BUDGET, BUDGET_SMALL, BUDGET_WRAPPED, ""]),
)
configs = st.builds(
    lambda names, indent: model_config({name: _RULES[name] for name in names}, indent=indent),
    st.lists(st.sampled_from(sorted(_RULES)), unique=True),
    st.sampled_from([None, 1, 2]),
)
line_ends = st.sampled_from(["\n", "\r\n"])
kernel_patches = st.permutations([patch for patch in ALL if patch.place is Place.KERNEL_SOURCE])
all_patches = st.sampled_from(ALL)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A file of a shape near the known ones, one stretch of it possibly gone, doubled or replaced."""
    text = draw(headers | scripts | configs)
    if draw(st.booleans()):
        start = draw(st.integers(0, len(text) - 1))
        end = draw(st.integers(start, min(len(text), start + 30)))
        piece = draw(st.sampled_from(["", text[start:end] * 2, "\n", "mtp", "__restrict__", "gfx1100", "}", '"']))
        text = text[:start] + piece + text[end:]
    return text.replace("\n", draw(line_ends))


@given(texts(), all_patches)
@settings(max_examples=400, deadline=None)
def test_a_look_finds_its_own_result_applied_and_writes_nothing_else(text: str, patch: Patch) -> None:
    look = patch.look(text, FACTS)

    assert (look.patched is not None) == (look.status is Status.NEEDED)
    if look.patched is not None:
        assert look.patched != text
        again = patch.look(look.patched, FACTS)
        assert (again.status, again.patched) == (Status.APPLIED, None)
        assert ("\r\n" in look.patched) == ("\r\n" in text)


@given(st.text(max_size=400), all_patches)
@settings(max_examples=200, deadline=None)
def test_any_other_text_is_never_patched(text: str, patch: Patch) -> None:
    assert patch.look(text, FACTS).patched is None


@given(texts(), st.permutations(ALL))
@settings(max_examples=150, deadline=None)
def test_the_order_of_patches_does_not_matter(text: str, order: list[Patch]) -> None:
    def with_all(patches: list[Patch]) -> str:
        done = text
        for patch in patches:
            done = patch.look(done, FACTS).patched or done
        return done

    assert with_all(order) == with_all(list(ALL))


@given(headers, scripts, line_ends, kernel_patches, kernel_patches)
@settings(max_examples=60, deadline=None)
def test_files_come_back_byte_for_byte(
    header: str, script: str, line_end: str, order: list[Patch], back: list[Patch]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = source_tree(Path(name), header.replace("\n", line_end), script.replace("\n", line_end))
        patcher = Patcher(root=root, model=None)
        before = contents(root)
        applied = [patch for patch in order if _apply_twice(patcher, root, patch)]
        for patch in back:
            if patch in applied:
                patcher.revert(patch)
        assert contents(root) == before


@given(configs, line_ends, st.binary(max_size=3))
@settings(max_examples=60, deadline=None)
def test_configurations_come_back_byte_for_byte(config: str, line_end: str, tail: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = model_folder(Path(name), config.replace("\n", line_end))
        with folder.joinpath("config.json").open("ab") as stream:
            stream.write(tail)
        patcher = Patcher(root=None, model=folder)
        before = contents(folder)
        if _apply_twice(patcher, folder, MTP_RULES) and contents(folder) != before:
            patcher.revert(MTP_RULES)
        assert contents(folder) == before


def _apply_twice(patcher: Patcher, folder: Path, patch: Patch) -> bool:
    """Whether the patch is in effect; where it was refused, nothing has been touched."""
    before = contents(folder)
    try:
        patcher.apply(patch)
    except PatchRefused:
        assert contents(folder) == before
        return False
    once = contents(folder)
    assert patcher.apply(patch) == ()
    assert contents(folder) == once
    return True
