"""Registers the replacements with SGLang's hook registry. Cache and scheduler logic is untouched.

SGLang calls :func:`register` once in each of its processes; the private names are those of SGLang 0.5.23. The registry
logs a hook that does not fit and goes on, so the installer's check and the tests look for that in the log.
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import setproctitle
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

_DETOKENIZER = "sglang::detokenizer"
"""Title that SGLang gives that process before it loads plugins; schedulers get theirs later."""


def register() -> None:
    """Nothing happens unless SGLang runs its CPU engine."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    HookRegistry.register(
        "sglang.srt.configs.model_config.ModelConfig.__init__", text_only_without_image_processor, HookType.BEFORE
    )
    HookRegistry.register(
        "sglang.srt.arg_groups.mamba_hook._platform_supports_mamba_cache_extra_buffer",
        allow_extra_buffer,
        HookType.REPLACE,
    )
    if multiprocessing.parent_process() is not None and setproctitle.getproctitle() != _DETOKENIZER:
        # Only schedulers run the model and hold caches; importing these modules would cost the others seconds.
        from . import host_pool, kernels, page_hash  # noqa: PLC0415

        for part in (kernels, host_pool, page_hash):
            part.register()


def allow_extra_buffer() -> bool:
    """The Mamba strategy that GPUs use by default; its kernels have stand-ins here."""
    return True


def text_only_without_image_processor(
    config: Any, model_path: str, *args: Any, **options: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Qwen3.5 is a vision architecture; weights that bring no image processor can only be served as text."""
    folder = Path(model_path)
    if (
        options.get("enable_multimodal") is None
        and folder.is_dir()
        and not (folder / "preprocessor_config.json").exists()
    ):
        options["enable_multimodal"] = False
    return (config, model_path, *args), options
