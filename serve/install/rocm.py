"""SGLang on RDNA3 (gfx1100). Upstream supports neither the card nor an installation beside ROCm's torch.

What bites, and what is done about it (sources: the README of PyPI's ``sglang-radeon-rdna3`` 0.2.0, SGLang issues #37398
and #21697): SGLang's dependencies name CUDA packages without platform markers, and pip then replaces ROCm's torch by a
CUDA one, so every package comes from a lock, without dependencies, and torch from AMD's folder alone. The wheel on PyPI
brings CUDA kernels, so ``sgl_kernel`` is built from SGLang's source, which refuses gfx1100 until it is patched.

Versions are the ones that package was validated with (torch 2.9.1, ROCm 7.2.1, W7900). Not run by us: it needs the
card.
"""

from __future__ import annotations

from serve.install.model import HERE, Command, InstallRecipe, Step
from serve.install.steps import PIP, lock_step, probe, proof_step, venv_step
from serve.sglang_plugin import PLUGIN_PATH

SGLANG = "0.5.23"
TORCH, TORCHVISION = "2.9.1", "0.24.0"
WHEELS = "https://repo.radeon.com/rocm/manylinux/rocm-rel-7.2.1/"
SOURCE = "https://github.com/sgl-project/sglang"
PYTHONS = ("3.12",)
"""AMD's wheels of this release are for 3.12."""
_CLONE = "{engine}/src/sglang"
_KERNELS = f"{_CLONE}/python/sglang/kernels/aot"
_ENV = {"SGLANG_USE_AITER": "0", "AMDGPU_TARGET": "gfx1100"}


def rocm_recipe(patches: tuple[str, ...]) -> InstallRecipe:
    """``patches``: those of the kernel sources, by name, applied before the build."""
    return InstallRecipe(
        name="sglang-gfx1100",
        engine_version=SGLANG,
        pythons=PYTHONS,
        locks=(HERE / "locks" / "sglang-base.txt", HERE / "locks" / "gfx1100.txt"),
        steps=(
            venv_step(PYTHONS),
            lock_step("sglang", f"Install SGLang {SGLANG} and what its server needs, no torch", "sglang-base.txt"),
            _torch(),
            lock_step("rdna3", "Install sglang-radeon-rdna3 and what the kernel build needs", "gfx1100.txt"),
            _source(),
            *(_patch(name) for name in patches),
            _kernels(),
            proof_step(
                "Prove that torch is still ROCm's, kernels import and the plugins load",
                ("sgl_kernel", "sglang.srt.server_args"),
                ("radeon_rdna3",),
                probe("torch", TORCH, "hip"),
                _ENV,
            ),
        ),
        disk_gib=25,
        python_path=(PLUGIN_PATH,),
    )


def _torch() -> Step:
    wanted = (f"torch=={TORCH}", f"torchvision=={TORCHVISION}")
    return Step(
        id="torch",
        title=f"Install torch {TORCH} for ROCm",
        commands=(Command(argv=(*PIP, "--no-index", "--find-links", WHEELS, *wanted), limit_s=3600),),
        check=probe("torch", TORCH, "hip"),
        note=f"From {WHEELS} alone, several GB. Needs ROCm 7.2 on the machine.",
    )


def _source() -> Step:
    clone = ("git", "clone", "--quiet", "--depth", "1", "--branch", f"v{SGLANG}", SOURCE, _CLONE)
    remove = ("{python}", "-c", "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)", _CLONE)
    return Step(
        id="source",
        title=f"Fetch SGLang's kernel sources, v{SGLANG}",
        commands=(Command(argv=remove), Command(argv=clone)),
        check=probe("files", f"{_KERNELS}/setup_rocm.py"),
        note="Needs git and github.com: the kernel sources are not on PyPI.",
    )


def _patch(name: str) -> Step:
    return Step(
        id=f"patch-{name}",
        title=f"Apply the patch {name}",
        commands=(Command(argv=("{governor}", "-m", "governor", "patch", "apply", name, "--root", _CLONE)),),
        check=Command(argv=("{governor}", "-m", "governor", "patch", "verify", name, "--root", _CLONE)),
    )


def _kernels() -> Step:
    build = ("{python}", "-m", "sglang_radeon_rdna3.cli", "build-kernel", "--sglang-src", _CLONE)
    return Step(
        id="kernels",
        title="Build sgl_kernel for gfx1100",
        commands=(
            Command(argv=(*build, "--target", "gfx1100", "--install"), env=_ENV, limit_s=7200),
            probe("torch", TORCH, "hip"),
        ),
        check=probe("imports", "sgl_kernel", env=_ENV),
        note="Compiles for minutes with hipcc. Set MAX_JOBS where memory is short.",
    )
