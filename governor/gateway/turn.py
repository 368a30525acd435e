"""A turn's facts, and the book that opens and closes turns. Whatever happens, a turn ends once, in one state.

The state follows from how the ``with`` block is left; nothing else may write it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from types import TracebackType

import msgspec

from governor import events
from governor.clock import Clock
from governor.errors import GovernorError, InternalError, TurnCancelled, UpstreamError
from governor.gateway.holds import HELD_REASON, Held
from governor.gateway.metrics import Metrics
from governor.gateway.planner import Measure
from governor.gateway.totals import Totals
from governor.output.caps import CapDecision
from governor.redact import Redactor
from governor.snapshot import AgentView, TurnView
from governor.store.model import TurnClosed, TurnLog, TurnOpened
from governor.tokens.chain import Located
from governor.types import AgentName, TurnId, TurnState, Usage
from governor.visible import LONGEST_NAME, LONGEST_REASON, visible
from governor.wire.answer import Answer

log = logging.getLogger(__name__)

_WAITING = frozenset({"waiting", "paused"})
BYTES_PER_TOKEN = 4
"""For the estimate of what an answer without usage held; kept apart from reported figures everywhere."""


class Turn:
    """One turn, from its complete body to its end. A context manager; see the module."""

    def __init__(self, book: TurnBook, turn_id: TurnId, agent: AgentName, route: str, request_bytes: int) -> None:
        self._book = book
        self._opened = book.clock.monotonic()
        self._opened_wall = book.clock.wall()
        self.turn_id = turn_id
        self.agent = agent
        self.route = route
        self.request_bytes = request_bytes
        self.client_gone = False
        """Set before the turn's task is cancelled because the client left."""
        self.phase = "reading"
        self.waits_for: str | None = None
        self.located: Located | None = None
        self.model: str | None = None
        self.stream: bool | None = None
        self.measure: Measure | None = None
        self.message_count: int | None = None
        self.cap: CapDecision | None = None
        self.edits: tuple[str, ...] = ()
        self.answer = Answer()
        self.tiers_asked = False
        """The engine was asked which tier served the cached tokens."""
        self.offers_recall = False
        """The model may recall what left its prompt."""
        self.flags: list[str] = []
        self.queued_s: float | None = None
        self.pieces: int | None = None
        """Generations begun for it."""
        self._granted_at = 0.0
        """Monotonic time of its last grant."""
        self.prefill_s: float | None = None
        """From the last grant before the first token to that token."""
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self.first_token_s: float | None = None
        self.http_status: int | None = None
        self.response_bytes = 0
        self.cancelled = False
        """The owner has ended it; its end is on the way."""
        self._closed = False

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        state, code, reason = self._end_of(error)
        self._close(state, code, None if reason is None else self._book.noted(reason))

    @property
    def waits(self) -> bool:
        """For the engine: for the first time, or to go on."""
        return self.phase in _WAITING

    def on_queued(self, reason: str) -> None:
        """The turn has to wait."""
        if self._paused_at is not None:
            return  # whom it has made room for says more than what it waits for
        self.phase, self.waits_for = "waiting", reason
        now = self._book.clock.wall()
        event = events.TurnQueued(at=now, turn_id=self.turn_id, agent=self.agent, reason=reason)
        self._book.events.publish(event)

    def on_granted(self, waited_s: float) -> None:
        """The turn goes to the engine."""
        self.phase, self.waits_for, self.queued_s, self.pieces = "prefill", None, waited_s, 1
        self._granted_at = self._book.clock.monotonic()
        now = self._book.clock.wall()
        event = events.TurnGranted(at=now, turn_id=self.turn_id, agent=self.agent, queued_ms=waited_s * 1000)
        self._book.events.publish(event)

    def on_first_token(self) -> None:
        """The first generated piece is about to be relayed. May be repeated."""
        self.phase = "decode"
        if self.first_token_s is not None:
            return
        monotonic = self._book.clock.monotonic()
        self.first_token_s, self.prefill_s = monotonic - self._opened, monotonic - self._granted_at
        now = self._book.clock.wall()
        event = events.TurnFirstToken(at=now, turn_id=self.turn_id, agent=self.agent, ttft_ms=self.first_token_s * 1000)
        self._book.events.publish(event)

    def on_paused(self, reason: str) -> None:
        """The turn was stopped to make room for others, and waits to go on."""
        clock = self._book.clock
        self.phase, self.waits_for, self._paused_at = "paused", reason, clock.monotonic()
        event = events.TurnPaused(at=clock.wall(), turn_id=self.turn_id, agent=self.agent, reason=reason)
        self._book.events.publish(event)

    def on_resumed(self) -> None:
        """The turn goes on where it was."""
        clock = self._book.clock
        paused_s = self._end_pause()
        self._granted_at = clock.monotonic()
        self.phase, self.waits_for, self.pieces = "prefill", None, (self.pieces or 0) + 1
        event = events.TurnResumed(
            at=clock.wall(), turn_id=self.turn_id, agent=self.agent, paused_ms=round(paused_s * 1000, 3)
        )
        self._book.events.publish(event)

    def on_went_on(self) -> None:
        """The turn was stopped and goes on at once, as another generation."""
        self.pieces = (self.pieces or 0) + 1

    def on_cancelled(self, who: str) -> None:
        """It was ended from outside."""
        self.cancelled = True
        self.note(f"cancelled: {who}")

    def note(self, flag: str) -> None:
        """An oddity, for the row: its name and, behind a colon, its details. May be repeated."""
        flag = self._book.noted(flag)
        if flag not in self.flags:
            self.flags.append(flag)

    def _end_pause(self) -> float:
        """Seconds of the pause that ends now, if there is one."""
        if self._paused_at is None:
            return 0.0
        paused_s = self._book.clock.monotonic() - self._paused_at
        self._paused_at, self._paused_s = None, self._paused_s + paused_s
        return paused_s

    def view(self, reason_now: str | None) -> TurnView:
        """``reason_now``: why it waits at this moment; ``None``: as it was told."""
        return TurnView(
            turn_id=self.turn_id,
            agent=self.agent,
            route=self.route,
            phase=self.phase,
            since=self._opened_wall,
            kind=self.measure.kind if self.measure else None,
            waits_for=reason_now if reason_now and self.phase == "waiting" else self.waits_for,
            prompt_tokens=self.measure.count.tokens if self.measure else None,
            cap=self.cap.tokens if self.cap else None,
            generated_bytes=self.answer.generated_bytes,
        )

    def _end_of(self, error: BaseException | None) -> tuple[TurnState, str | None, str | None]:
        """State, error code and reason. An answer that had ended well before the exit stays a success."""
        answer = self.answer
        if answer.ended_well and (error is None or isinstance(error, asyncio.CancelledError | TurnCancelled)):
            return (TurnState.TRUNCATED if answer.truncated else TurnState.OK), None, None
        if answer.error is not None and (error is None or isinstance(error, asyncio.CancelledError)):
            return TurnState.UPSTREAM_ERROR, UpstreamError.code, str(answer.error.get("message", ""))
        match error:
            case UpstreamError():
                return TurnState.UPSTREAM_ERROR, error.code, error.message
            case InternalError():
                return TurnState.GOVERNOR_ERROR, error.code, error.message
            case GovernorError():
                return TurnState.REFUSED, error.code, error.message
            case asyncio.CancelledError() if self.client_gone:
                return TurnState.CLIENT_ABORTED, None, "the client closed the connection"
            case asyncio.CancelledError():
                return TurnState.INTERRUPTED, None, "the governor stopped"
            case None:
                return TurnState.GOVERNOR_ERROR, InternalError.code, "the turn ended without an answer"
        return TurnState.GOVERNOR_ERROR, InternalError.code, type(error).__name__

    def usage(self) -> Usage:
        """As reported. An engine that splits what was cached by tier says nothing where nothing was cached (SGLang)."""
        usage = self.answer.usage
        if not self.tiers_asked or usage.cached_tokens != 0 or usage.cached_device_tokens is not None:
            return usage
        return msgspec.structs.replace(usage, cached_device_tokens=0, cached_host_tokens=0, cached_storage_tokens=0)

    def _close(self, state: TurnState, code: str | None, reason: str | None) -> None:
        if self._closed:
            raise RuntimeError(f"turn {self.turn_id} closed twice")
        self._closed = True
        self._end_pause()
        answer, usage = self.answer, self.usage()
        if answer.lost_to_reasoning:
            self.flags.append("answer_lost_to_reasoning")
        known = None not in (usage.reasoning_tokens, usage.completion_tokens)
        if known and (usage.reasoning_tokens or 0) > (usage.completion_tokens or 0):
            self.flags.append("reasoning_exceeds_completion")
        if answer.junk_events:
            self.flags.append("junk_events")
        if answer.ended_well and answer.finish_reason is None:
            self.flags.append("no_finish_reason")
        estimate = None
        if usage.completion_tokens is None and answer.generated_bytes:
            estimate = max(answer.content_events, answer.generated_bytes // BYTES_PER_TOKEN)
        located, measure, cap = self.located, self.measure, self.cap
        count = measure.count if measure else None
        record = TurnClosed(
            turn_id=self.turn_id,
            state=state,
            closed_at=self._book.clock.wall(),
            session=located.session_id if located else None,
            kind=self.measure.kind if self.measure else None,
            shape=located.shape if located else None,
            model=None if self.model is None else visible(self.model, LONGEST_NAME),
            stream=self.stream,
            http_status=self.http_status,
            error_code=code,
            reason=reason,
            finish_reason=None if answer.finish_reason is None else visible(answer.finish_reason, LONGEST_NAME),
            usage=usage,
            prompt_tokens_counted=count.tokens if count else None,
            prompt_tokens_margin=count.margin if count else None,
            count_source=count.source if count else None,
            completion_tokens_estimated=estimate,
            cap_requested=cap.requested if cap else None,
            cap_applied=cap.tokens if cap else None,
            cap_reason=cap.reason.value if cap else None,
            window_tokens=measure.window_tokens if measure else None,
            message_count=self.message_count,
            shared_messages=located.shared_messages if located else None,
            broke_at=str(located.broke_at) if located and located.broke_at else None,
            edits=self.edits,
            flags=tuple(self.flags),
            pieces=self.pieces,
            paused_ms=None if self.pieces is None else _ms(self._paused_s),
            queued_ms=_ms(self.queued_s),
            ttft_ms=_ms(self.first_token_s),
            duration_ms=_ms(self._book.clock.monotonic() - self._opened),
            request_bytes=self.request_bytes,
            response_bytes=self.response_bytes,
        )
        self._book.on_closed(self, record)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


class TurnBook:
    """Opens and closes turns; tells the log, the metrics and the event log. Lives on one event loop."""

    def __init__(
        self, clock: Clock, turn_log: TurnLog, event_log: events.EventLog, metrics: Metrics, redactor: Redactor
    ) -> None:
        self.clock = clock
        self._redactor = redactor
        self.events = event_log
        self._log = turn_log
        self._metrics = metrics
        self._open: dict[TurnId, Turn] = {}
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._totals: dict[AgentName, Totals] = {}

    @property
    def open_turns(self) -> int:
        return len(self._open)

    async def wait_until_none_open(self) -> None:
        """Returns when every turn has ended."""
        await self._none_open.wait()

    def agents(self) -> set[AgentName]:
        """Agents seen since the start."""
        return set(self._totals) | {turn.agent for turn in self._open.values()}

    def open_turn(self, turn_id: TurnId) -> Turn | None:
        """``None`` if it has ended, or never was."""
        return self._open.get(turn_id)

    def open(self, agent: AgentName, route: str, request_bytes: int) -> Turn:
        """A turn whose body is complete. Use as a context manager."""
        turn = Turn(self, TurnId("t-" + secrets.token_hex(8)), agent, route, request_bytes)
        self._open[turn.turn_id] = turn
        self._none_open.clear()
        now = self.clock.wall()
        self._log.opened(TurnOpened(turn_id=turn.turn_id, agent=agent, route=route, opened_at=now))
        self.events.publish(events.TurnStarted(at=now, turn_id=turn.turn_id, agent=agent, route=route))
        return turn

    def noted(self, reason: str) -> str:
        """A reason as it may be recorded: it may quote an engine, which may quote its key."""
        return visible(self._redactor.text(reason), LONGEST_REASON)

    def on_decided(self, decided: events.TurnDecided) -> None:
        """The scheduler has decided about a turn; its end may have come before."""
        decided = msgspec.structs.replace(decided, why=self.noted(decided.why))
        self._log.decided(decided)
        self.events.publish(decided)

    def on_closed(self, turn: Turn, record: TurnClosed) -> None:
        """Called by the turn, once."""
        del self._open[turn.turn_id]
        if not self._open:
            self._none_open.set()
        self._log.closed(record)
        self._metrics.on_turn(
            turn.agent,
            record.kind,
            record.state,
            record.usage,
            queued_s=turn.queued_s,
            ttft_s=turn.first_token_s,
            flags=record.flags,
        )
        self._totals.setdefault(turn.agent, Totals()).on_closed(record)
        self.events.publish(
            events.TurnEnded(
                at=record.closed_at,
                turn_id=turn.turn_id,
                agent=turn.agent,
                state=record.state,
                kind=record.kind,
                usage=record.usage,
                cap_applied=record.cap_applied,
                finish_reason=record.finish_reason,
                reason=record.reason,
                duration_ms=record.duration_ms,
                ttft_ms=record.ttft_ms,
            )
        )

    def on_lost(self, lost: events.PrefixLost) -> None:
        """A turn computed again what had been computed; most ends have come before."""
        lost = msgspec.structs.replace(lost, detail=self.noted(lost.detail))
        self._log.lost(lost)
        self.events.publish(lost)
        self._totals.setdefault(AgentName(lost.agent), Totals()).on_lost(lost)

    def views(self, reasons: Mapping[str, str] | None = None) -> tuple[TurnView, ...]:
        """Of open turns. ``reasons``: why those that wait do so now, by turn."""
        now = reasons or {}
        return tuple(turn.view(now.get(turn.turn_id)) for turn in self._open.values())

    def agent_view(self, name: AgentName, policy_problem: str | None, held: Held | None = None) -> AgentView:
        totals = self._totals.get(name, Totals())
        mine = [turn for turn in self._open.values() if turn.agent == name]
        return AgentView(
            name=name,
            running=sum(1 for turn in mine if turn.phase in {"prefill", "decode"}),
            waiting=sum(1 for turn in mine if turn.waits),
            turns=dict(totals.turns),
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            completion_tokens=totals.completion_tokens,
            unreported=totals.unreported,
            last_usage=totals.last_usage,
            last_ttft_ms=totals.last_ttft_ms,
            last_seen=totals.last_seen,
            policy_problem=policy_problem,
            held=held is not None,
            held_reason=None if held is None else HELD_REASON,
            held_since=None if held is None else held.since,
            losses=totals.losses(),
        )
