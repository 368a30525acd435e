"""Small files of the shapes that the patches know, and some that they must not touch.

Only the lines that a patch reads are as in SGLang, RCCL and the model; the rest stands in for what surrounds them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STORE_GATE = """\
#ifndef ROCM_HAVE_GLOBAL_DWORDX4_BUILTINS
#if defined(__has_builtin) && __has_builtin(__builtin_amdgcn_global_load_b128) && \\
    __has_builtin(__builtin_amdgcn_global_store_b128)
#define ROCM_HAVE_GLOBAL_DWORDX4_BUILTINS 1
#else
#define ROCM_HAVE_GLOBAL_DWORDX4_BUILTINS 0
#endif
#endif
"""
STORE_GATE_BY_ARCH = """\
#if (defined(__gfx942__) || defined(__gfx950__)) && __has_builtin(__builtin_amdgcn_global_load_b128) && \\
    __has_builtin(__builtin_amdgcn_global_store_b128)
#define ROCM_HAVE_GLOBAL_DWORDX4_BUILTINS 1
#endif
"""
STORE_USE = """\
template <typename P>
DINLINE void store_bypass(P* ptr, const P& val) {
#if ROCM_HAVE_GLOBAL_DWORDX4_BUILTINS
  __builtin_amdgcn_global_store_b128((v4u_gptr)ptr, u.v, "");
#else
  __builtin_nontemporal_store(u.u64[0], addr);
#endif
}
"""
RANK_DATA = """\
struct __align__(16) RankData {
  const void* __restrict__ ptrs[8];
};
"""
RANK_DATA_ONE_LINE = "struct __align__(16) RankData { const void *__restrict__ ptrs[8]; };\n"
RANK_DATA_PLAIN = """\
struct __align__(16) RankData {
  const void* ptrs[8];
};
"""
RANK_DATA_SPLIT = f"#ifdef USE_ROCM\n{RANK_DATA_PLAIN}#else\n{RANK_DATA}#endif\n"
USES_RANK_DATA = "std::vector<RankData> rank_data(num_buffers);\n"


def all_reduce(store: str = STORE_GATE, rank_data: str = RANK_DATA) -> str:
    return f"#pragma once\nnamespace sglang {{\n\n{rank_data}\n{store}\n{STORE_USE}{USES_RANK_DATA}}}  // namespace\n"


ALLOWLIST = 'if amdgpu_target not in ["gfx942", "gfx950", "gfx1250"]:'
BUDGET = 'topk_dynamic_smem_bytes = 48 * 1024 if amdgpu_target == "gfx942" else 32 * 1024 * 4'
BUDGET_SMALL = 'topk_dynamic_smem_bytes = 48 * 1024 if amdgpu_target == "gfx942" else 32 * 1024'
BUDGET_WRAPPED = """\
topk_dynamic_smem_bytes = (
    48 * 1024 if amdgpu_target == "gfx942" else 32 * 1024 * 4
)"""


def setup_script(allowlist: str = ALLOWLIST, budget: str = BUDGET) -> str:
    return f"""\
import os
import sys

default_target = "gfx942"
amdgpu_target = os.environ.get("AMDGPU_TARGET", default_target)

{allowlist}
    print(f"Warning: Unsupported GPU architecture detected '{{amdgpu_target}}'.")
    sys.exit(1)

fp8_macro = "-DHIP_FP8_TYPE_FNUZ" if amdgpu_target == "gfx942" else "-DHIP_FP8_TYPE_E4M3"

{budget}

hipcc_flags = ["-O3", fp8_macro, f"-DSGL_TOPK_DYNAMIC_SMEM_BYTES={{topk_dynamic_smem_bytes}}"]
"""


INCLUDE_RULES: dict[str, Any] = {
    "+:.*mtp.*": {"bits": 4, "group_size": 64},
    r"+:.*mtp\.fc.*": {"bits": 4, "group_size": 64},
}
EXCLUDE_RULE: dict[str, Any] = {"-:.*mtp.*": {"bits": 16, "group_size": 128}}
OTHER_RULES: dict[str, Any] = {"-:.*linear_attn.*": {}, "-:.*visual.*": {}}
MTP_TENSORS = (
    "mtp.fc.weight",
    "mtp.layers.0.input_layernorm.weight",
    "mtp.layers.0.mlp.down_proj.weight",
    "mtp.layers.0.self_attn.q_proj.weight",
)


def model_config(rules: dict[str, Any] | None = None, *, indent: int | None = 2, **quantisation: Any) -> str:
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "initializer_range": 0.02,
        "quantization_config": {
            "bits": 4,
            "dynamic": {**OTHER_RULES, **INCLUDE_RULES} if rules is None else rules,
            "group_size": 128,
            "quant_method": "gptq",
            **quantisation,
        },
        "rms_norm_eps": 1e-06,
        "vendor": "日本語",
    }
    return json.dumps(config, indent=indent, ensure_ascii=False) + "\n"


def write_tensors(folder: Path, names: tuple[str, ...], file: str = "model_extra_tensors.safetensors") -> None:
    """A file of the safetensors format: one element each."""
    header = {
        name: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * at, 2 * at + 2]} for at, name in enumerate(names)
    }
    data = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    folder.joinpath(file).write_bytes(len(data).to_bytes(8, "little") + data + b"\0\0" * len(names))


def source_tree(folder: Path, all_reduce_text: str | None = None, setup_text: str | None = None) -> Path:
    """The kernels' source folder with the files given; the shapes that need a patch, if none are."""
    sources = folder / "csrc" / "allreduce"
    sources.mkdir(parents=True)
    text = all_reduce() if all_reduce_text is None else all_reduce_text
    sources.joinpath("custom_all_reduce.cuh").write_bytes(text.encode())
    setup = setup_script() if setup_text is None else setup_text
    folder.joinpath("setup_rocm.py").write_bytes(setup.encode())
    return folder


def model_folder(folder: Path, config: str | None = None, tensors: tuple[str, ...] = MTP_TENSORS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = model_config() if config is None else config
    folder.joinpath("config.json").write_bytes(text.encode())
    write_tensors(folder, tensors)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
