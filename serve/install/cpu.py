"""SGLang on a CPU: everything from PyPI, with our stand-in kernels and a tiny model. For tests, and to look around."""

from __future__ import annotations

from serve.install.model import HERE, Command, InstallRecipe, Step, digest
from serve.install.steps import PIP, lock_step, probe, proof_step, venv_step
from serve.sglang_cpu import ENGINE_PATH
from serve.sglang_plugin import PLUGIN_PATH

SGLANG = "0.5.23"
TORCH = "2.13.0"
PYTHONS = ("3.11", "3.12", "3.13")
STAND_INS = "governor_sglang_cpu"
"""The plugin that brings them."""

_ENV = {"PYTHONPATH": "{serve}/sglang_cpu/engine_path", "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
_MODEL_SOURCES = tuple(
    ENGINE_PATH / STAND_INS / name for name in ("tiny_model.py", "tokenizer.py", "chat_template.jinja")
)


def cpu_recipe() -> InstallRecipe:
    """Takes minutes the first time, most of them for downloads."""
    return InstallRecipe(
        name="sglang-cpu",
        engine_version=SGLANG,
        pythons=PYTHONS,
        locks=(HERE / "locks" / "sglang-base.txt", HERE / "locks" / "tiny-model.txt"),
        steps=(
            venv_step(PYTHONS),
            lock_step("sglang", f"Install SGLang {SGLANG} and what its server needs", "sglang-base.txt"),
            lock_step("tokenizer", "Install the vocabulary of the tiny model", "tiny-model.txt"),
            _torch(),
            _model(),
            proof_step(
                "Prove that the stand-ins and the plugins fit this SGLang",
                ("sgl_kernel", "sgl_kernel.mamba", "sgl_kernel.kvcacheio"),
                (STAND_INS,),
                probe("torch", TORCH, "cpu"),
                _ENV,
            ),
        ),
        disk_gib=2.5,
        python_path=(ENGINE_PATH, PLUGIN_PATH),
        model=_model_folder(),
    )


def _torch() -> Step:
    return Step(
        id="torch",
        title=f"Install torch {TORCH}",
        commands=(Command(argv=(*PIP, f"torch=={TORCH}")),),
        check=probe("torch", TORCH, "cpu"),
        note="On x86_64, PyPI has only torch's CUDA build (several GB). pip takes the CPU build (200 MB) where it "
        "finds one: set PIP_EXTRA_INDEX_URL to PyTorch's CPU index.",
    )


def _model() -> Step:
    folder = _model_folder()
    make = Command(argv=("{python}", "-P", "-m", f"{STAND_INS}.tiny_model", folder), env=_ENV, limit_s=600)
    return Step(
        id="model",
        title="Make the tiny hybrid model",
        commands=(make,),
        check=probe("files", *(f"{folder}/{name}" for name in ("model.safetensors", "tokenizer.json", "config.json"))),
        inputs=_MODEL_SOURCES,
    )


def _model_folder() -> str:
    """Named after what makes it, so that a running engine keeps the weights it was started with."""
    made_by = digest(path.read_bytes() for path in _MODEL_SOURCES)[:8]
    return f"{{engine}}/models/tiny-hybrid-{made_by}"
