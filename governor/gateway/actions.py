"""``POST /governor/actions/...``: what the owner does to agents, turns and policies, from the dashboard or a command.

Each act is authorised by the admin token, done once however often it is sent, written to the log, and told to all who
follow the events, whether it was done or refused. Scheduling and policy files decide what an act means; here it is
understood, handed on and answered.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from governor.acts import (
    ACTS,
    CLIENT_HEADER,
    CLIENTS,
    OTHER_CLIENT,
    Act,
    Acted,
    CancelTurn,
    CompactNow,
    PauseAgent,
    ReloadPolicies,
    ResumeAgent,
    SetPolicy,
    SliceTurn,
)
from governor.errors import BadRequest, GovernorError, NotFound, NotPossible, TurnCancelled
from governor.events import OwnerActed
from governor.gateway.auth import check_admin
from governor.gateway.body import BodyLimits, ClientLeft, read_json_body
from governor.gateway.holds import HELD_REASON, Held, HoldBook
from governor.gateway.http import JSON, headers_of
from governor.gateway.policy_edits import PolicyEdits
from governor.gateway.requested import Requested
from governor.gateway.turn import Turn, TurnBook
from governor.policy.model import CompressionMode
from governor.schedule.loop import Admission
from governor.settings import Secret
from governor.types import AgentName, TurnId
from governor.visible import visible

log = logging.getLogger(__name__)

_LIMITS = BodyLimits(max_bytes=64 * 1024, deadline_s=10.0)
_FIELD = re.compile(r"(?:field|at) `(?:\$\.)?([A-Za-z_]+)")
"""That msgspec names."""
_CANCELLED = "The owner has cancelled this turn."

_LONGEST_SHOWN = 80

AgentsCallback = Callable[[], Collection[AgentName]]


class Actions:
    """The routes. Lives on one event loop."""

    def __init__(
        self,
        *,
        token: Secret,
        agents: AgentsCallback,
        book: TurnBook,
        admission: Admission,
        holds: HoldBook,
        edits: PolicyEdits,
        requested: Requested,
    ) -> None:
        self._token = token
        self._agents = agents
        self._book = book
        self._admission = admission
        self._holds = holds
        self._edits = edits
        self._requested = requested

    def restore(self) -> None:
        """Hold the agents that are on file as paused."""
        for agent, held in self._holds.all().items():
            log.info("%s is still paused by the owner", agent)
            self._admission.hold(agent, HELD_REASON, running=held.running)

    async def act(self, request: Request) -> Response:
        """One act. Raises what the client is told."""
        headers = headers_of(request.scope)
        name = str(request.path_params["action"])
        try:
            check_admin(headers, self._token)
        except GovernorError:
            log.warning("an action was refused: %s without the admin token", name if name in ACTS else "unknown")
            raise
        kind = ACTS.get(name)
        if kind is None:
            raise NotFound(f"There is no such action; there are {', '.join(ACTS)}.")
        try:
            body = await read_json_body(request.receive, headers, _LIMITS)
        except ClientLeft:
            return Response(status_code=400)
        act = _decoded(kind, body)
        client = headers.get(CLIENT_HEADER, "")
        who = f"owner via {client if client in CLIENTS else OTHER_CLIENT}"
        try:
            acted = await self._do(act, who)
        except GovernorError as error:
            self._tell(act, who, "refused", error.message)
            raise
        self._tell(act, who, "done" if acted.changed else "unchanged", acted.detail)
        return Response(msgspec.json.encode(acted), 200, {"cache-control": "no-store"}, JSON)

    def _tell(self, act: Act, who: str, outcome: str, detail: str) -> None:
        """All who follow, and the log."""
        target, detail = self._shown(act.target), self._book.noted(detail)
        log.info("%s: %s %s: %s: %s", who, act.name, target, outcome, detail)
        at = self._book.clock.wall()
        event = OwnerActed(at=at, who=who, action=act.name, target=target, outcome=outcome, detail=detail)
        self._book.events.publish(event)

    def _shown(self, name: str) -> str:
        """Cut after secrets have been taken out, since half of one would not be found."""
        return visible(self._book.noted(name), _LONGEST_SHOWN)

    async def _do(self, act: Act, who: str) -> Acted:
        match act:
            case PauseAgent():
                changed, detail = await self._pause(act)
            case ResumeAgent():
                changed, detail = await self._resume(act)
            case CancelTurn():
                changed, detail = self._cancel(act, who)
            case SliceTurn():
                changed, detail = await self._slice(act, who)
            case CompactNow():
                changed, detail = self._compact(act)
            case SetPolicy():
                changed, detail = await self._edits.set(self._agent(act.agent), act.key, act.value)
            case ReloadPolicies():
                changed, detail = await self._edits.reload()
        return Acted(action=act.name, target=act.target, changed=changed, detail=detail)

    # Agents

    async def _pause(self, act: PauseAgent) -> tuple[bool, str]:
        agent = self._agent(act.agent)
        before = self._holds.of(agent)
        if before is not None and before.running == act.running:
            return False, f"{agent} is paused already"
        since = self._book.clock.wall() if before is None else before.since
        self._admission.hold(agent, HELD_REASON, running=act.running)
        forgotten = await self._holds.put(agent, Held(since=since, running=act.running))
        begun = "answers that have begun pause, where they can be continued" if act.running else "what runs goes on"
        return True, _with_doubt(f"{agent} is paused: its turns wait, {begun}", "a restart resumes it", forgotten)

    async def _resume(self, act: ResumeAgent) -> tuple[bool, str]:
        agent = AgentName(act.agent)
        if self._holds.of(agent) is None:
            self._agent(act.agent)
            return False, f"{agent} is not paused"
        self._admission.release(agent)
        forgotten = await self._holds.drop(agent)
        return True, _with_doubt(f"{agent} is resumed", "a restart pauses it again", forgotten)

    def _compact(self, act: CompactNow) -> tuple[bool, str]:
        agent = self._agent(act.agent)
        mode = self._edits.policy_of(agent).compression.mode
        if mode is not CompressionMode.ENFORCE:
            needed = f"set compression.mode of {agent} to enforce first"
            raise NotPossible(f"compression.mode of {agent} is {mode}, so its prompts are sent as they are; {needed}.")
        if not self._requested.ask(agent):
            return False, f"the next prompt of {agent} is to be made shorter already"
        return True, f"the next prompt of {agent} is made shorter"

    def _agent(self, name: str) -> AgentName:
        if name not in self._agents():
            message = f"There is no agent '{self._shown(name)}'; 'governor agent list' shows them."
            raise NotFound(message, param="agent")
        return AgentName(name)

    # Turns

    def _cancel(self, act: CancelTurn, who: str) -> tuple[bool, str]:
        turn = self._open_turn(act.turn)
        if turn.cancelled:
            return False, f"turn {turn.turn_id} of {turn.agent} is cancelled already"
        done = self._admission.cancel(turn.turn_id, TurnCancelled(_CANCELLED))
        if not done and turn.pieces is None:
            raise NotPossible(f"Turn {turn.turn_id} has not come to ask for the engine yet; try again.", param="turn")
        if not done:
            raise self._not_open(turn.turn_id)
        turn.on_cancelled(who)
        return True, f"turn {turn.turn_id} of {turn.agent} is cancelled"

    async def _slice(self, act: SliceTurn, who: str) -> tuple[bool, str]:
        turn = self._open_turn(act.turn)
        why = await self._admission.slice(turn.turn_id, f"the {who} lets others go first")
        if why is None:
            return True, f"turn {turn.turn_id} of {turn.agent} is asked to pause"
        if turn.waits:
            return False, f"turn {turn.turn_id} of {turn.agent} waits already"
        raise NotPossible(f"Turn {turn.turn_id} cannot be paused: {why}.", param="turn")

    def _open_turn(self, turn_id: str) -> Turn:
        """One that has not come to its end."""
        turn = self._book.open_turn(TurnId(turn_id))
        if turn is None or turn.answer.ended_well:
            raise self._not_open(turn_id)
        return turn

    def _not_open(self, turn_id: str) -> NotFound:
        told = "it has ended, or never was. 'governor explain' tells how a turn ended."
        return NotFound(f"Turn {self._shown(turn_id)} is not open: {told}", param="turn")


def _with_doubt(detail: str, then: str, forgotten: str | None) -> str:
    return detail if forgotten is None else f"{detail}; {then}, since that cannot be kept on file: {forgotten}"


def _decoded(kind: type[Act], body: bytes) -> Act:
    """Raises :class:`BadRequest`, naming the field."""
    try:
        act: Act = msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        named = _FIELD.search(str(error))
        raise BadRequest(f"The body of '{kind.name}': {error}.", param=named and named.group(1)) from error
    return act
