"""Programs that are measured beside ours, each in an environment of its own under a cache folder: nothing of ours
depends on them."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

from bench.client import BenchFailed


def installed(cache: Path, requirement: str, *also: str) -> Path:
    """The environment's folder of programs; it is made on the first call, which may take minutes. ``also``: what the
    requirement forgets to name. Raises :class:`BenchFailed` when pip cannot."""
    folder = cache / requirement
    programs, stamp = folder / "bin", folder / ".installed"
    if not stamp.exists():
        venv.create(folder, clear=True, with_pip=True)
        python = str(programs / "python")
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement, *also]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchFailed(f"pip cannot install {requirement}: {done.stderr.strip()[-500:]}")
        stamp.touch()
    return programs
