"""The scheduler's state as the admin API shows it: who runs, who waits for what, what is booked. Pure."""

from __future__ import annotations

from governor.budget.ledger import Lease, LeaseState
from governor.schedule.standing import Standing
from governor.schedule.turns import TurnScheduler
from governor.snapshot import LeaseView, QueueView, WaitingView


def queue_view(scheduler: TurnScheduler, now: float, wall: float) -> QueueView:
    """``now`` is the scheduler's time, ``wall`` the Unix time of the same moment, both in seconds."""
    ledger, offset_s = scheduler.ledger, wall - now
    return QueueView(
        leases=tuple(_lease(lease, offset_s) for lease in ledger.leases()),
        waiting=tuple(_waiting(standing, offset_s) for standing in scheduler.standings(now)),
        booked_tokens=ledger.held_tokens,
        foreign_tokens=ledger.foreign_tokens,
        free_tokens=ledger.free_tokens,
        capacity_tokens=ledger.capacity.tokens,
    )


def _lease(lease: Lease, offset_s: float) -> LeaseView:
    claim = lease.claim
    return LeaseView(
        turn_id=claim.turn_id,
        agent=claim.agent,
        since=lease.since + offset_s,
        booked_tokens=claim.tokens,
        output_tokens=claim.output_tokens * claim.choices,
        leaving=lease.state is LeaseState.LEAVING,
    )


def _waiting(standing: Standing, offset_s: float) -> WaitingView:
    waiting = standing.waiting
    turn = waiting.turn
    return WaitingView(
        turn_id=turn.turn_id,
        agent=turn.agent,
        position=standing.position,
        since=waiting.since + offset_s,
        due=waiting.due + offset_s,
        reason=standing.reason,
        needs_tokens=None if turn.claim is None else turn.claim.tokens,
        paused=waiting.resumed,
    )
