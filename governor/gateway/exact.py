"""A prompt counted by the engine: as it will be sent, and without a figure that cannot be one."""

from __future__ import annotations

from governor.output.edits import counted_body
from governor.policy.model import Policy
from governor.types import TokenCount
from governor.wire.request import GenerationRequest
from serve.engine import Engine


async def exact_count(engine: Engine, request: GenerationRequest, policy: Policy) -> TokenCount | None:
    """``None`` where the engine does not tell. Raises :class:`~governor.errors.BadRequest` for a body that could not be
    sent either."""
    can = engine.capabilities
    if not can.counts_prompts:
        return None
    count = await engine.count_prompt(request.endpoint, counted_body(request, policy.request, can))
    return count if count is not None and count.tokens > 0 else None
