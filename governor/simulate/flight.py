"""One request on its way through the simulator, from its arrival to its row: when what happened, and what is written.

It keeps what is written apart from where it was written, so that a turn that is taken off the engine goes on from
there: prompt and what is written are asked for again, with the rest of the output, in the same tokens.
"""

from __future__ import annotations

from governor.simulate.acts import Request
from governor.simulate.result import Slice, TurnEnd, TurnRow, Wait, WaitPlace
from governor.types import AgentName, TurnId
from serve.twin.engine_model import Admitted, Ask, Cached, Wrote
from serve.twin.tiers_key import Key


class _Stay:
    """One stay on the engine, under way."""

    def __init__(self, at: float, written: int) -> None:
        self.granted_s = at
        self.written_before = written
        self.admitted_s: float | None = None
        self.cached = Cached()
        self.to_compute = 0
        self.prefilled = 0

    def row(self, at: float, written: int) -> Slice:
        return Slice(
            granted_s=self.granted_s,
            admitted_s=self.admitted_s,
            ended_s=at,
            output_tokens=written - self.written_before,
            cached_device=self.cached.device,
            cached_host=self.cached.host,
            cached_storage=self.cached.storage,
            prefilled_tokens=self.prefilled,
        )


class Flight:
    """A request and all that is known of it so far."""

    def __init__(self, number: int, request: Request, at: float) -> None:
        """``number``: by arrival, over all agents."""
        self.number = number
        self.turn_id = TurnId(f"t{number}")
        self.request = request
        self.arrived_s = at
        self.cap = 0
        """Most that it may write, over all its stays."""
        self.written = 0
        self.pause_reason = ""
        """Why it was asked to leave the engine, as long as it has not."""
        self.heard_s = at
        """When its client last had a sign of life."""
        self.new_tokens = 0
        """Of its prompt, as it was first admitted."""
        self._granted_s: float | None = None
        self._admitted_s: float | None = None
        self._first_token_s: float | None = None
        self._last_token_s = request.asked_s
        self._longest_silence_s = 0.0
        self._cached = Cached()
        self._prefilled = 0
        self._retractions = 0
        self._waits: list[Wait] = []
        self._slices: list[Slice] = []
        self._stay: _Stay | None = None
        self._closed: tuple[float, TurnEnd, str] | None = None
        self._wait: tuple[float, WaitPlace, str, tuple[AgentName, ...]] | None = None

    @property
    def rid(self) -> str:
        """Of its stay on the engine; each has its own."""
        stays = len(self._slices) + (self._stay is not None)
        return self.turn_id if stays <= 1 else f"{self.turn_id}/{stays}"

    @property
    def is_on_engine(self) -> bool:
        return self._stay is not None

    @property
    def written_since_grant(self) -> int:
        return self.written - (self._stay.written_before if self._stay else self.written)

    @property
    def was_admitted(self) -> bool:
        return self._admitted_s is not None

    @property
    def cached_tokens(self) -> int:
        """Of its first admission."""
        return self._cached.tokens

    @property
    def context(self) -> Key:
        """Prompt and what is written."""
        return self.request.prompt + self.request.output.cut(0, self.written)

    @property
    def is_waiting(self) -> bool:
        return self._wait is not None

    @property
    def wait_reason(self) -> str:
        """Of the wait it is in; empty: it does not wait."""
        return self._wait[2] if self._wait is not None else ""

    def entered_after(self, other: Flight) -> bool:
        """Of two that wait, whether the other one's wait began first."""
        return self._wait is not None and other._wait is not None and self._wait[0] >= other._wait[0]

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)

    def ask(self, context_tokens: int) -> Ask:
        """What the engine is asked for now: all that is left."""
        request = self.request
        return Ask(
            rid=self.rid,
            prompt=self.context,
            output=request.output.cut(self.written, len(request.output)),
            writes_tokens=len(request.output) - self.written,
            max_new_tokens=min(self.cap - self.written, context_tokens),
            accept_length=request.accept_length,
        )

    def begin_wait(self, at: float, place: WaitPlace, reason: str, behind: tuple[AgentName, ...] = ()) -> None:
        """It waits from now on; another wait ends."""
        self.end_wait(at)
        self._wait = at, place, reason, behind

    def explain_wait(self, reason: str) -> None:
        """What the wait it is in has come down to."""
        if self._wait is not None:
            at, place, _, behind = self._wait
            self._wait = at, place, reason, behind

    def end_wait(self, at: float) -> None:
        if self._wait is not None:
            since, place, reason, behind = self._wait
            self._wait = None
            if at > since:
                self._waits.append(Wait(at_s=since, seconds=at - since, place=place, reason=reason, behind=behind))

    def on_granted(self, at: float) -> None:
        """It is let to the engine, the first time or again."""
        self.end_wait(at)
        if self._granted_s is None:
            self._granted_s = at
        self._stay = _Stay(at, self.written)

    def on_admitted(self, event: Admitted, new_tokens: int) -> None:
        """The engine takes it up; ``new_tokens`` of its context nobody has had computed."""
        self.end_wait(event.at)
        if self._admitted_s is None:
            self._admitted_s = event.at
            self._cached = event.cached
            self.new_tokens = new_tokens
        if self._stay is not None and self._stay.admitted_s is None:
            self._stay.admitted_s = event.at
            self._stay.cached = event.cached
            self._stay.to_compute = len(self.context) - event.cached.tokens

    def on_wrote(self, event: Wrote) -> None:
        """Tokens have come."""
        first_at = event.at if event.first_at is None else event.first_at
        if self._first_token_s is None:
            self._first_token_s = first_at
        self._longest_silence_s = max(self._longest_silence_s, first_at - self._last_token_s)
        self._last_token_s = self.heard_s = event.at
        self.written += event.stop - event.start

    def on_retracted(self, at: float, behind: tuple[AgentName, ...]) -> None:
        self._retractions += 1
        self.begin_wait(at, WaitPlace.ENGINE, "retracted: L1 was full", behind)

    def on_left(self, at: float, prefilled_tokens: int) -> None:
        """It is off the engine, ended or paused."""
        self.end_wait(at)
        self._prefilled += prefilled_tokens
        if self._stay is not None:
            self._stay.prefilled = prefilled_tokens
            self._slices.append(self._stay.row(at, self.written))
            self._stay = None

    def close(self, at: float, end: TurnEnd, detail: str = "") -> None:
        """It is over for its client."""
        self.end_wait(at)
        self._closed = at, end, detail

    def row(self) -> TurnRow:
        """What is known of it in the end. Raises ``ValueError`` if it has not been closed."""
        if self._closed is None:
            raise ValueError(f"{self.turn_id} is under way")
        at, end, detail = self._closed
        if self._stay is not None:  # the engine has not said what it did
            self.on_left(at, self._stay.to_compute if self.written_since_grant else 0)
        new_tokens = min(self.new_tokens, self._prefilled)
        request = self.request
        return TurnRow(
            turn_id=self.turn_id,
            agent=request.agent,
            session=request.session,
            kind=request.kind,
            shape=request.shape,
            attempt=request.attempt,
            asked_s=request.asked_s,
            arrived_s=self.arrived_s,
            granted_s=self._granted_s,
            admitted_s=self._admitted_s,
            first_token_s=self._first_token_s,
            ended_s=at,
            longest_silence_s=max(self._longest_silence_s, at - self._last_token_s),
            prompt_tokens=self.prompt_tokens,
            new_tokens=new_tokens,
            cached_device=self._cached.device,
            cached_host=self._cached.host,
            cached_storage=self._cached.storage,
            reprefilled_tokens=self._prefilled - new_tokens,
            output_tokens=self.written,
            wanted_tokens=len(request.output),
            cap_requested=request.cap,
            cap_tokens=self.cap,
            waits=tuple(self._waits),
            slices=tuple(self._slices),
            retractions=self._retractions,
            end=end,
            detail=detail,
        )
