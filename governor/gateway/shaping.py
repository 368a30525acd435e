"""From what a client sends to what the engine shall see: a stable beginning, and a history that is short enough."""

from __future__ import annotations

from governor.gateway.compression import Compressor
from governor.gateway.shaped import Shaped
from governor.gateway.turn import Turn
from governor.policy.model import Policy
from governor.tokens.chain import Located
from governor.tokens.model import PromptParts
from governor.wire.request import GenerationRequest
from serve.engine import ModelCard


class Shaping:
    """One per governor."""

    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor

    async def shaped(
        self,
        turn: Turn,
        request: GenerationRequest,
        prompt: PromptParts,
        located: Located,
        card: ModelCard,
        policy: Policy,
    ) -> Shaped:
        """``prompt`` and ``located``: of the request as it came. Raises :class:`~governor.errors.ContextOverflow` where
        a history has become too long and nothing helps."""
        sent = Shaped(request=request, prompt=prompt, located=located)
        return await self._compressor.shaped(turn, sent, card, policy)
