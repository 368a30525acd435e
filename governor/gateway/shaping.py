"""From what a client sends to what the engine shall see: a stable beginning, and a history that is short enough."""

from __future__ import annotations

from governor.gateway.compression import Compressor
from governor.gateway.planner import Planner, prompt_of
from governor.gateway.shaped import Shaped
from governor.gateway.turn import Turn
from governor.output.stable import Stabiliser
from governor.policy.model import Policy
from governor.tokens.chain import Located
from governor.tokens.model import PromptParts
from governor.wire.request import GenerationRequest
from serve.engine import ModelCard


class Shaping:
    """One per governor."""

    def __init__(self, planner: Planner, compressor: Compressor, stabiliser: Stabiliser | None = None) -> None:
        self._planner = planner
        self._compressor = compressor
        self.stabiliser = stabiliser or Stabiliser()

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
        stable = self.stabiliser.stabilised(turn.agent, located.session_id, request, policy.request)
        for warning in stable.warnings:
            turn.note(warning)
        if stable.request is not request:
            request, prompt = stable.request, prompt_of(stable.request)
            located = self._planner.locate_as_sent_on(turn.agent, request, prompt, located.session_id)
        sent = Shaped(request=request, prompt=prompt, located=located, edits=stable.edits)
        return await self._compressor.shaped(turn, sent, card, policy)
