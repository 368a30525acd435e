"""Weights from a model hub, by ``huggingface_hub``: choose the file, fetch it resumably, check its hash.

The library asks, authenticates, retries and reads ranges. We keep the partial file: its own ``hf_hub_download`` starts
again from zero after an interruption (2.4.0 downloads to a unique temporary file), which hurts with weights.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
import msgspec
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, but not in __all__

from serve.embedded.gguf import (
    check_gguf,
    check_sha256,
    is_later_shard,
    is_verified,
    remember_verified,
    shard_names,
    verify,
)
from serve.embedded.progress import Progress
from serve.embedded.source import HubFile
from serve.errors import BadModelSource, DownloadFailed, WeightsError

_SHA256 = re.compile(r"[0-9a-f]{64}")


class _Chosen(msgspec.Struct, frozen=True):
    """Which file a bare repository name came to mean here, so that a later start needs no hub."""

    file: str


def fetch_from_hub(
    source: HubFile, folder: Path, progress: Progress, *, full_check: bool = False, endpoint: str | None = None
) -> Path:
    """Path of the (first) file below ``folder``; what is there already is not asked for again.

    ``endpoint``: the hub's address; ``None`` is ``$HF_ENDPOINT`` or the public hub. Blocks. An interrupted download
    goes on where it stopped. Raises :class:`WeightsError`.
    """
    home = folder / "hf" / source.owner / source.repo
    try:
        home.mkdir(parents=True, exist_ok=True)
        names = shard_names(source.file or _remembered(home) or _choose(source, home, endpoint))
        for name in names:
            _fetch_one(source, name, home, progress, full_check=full_check, endpoint=endpoint)
    except (httpx2.HTTPError, FileMetadataError, OfflineModeIsEnabled) as problem:
        raise _translate(problem, source, home) from problem
    except ValueError as refused:  # a single file over the hub's limit for plain HTTP
        raise DownloadFailed(f"{source.repo_id}: {refused} Or fetch it by hand into {home}.") from refused
    except OSError as problem:
        raise WeightsError(f"Cannot store weights in {home}: {problem}. Free space, or set GOVERNOR_HOME.") from problem
    return home / names[0]


def _fetch_one(
    source: HubFile, name: str, home: Path, progress: Progress, *, full_check: bool, endpoint: str | None
) -> None:
    target = home / name
    note = target.with_name(target.name + ".sha256")
    if target.exists():
        sha256 = note.read_text(encoding="ascii") if note.exists() else ""
        if sha256 and (full_check or not is_verified(target, sha256)):
            verify(target, sha256, progress)
        check_gguf(target)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    url = hf_hub_url(source.repo_id, name, endpoint=endpoint)
    metadata = get_hf_file_metadata(url, endpoint=endpoint)
    # The etag of a large file is its sha256. It names the partial file, so that two versions are never glued together.
    etag = metadata.etag or "unknown"
    part = target.with_name(f"{target.name}.{re.sub(r'[^0-9A-Za-z]', '', etag)[:16]}.part")
    same_host = urlsplit(metadata.location).netloc == urlsplit(url).netloc
    with part.open("ab") as file:
        have_bytes = file.tell()
        progress.started(f"fetching {name}", metadata.size)
        progress.moved(have_bytes, metadata.size)
        bar: Any = _bar_class(progress)
        try:
            http_get(
                metadata.location,
                file,
                resume_size=have_bytes,
                # The hub's token is not for the store that it redirects to.
                headers=build_hf_headers() if same_host else {},
                expected_size=metadata.size,
                tqdm_class=bar,
            )
        finally:
            progress.finished()
    has_sha256 = _SHA256.fullmatch(etag) is not None
    try:
        check_gguf(part)
        if has_sha256:
            check_sha256(part, etag, progress)
    except WeightsError:
        part.unlink()
        raise
    part.replace(target)
    if has_sha256:
        note.write_text(etag, encoding="ascii")
        remember_verified(target, etag)


def _choose(source: HubFile, home: Path, endpoint: str | None) -> str:
    names = HfApi(endpoint=endpoint).list_repo_files(source.repo_id)
    weights = [
        name
        for name in names
        if name.endswith(".gguf") and not is_later_shard(name) and "mmproj" not in name.rpartition("/")[2]
    ]
    if not weights:
        raise BadModelSource(f"{source.repo_id} holds no GGUF file. Look for a repository whose name ends in -GGUF.")
    if len(weights) > 1:
        choices = "\n".join(f"  --model hf:{source.repo_id}:{name}" for name in sorted(weights))
        raise BadModelSource(f"{source.repo_id} holds {len(weights)} models. Choose one:\n{choices}")
    (home / "chosen.json").write_bytes(msgspec.json.encode(_Chosen(weights[0])))
    return weights[0]


def _remembered(home: Path) -> str | None:
    try:
        return msgspec.json.decode((home / "chosen.json").read_bytes(), type=_Chosen).file
    except (OSError, msgspec.MsgspecError):
        return None


def _translate(problem: Exception, source: HubFile, home: Path) -> WeightsError:
    by_hand = (
        f"Fetch {source.file or 'the GGUF file'} on a machine that can, and start with --model FILE.gguf, "
        f"or put it at {home / (source.file or 'FILE.gguf')} and name it: --model hf:{source.repo_id}:FILE.gguf."
    )
    match problem:
        case GatedRepoError():
            return DownloadFailed(
                f"{source.repo_id} wants you to accept its terms on its web page first, then `hf auth login`."
            )
        case RepositoryNotFoundError():
            return BadModelSource(
                f"The hub knows no repository {source.repo_id} (or it is private: `hf auth login`). Check the spelling."
            )
        case RemoteEntryNotFoundError():
            return BadModelSource(
                f"{source.repo_id} has no file {source.file}. Leave it out to see what there is: hf:{source.repo_id}."
            )
        case HfHubHTTPError(response=response):
            return DownloadFailed(f"The hub answered {response.status_code} for {source.repo_id}. Try later. {by_hand}")
        case OfflineModeIsEnabled():
            return DownloadFailed(f"HF_HUB_OFFLINE is set and {source.repo_id} is not here. Unset it. {by_hand}")
        case _:
            reason = str(problem) or type(problem).__name__
            return DownloadFailed(
                f"The hub cannot be reached ({reason}). What has arrived is kept; start again to go on. {by_hand}"
            )


class _Bar:
    """What ``http_get`` takes for a progress bar."""

    def __init__(self, progress: Progress, done_bytes: int, total_bytes: int | None) -> None:
        self._progress = progress
        self._done_bytes = done_bytes
        self._total_bytes = total_bytes

    def update(self, more_bytes: int) -> None:
        self._done_bytes += more_bytes
        self._progress.moved(self._done_bytes, self._total_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


def _bar_class(progress: Progress) -> type[_Bar]:
    class Bar(_Bar):
        def __init__(self, *, total: int | None = None, initial: int = 0, **_: object) -> None:
            super().__init__(progress, initial, total)

    return Bar
