"""The deterministic stages. Each yields edits of a draft, those that lose least first, and changes nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from governor.compress.draft import Draft, Edit
from governor.compress.stages.images import image_edits
from governor.compress.stages.oversized import oversized_edits
from governor.compress.stages.reasoning import reasoning_edits
from governor.compress.stages.repeated import repeated_edits
from governor.compress.stages.stub import stub_edits
from governor.compress.stages.superseded import superseded_edits
from governor.compress.stages.trim import trim_edits
from governor.policy.model import CompressionStage

EDITS: Mapping[CompressionStage, Callable[[Draft], Iterator[Edit]]] = {
    CompressionStage.REASONING: reasoning_edits,
    CompressionStage.REPEATED: repeated_edits,
    CompressionStage.SUPERSEDED: superseded_edits,
    CompressionStage.IMAGES: image_edits,
    CompressionStage.OVERSIZED: oversized_edits,
    CompressionStage.TRIM: trim_edits,
    CompressionStage.STUB: stub_edits,
}
"""All stages that edit messages; the one that leaves them out is in ``drop``."""
