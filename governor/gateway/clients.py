"""Clients' own compactions at the gateway: the watch is told of each turn, and what it finds is shown and kept.

The deciding is in :mod:`governor.compress.clients`. Here are the places where a turn meets it: its prompt as it came,
the advice for shaping it, the usage that its client is told, and its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from governor import events
from governor.clock import Clock
from governor.compress.client_model import (
    Advice,
    ClientEnd,
    ClientOutcome,
    ClientPass,
    ClientPrompt,
    News,
    advise,
)
from governor.compress.clients import ClientWatch
from governor.compress.limits import limits_of
from governor.gateway.turn import Turn
from governor.output.kinds import turn_kind
from governor.policy.model import ClientLoops, CompressionPolicy
from governor.store.archive_model import Archive, CompactedBy, Compaction
from governor.tokens.chain import Located
from governor.wire.request import GenerationRequest
from governor.wire.told_usage import told_usage
from serve.engine import Endpoint

LOOP_ALERT = "client_compaction_loop"


class UsageTold:
    """Edits the data of an answer's events, or a plain answer. ``at_most``: what a client may be told of a prompt that
    the engine reports to be of so many tokens; ``None``: the truth."""

    def __init__(self, at_most: Callable[[int], int | None]) -> None:
        self._at_most = at_most
        self.lowered_to: int | None = None
        """The last figure that was not the truth."""

    def __call__(self, data: bytes) -> bytes:
        """The very same bytes where nothing is to be changed."""
        return told_usage(data, self._most)

    def _most(self, reported_tokens: int) -> int | None:
        most = self._at_most(reported_tokens)
        self.lowered_to = most if most is not None and most < reported_tokens else None
        return most


class Watching:
    """One turn's meeting with the watch."""

    def __init__(self, advice: Advice, usage: UsageTold | None) -> None:
        self.advice = advice
        self.usage = usage
        """For the relay; ``None``: the client is told what the engine reports."""
        self.is_as_sent = True
        """The engine is sent the client's own history, so that its figures tell of that. Whoever changes it says so."""


class Clients:
    """One per governor, on its event loop."""

    def __init__(
        self, archive: Archive, event_log: events.EventLog, clock: Clock, watch: ClientWatch | None = None
    ) -> None:
        self._archive = archive
        self._events = event_log
        self._clock = clock
        self._watch = watch or ClientWatch()

    @contextmanager
    def watching(
        self,
        turn: Turn,
        request: GenerationRequest,
        located: Located,
        prompt_tokens: int,
        policy: CompressionPolicy,
        window_tokens: int | None,
    ) -> Iterator[Watching]:
        """Around all that becomes of a turn, from before its prompt is changed to the end of its answer.

        ``request``, ``located`` and ``prompt_tokens`` are of the prompt as it came. Without a window, shares in the
        policy are of this prompt."""
        limits = limits_of(policy, window_tokens or max(1, prompt_tokens))
        prompt = ClientPrompt(
            turn_id=turn.turn_id,
            agent=turn.agent,
            session=located.session_id,
            path=located.path,
            parent=located.parent,
            kind=turn_kind(request),
            shape=located.shape,
            cause=located.broke_at.cause if located.broke_at else None,
            tokens=prompt_tokens,
        )
        standing = self._watch.on_prompt(prompt, attempts=policy.attempts, gain_tokens=limits.gain_tokens)

        def at_most(reported_tokens: int) -> int | None:
            reported = reported_tokens if watching.is_as_sent else None
            return advise(self._watch.standing(turn.turn_id, reported), policy).tell_at_most

        can_lower = policy.client_loops is ClientLoops.STOP and request.endpoint is Endpoint.CHAT
        watching = Watching(advise(standing, policy), UsageTold(at_most) if can_lower else None)
        try:
            yield watching
        finally:
            self._end(turn, request, watching, policy)

    def _end(self, turn: Turn, request: GenerationRequest, watching: Watching, policy: CompressionPolicy) -> None:
        reported = turn.answer.usage.prompt_tokens
        told = reported if request.wants_usage or not request.stream else None
        lowered_to = None if watching.usage is None or told is None else watching.usage.lowered_to
        if lowered_to is not None:
            told = lowered_to
            turn.note(f"usage_lowered: {reported:,} -> {told:,} prompt tokens told")
        end = ClientEnd(
            turn_id=turn.turn_id,
            ok=turn.answer.ended_well,
            reported_tokens=reported if watching.is_as_sent else None,
            told_tokens=told,
            lowered=lowered_to is not None,
        )
        found = self._watch.on_end(end)
        if found is not None:
            self._show(turn, found)
            if found.news is not None:
                self._warn(turn, found, policy)

    def _show(self, turn: Turn, found: ClientPass) -> None:
        if found.outcome is not ClientOutcome.ACCEPTED:
            turn.note(f"client_compaction_{found.outcome}: {found.detail}")
        now = self._clock.wall()
        compaction = Compaction(
            turn_id=found.turn_id,
            agent=found.agent,
            session=found.session,
            at=now,
            by=CompactedBy.CLIENT,
            outcome=found.outcome.value,
            before_tokens=found.before_tokens,
            after_tokens=found.after_tokens,
            detail=found.detail,
            summary_turn=found.calls[-1] if found.calls else None,
        )
        self._archive.note(compaction)
        self._events.publish(
            events.Compacted(
                at=now,
                turn_id=found.turn_id,
                agent=found.agent,
                by=CompactedBy.CLIENT.value,
                outcome=found.outcome.value,
                before_tokens=found.before_tokens,
                after_tokens=found.after_tokens,
                detail=found.detail,
            )
        )

    def _warn(self, turn: Turn, found: ClientPass, policy: CompressionPolicy) -> None:
        """Once a loop, and once more if nothing that the client is told ends it."""
        compacts_at = self._watch.compacts_at(turn.agent)
        words = [f"{turn.agent}: its client has compacted {found.in_vain} times in a row without gain"]
        if compacts_at is not None:
            words.append(f"it compacts from {compacts_at:,} prompt tokens on")
        if found.news is News.DEAF:
            words.append(
                "it does so whatever usage it is told, so it goes by an estimate of its own: "
                "its window or threshold has to be higher (compression.client_window)"
            )
        elif policy.client_loops is ClientLoops.TELL:
            words.append('compression.client_loops = "stop" would break the loop')
        detail = "; ".join(words)
        turn.note(f"{LOOP_ALERT}: {detail}")
        self._events.publish(events.Alert(at=self._clock.wall(), name=LOOP_ALERT, detail=detail))
