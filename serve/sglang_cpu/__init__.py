"""What makes the real SGLang run on a CPU without AMX or AVX512: stand-in kernels, a plugin, a tiny hybrid model.

The engine's cache, scheduler, HTTP and KV-event code is untouched; only code that needs a GPU, Triton or AMX is
replaced by torch. Nothing of this is imported by the governor: :data:`ENGINE_PATH` goes onto the engine's
``PYTHONPATH``.
"""

from pathlib import Path
from typing import Final

ENGINE_PATH: Final = Path(__file__).parent / "engine_path"
"""Folder for the engine's ``PYTHONPATH``; holds packages and the metadata by which SGLang finds the plugin."""

__all__ = ["ENGINE_PATH"]
