"""SGLang on NVIDIA: its own dependencies from PyPI, all pinned. Not run by us beyond resolving: it needs the card."""

from __future__ import annotations

from serve.install.model import HERE, InstallRecipe
from serve.install.steps import lock_step, probe, proof_step, venv_step
from serve.sglang_plugin import PLUGIN_PATH

SGLANG, TORCH = "0.5.23", "2.14.1"
PYTHONS = ("3.11", "3.12", "3.13")


def cuda_recipe() -> InstallRecipe:
    proof = proof_step(
        "Prove that torch is CUDA's, kernels import and the plugin loads",
        ("sgl_kernel", "sglang.srt.server_args"),
        (),
        probe("torch", TORCH, "cuda"),
        {},
    )
    packages = lock_step("sglang", f"Install SGLang {SGLANG} with torch {TORCH} for CUDA 13", "sglang-cuda.txt")
    return InstallRecipe(
        name="sglang-cuda",
        engine_version=SGLANG,
        pythons=PYTHONS,
        locks=(HERE / "locks" / "sglang-cuda.txt",),
        steps=(venv_step(PYTHONS), packages, proof),
        disk_gib=20,
        python_path=(PLUGIN_PATH,),
    )
