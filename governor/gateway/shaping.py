"""From what a client sends to what the engine shall see: a stable beginning, and a history that is short enough."""

from __future__ import annotations

from governor.compress.client_model import Advice
from governor.gateway.compression import Compressor
from governor.gateway.planner import Planner, prompt_of
from governor.gateway.prepared import Preparer
from governor.gateway.shaped import Shaped
from governor.gateway.turn import Turn
from governor.output.stable import Stabiliser
from governor.policy.model import Policy
from governor.types import MAIN_KINDS, TokenCount
from serve.engine import Endpoint, ModelCard


class Shaping:
    """One per governor."""

    def __init__(
        self, planner: Planner, compressor: Compressor, preparer: Preparer, stabiliser: Stabiliser | None = None
    ) -> None:
        self._planner = planner
        self._compressor = compressor
        self._preparer = preparer
        self.stabiliser = stabiliser or Stabiliser()

    async def shaped(self, turn: Turn, sent: Shaped, advice: Advice, card: ModelCard, policy: Policy) -> Shaped:
        """``sent``: as it came. Raises :class:`~governor.errors.ContextOverflow` where a history has become too long
        and nothing helps."""
        stable = self.stabiliser.stabilised(turn.agent, sent.located.session_id, sent.request, policy.request)
        for warning in stable.warnings:
            turn.note(warning)
        if stable.request is not sent.request:
            prompt = prompt_of(stable.request)
            located = self._planner.locate_as_sent_on(turn.agent, stable.request, prompt, sent.located.session_id)
            sent = Shaped(request=stable.request, prompt=prompt, located=located, edits=stable.edits)
        return await self._compressor.shaped(turn, sent, advice, card, policy)

    def on_answered(
        self, turn: Turn, shaped: Shaped, count: TokenCount, policy: Policy, window_tokens: int | None
    ) -> None:
        """A turn has come to its end; ``count``: what its prompt was thought to be. Raises nothing."""
        if shaped.request.endpoint is Endpoint.CHAT and turn.measure and turn.measure.kind in MAIN_KINDS:
            self._preparer.on_answered(turn, shaped, count, policy, window_tokens)
