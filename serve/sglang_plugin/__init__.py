"""Our plugin inside SGLang: it tells what the engine itself does not (``docs/design/sglang-plugin.md``).

The package in ``engine_path`` runs in the engine's process and imports only the standard library and sglang. It loads
where this distribution is installed, or where :data:`PLUGIN_PATH` is on the engine's ``PYTHONPATH``; it does nothing
unless :data:`SOCKET_VARIABLE` is set.
"""

from pathlib import Path
from typing import Final

PLUGIN_PATH: Final = Path(__file__).parent / "engine_path"
"""Folder for the engine's ``PYTHONPATH``; holds the package and the metadata by which SGLang finds it."""

SOCKET_VARIABLE: Final = "GOVERNOR_PLUGIN_SOCKET"
"""Names the unix socket that the plugin listens on."""

__all__ = ["PLUGIN_PATH", "SOCKET_VARIABLE"]
