"""From what a client sends to what the engine shall see: a stable beginning, and a history that is short enough."""

from __future__ import annotations

from governor.compress.client_model import Advice
from governor.compress.recall import NAME, can_offer, names_of, with_tool
from governor.compress.recall_offers import RecallOffers
from governor.errors import UpstreamError
from governor.gateway.compression import Compressor
from governor.gateway.planner import Planner, prompt_of
from governor.gateway.prepared import Preparer
from governor.gateway.shaped import Shaped
from governor.gateway.turn import Turn
from governor.output.stable import Stabiliser
from governor.policy.model import Policy
from governor.types import MAIN_KINDS, SessionId, TokenCount
from governor.wire.request import GenerationRequest
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
        self._offers = RecallOffers()

    async def shaped(self, turn: Turn, sent: Shaped, advice: Advice, card: ModelCard, policy: Policy) -> Shaped:
        """``sent``: as it came. Raises :class:`~governor.errors.ContextOverflow` where a history has become too long
        and nothing helps."""
        stable = self.stabiliser.stabilised(turn.agent, sent.located.session_id, sent.request, policy.request)
        for warning in stable.warnings:
            turn.note(warning)
        request, edits = stable.request, stable.edits
        if self._offers_recall(turn, request, sent.located.session_id, policy):
            turn.offers_recall = True
            request, edits = with_tool(request), (*edits, "recall tool")
        if request is not sent.request:
            prompt = prompt_of(request)
            located = self._planner.locate_as_sent_on(turn.agent, request, prompt, sent.located.session_id)
            sent = Shaped(request=request, prompt=prompt, located=located, edits=edits)
        return await self._compressor.shaped(turn, sent, advice, card, policy)

    def _offers_recall(self, turn: Turn, request: GenerationRequest, session: SessionId, policy: Policy) -> bool:
        """A conversation that was begun with the tool keeps it, and one that was begun without gets none."""
        if request.endpoint is not Endpoint.CHAT:
            return False
        if not self._offers.is_offered(turn.agent, session, wanted=policy.compression.recall_tool):
            return False
        if not can_offer(request):
            return False
        if NAME in names_of(request):
            turn.note(f"recall_tool_withheld: the client has a tool called {NAME}")
            return False
        return True

    def on_answered(
        self, turn: Turn, shaped: Shaped, count: TokenCount, policy: Policy, window_tokens: int | None
    ) -> None:
        """A turn has come to its end; ``count``: what its prompt was thought to be. Raises nothing."""
        if turn.answer.ended_well:
            self._compressor.on_accepted(shaped)
        if shaped.request.endpoint is Endpoint.CHAT and turn.measure and turn.measure.kind in MAIN_KINDS:
            self._preparer.on_answered(turn, shaped, count, policy, window_tokens)

    def on_refused(self, shaped: Shaped, error: UpstreamError) -> None:
        """The engine did not answer. Raises nothing."""
        self._compressor.on_refused(shaped, error)
