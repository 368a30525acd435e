"""The interpreter that makes an engine's environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

_PROGRAM = "import sys; print('{}.{}'.format(*sys.version_info[:2])); print(sys.executable)"


class BasePython(msgspec.Struct, frozen=True):
    path: Path
    version: str
    """``3.11``"""


def find_base(versions: Sequence[str]) -> BasePython | None:
    """An interpreter of one of these versions: our own if it fits, else one on PATH that really runs (a version
    manager leaves names there that do not). ``None`` if there is none. Takes milliseconds."""
    own = "{}.{}".format(*sys.version_info[:2])
    if own in versions:
        return BasePython(Path(sys.executable), own)
    for version in versions:
        program = shutil.which(f"python{version}")
        if program is None:
            continue
        try:
            said = subprocess.run(
                [program, "-c", _PROGRAM], capture_output=True, text=True, timeout=30, check=True
            ).stdout.splitlines()
        except (OSError, subprocess.SubprocessError):
            continue
        if said[:1] == [version]:
            return BasePython(Path(said[1]), version)
    return None
