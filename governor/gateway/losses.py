"""What each turn computed again, named and priced once its context has been worked off; see
:mod:`governor.residency.loss` for the deciding."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import msgspec

from governor.clock import Clock
from governor.context import COMPRESSED_EDIT
from governor.events import PrefixLost
from governor.gateway.residency import Followed
from governor.gateway.turn import Turn, TurnBook
from governor.residency.blocks import Blocks
from governor.residency.loss import Asked, Part, Since, parts_of
from governor.residency.prefill import PrefillRate
from governor.snapshot import PrefillView
from governor.tokens.chain import Located
from governor.types import MAIN_KINDS, AgentName, SessionId, TurnId

_MOST_SESSIONS = 1024
_LEAST_BYTES_PER_TOKEN = 2
"""Of JSON. What left the end of a known prompt is taken off by its bytes, rather too much of it."""


class _Last(msgspec.Struct, frozen=True):
    """A session's main line at the end of its last turn."""

    prompt_tokens: int | None
    engines: int
    clearings: int
    absences: int


class PrefixLosses:
    """One per governor, on its event loop."""

    def __init__(self, book: TurnBook, blocks: Blocks, clock: Clock) -> None:
        self._book = book
        self._blocks = blocks
        self._clock = clock
        self._last: OrderedDict[tuple[AgentName, SessionId], _Last] = OrderedDict()
        self._absences = 0
        self.rate = PrefillRate()

    def on_engine_away(self) -> None:
        """It does not answer; what answers next may be another one. May be repeated."""
        self._absences += 1
        self.rate.clear()

    def prefill_view(self) -> PrefillView | None:
        """Now."""
        speed = self.rate.speed
        if speed is None:
            return None
        return PrefillView(tokens_per_s=speed.tokens_per_s, low=speed.low, high=speed.high, turns=speed.samples)

    def on_ended(
        self,
        turn: Turn,
        sent_on: Located,
        messages: Sequence[bytes],
        known_tokens: int | None,
        followed: Followed,
    ) -> None:
        """A turn's generation is over; what it lost is told when its context has been worked off. ``sent_on`` and
        ``messages``: the prompt that the engine saw. ``known_tokens``: of it, what the engine had before."""
        usage, located, measure = turn.usage(), turn.located, turn.measure
        if located is None or measure is None:
            return
        if usage.prompt_tokens is None and not turn.answer.ended_well:
            return
        if sent_on.known is not None and sent_on.known.removed and known_tokens is not None:
            known_tokens -= min(known_tokens, sum(map(len, sent_on.known.removed)) // _LEAST_BYTES_PER_TOKEN)
        asked = Asked(
            shape=located.shape,
            usage=usage,
            is_main=measure.kind in MAIN_KINDS,
            broke=located.broke_at,
            is_compressed=any(edit.startswith(COMPRESSED_EDIT) for edit in turn.edits),
            known_tokens=known_tokens,
            carrier_tokens=len(messages[-1]) // _LEAST_BYTES_PER_TOKEN if messages else 0,
        )
        is_timed = turn.stream or "stream" in turn.edits  # else the first token is relayed with the last one
        if is_timed and turn.prefill_s is not None and usage.new_tokens is not None:
            self.rate.note(usage.new_tokens, turn.prefill_s)
        counted = usage.prompt_tokens if usage.prompt_tokens is not None else measure.count.tokens
        line = (turn.agent, located.session_id)
        followed.on_settled = partial(self._on_settled, turn.turn_id, line, asked, counted)

    def _on_settled(
        self, turn_id: TurnId, line: tuple[AgentName, SessionId], asked: Asked, prompt_tokens: int, followed: Followed
    ) -> None:
        last = self._last.get(line)
        if last is not None:
            asked = msgspec.structs.replace(asked, before_tokens=last.prompt_tokens)
        for part in parts_of(asked, followed.found, self._since(last)):
            self._book.on_lost(self._lost(turn_id, line[0], asked, part))
        if asked.is_main:
            blocks = self._blocks
            self._last[line] = _Last(prompt_tokens, blocks.engines, blocks.clearings, self._absences)
            self._last.move_to_end(line)
            if len(self._last) > _MOST_SESSIONS:
                self._last.popitem(last=False)

    def _since(self, last: _Last | None) -> Since:
        if last is None:
            return Since()
        blocks = self._blocks
        # The first engine that tells of itself has not taken another one's place.
        restarted = last.engines > 0 and blocks.engines > last.engines
        if not (last.engines and blocks.knowledge.tells_depth):  # an engine that tells knows whether it is the same
            restarted = restarted or self._absences > last.absences
        return Since(restarted=restarted, flushed=blocks.clearings > last.clearings)

    def _lost(self, turn_id: TurnId, agent: AgentName, asked: Asked, part: Part) -> PrefixLost:
        broke = asked.broke if part.is_clients else None
        speed = self.rate.speed
        price = speed.price(part.tokens) if speed is not None and part.tokens is not None else None
        return PrefixLost(
            at=self._clock.wall(),
            turn_id=turn_id,
            agent=agent,
            cause=part.cause,
            tokens=part.tokens,
            seconds=None if price is None else price.seconds,
            margin_s=None if price is None else price.margin_s,
            message=None if broke is None else broke.message,
            byte=None if broke is None else broke.byte,
            detail="" if broke is None else broke.detail,
        )
