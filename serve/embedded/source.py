"""Which weights: the forms that ``--model`` can have. Pure: looks at the text only."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from serve.errors import BadModelSource

HUB_PREFIX = "hf:"
# As the hub allows them; two path segments and no "..", so that neither can leave our folder.
_REPO_PART = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9][\w.-]{0,95}")

FORMS = "Give a file (model.gguf) or a hub repository (hf:OWNER/REPO or hf:OWNER/REPO:FILE.gguf)."


class Bundled(msgspec.Struct, frozen=True):
    """The small default model."""


class LocalFile(msgspec.Struct, frozen=True):
    path: Path


class HubFile(msgspec.Struct, frozen=True):
    owner: str
    repo: str
    file: str | None
    """``None``: the only weights in the repository."""

    @property
    def repo_id(self) -> str:
        return f"{self.owner}/{self.repo}"


ModelSource = Bundled | LocalFile | HubFile


def parse_source(text: str | None) -> ModelSource:
    """Raises :class:`BadModelSource`."""
    if text is None:
        return Bundled()
    if not text.strip():
        raise BadModelSource(f"The model's name is empty. {FORMS}")
    if text.startswith(HUB_PREFIX):
        return _parse_hub(text)
    return LocalFile(Path(text).expanduser())


def _parse_hub(text: str) -> HubFile:
    repo_id, _, file = text.removeprefix(HUB_PREFIX).partition(":")
    owner, slash, repo = repo_id.partition("/")
    if not slash or not _REPO_PART.fullmatch(owner) or not _REPO_PART.fullmatch(repo):
        raise BadModelSource(f"{text!r} names no repository of the hub. {FORMS}")
    if file and (not file.endswith(".gguf") or file.startswith("/") or ".." in file.split("/") or "\\" in file):
        raise BadModelSource(f"{file!r} in {text!r} is not the name of a GGUF file. {FORMS}")
    return HubFile(owner, repo, file or None)
