"""The dashboard's side of the admin API: loads the state, follows the events, and comes back when the governor does.

No Textual here: what comes in is told to a callback as values, so that scripts and tests can follow, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Never, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from governor.acts import ACTIONS_PATH, CLIENT_HEADER, Act, Acted
from governor.context import ContextPage
from governor.events import AnyEvent
from governor.pages import EngineLogPage, PolicyPage
from governor.settings import Secret
from governor.snapshot import Snapshot

_MAX_EVENT_BYTES = 1024 * 1024
_NO_GOVERNOR = "no governor runs from this home"
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
P = TypeVar("P")


class Address(msgspec.Struct, frozen=True):
    """Where the governor's admin API is. Both parts are new at each of its starts."""

    url: str
    token: Secret


class Loaded(msgspec.Struct, frozen=True):
    """The whole picture, as of now."""

    snapshot: Snapshot


class Happened(msgspec.Struct, frozen=True):
    """One event, in order. A ``Gap`` says that earlier ones are missing."""

    event: AnyEvent


class Disconnected(msgspec.Struct, frozen=True):
    """Nothing is heard of the governor; the next try is in ``retry_in_s``."""

    why: str
    retry_in_s: float


Update = Loaded | Happened | Disconnected
Find = Callable[[], Address | None]
"""Finds the running governor; ``None`` while none runs. Asked anew before each try."""


class ClientTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    refresh_busy_s: float = 1.0
    """At least so long between two loads of the state while turns are open or events come."""
    refresh_quiet_s: float = 5.0
    """At most so long between two loads: what changes without an event is no older than this."""
    first_retry_s: float = 0.25
    longest_retry_s: float = 3.0
    """Tries double their distance up to this; a look at a local file and port is cheap."""
    answer_s: float = 5.0
    """For the state to answer."""
    act_s: float = 15.0
    """For an action to be answered: a policy file that another program edits is waited for up to 10 s."""
    silence_s: float = 45.0
    """The events page sends a comment every 15 s; after three missed ones the connection is dead."""


class NotConnected(Exception):
    """The governor is not there, does not answer, or answers something else. The text says which."""


class NotActed(Exception):
    """The governor refuses an action. The text is its reason."""


class EventSplitter:
    """Cuts the events page into ids and data. For what our own server sends: LF line ends, one data line an event.

    httpx's line iterator cuts at U+2028 and U+0085, which JSON strings may hold as they are, so bytes are cut here.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Whole events in order, comments left out. Raises :class:`NotConnected` on something that is not this page."""
        *blocks, self._rest = (self._rest + chunk).split(b"\n\n")
        if len(self._rest) > _MAX_EVENT_BYTES:
            raise NotConnected("the events page sent an event without an end")
        for block in blocks:
            fields = dict(line.partition(b": ")[::2] for line in block.split(b"\n") if not line.startswith(b":"))
            if b"data" in fields:
                number = fields.get(b"id", b"")
                if not number.isdigit():
                    raise NotConnected("the events page sent an event without a number")
                yield int(number), fields[b"data"]


class GovernorClient:
    """Follows one governor, from any state of it. :meth:`follow` runs until it is cancelled."""

    def __init__(self, find: Find, times: ClientTimes | None = None, name: str = "top") -> None:
        self._find = find
        self._name = name
        self._times = times or ClientTimes()
        self._life: float | None = None
        """Start of the governor whose events ``_last_id`` counts."""
        self._last_id = 0
        self._failures = 0
        self._event_of = msgspec.json.Decoder(AnyEvent)

    async def follow(self, tell: Callable[[Update], None]) -> Never:
        """Tell of everything: the state first and again after each change, each event once, and every failure.

        A governor met for the first time is asked for all events it still has.
        """
        while True:
            why = ""
            try:
                await self._live(tell)
            except* NotConnected as errors:
                why = str(errors.exceptions[0])
            pause = min(self._times.first_retry_s * 2**self._failures, self._times.longest_retry_s)
            self._failures = min(self._failures + 1, 10)
            tell(Disconnected(why, pause))
            await asyncio.sleep(pause)

    async def act(self, act: Act) -> Acted:
        """Have the running governor do something. Raises :class:`NotActed` with its reason when it refuses, and
        :class:`NotConnected`. May be called while :meth:`follow` runs; what follows from it comes as events."""
        address = self._find()
        if address is None:
            raise NotConnected(_NO_GOVERNOR)
        headers = {"content-type": "application/json", CLIENT_HEADER: self._name}
        async with _http(address, self._times.act_s, headers) as http:
            with _translated(http):
                answer = await http.post(ACTIONS_PATH + act.name, content=msgspec.json.encode(act))
        if answer.status_code != httpx.codes.OK:
            raise NotActed(_refusal(answer))
        try:
            return msgspec.json.decode(answer.content, type=Acted)
        except msgspec.MsgspecError as error:
            raise NotConnected(f"the governor is of another version: {error}") from error

    async def context(self, agent: str) -> ContextPage:
        """What the agent's prompt is made of. Raises :class:`NotConnected`; so do the pages below."""
        return await self._page(f"/governor/agents/{quote(agent, safe='')}/context", ContextPage)

    async def policy(self, agent: str) -> PolicyPage:
        """What holds for the agent."""
        return await self._page(f"/governor/agents/{quote(agent, safe='')}/policy", PolicyPage)

    async def engine_log(self) -> EngineLogPage:
        """The engine's last lines."""
        return await self._page("/governor/engine/log", EngineLogPage)

    async def _page(self, path: str, kind: type[P]) -> P:
        address = self._find()
        if address is None:
            raise NotConnected(_NO_GOVERNOR)
        async with _http(address, self._times.answer_s) as http:
            with _translated(http):
                answer = _checked(await http.get(path))
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError as error:
            raise NotConnected(f"the governor is of another version: {error}") from error

    async def _live(self, tell: Callable[[Update], None]) -> Never:
        """One connection, from its start to its end. Raises :class:`NotConnected`, alone or in a group."""
        address = self._find()
        if address is None:
            raise NotConnected(_NO_GOVERNOR)
        async with _http(address, self._times.answer_s) as http:
            snapshot = await self._load(http)
            if snapshot.started_at != self._life:
                self._life, self._last_id = snapshot.started_at, 0
            self._failures = 0
            tell(Loaded(snapshot))
            changed = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                refresher = group.create_task(self._keep_fresh(http, snapshot, changed, tell))
                await self._read_events(http, changed, tell)
                refresher.cancel()
        raise NotConnected("the governor has ended the connection")

    async def _load(self, http: httpx.AsyncClient) -> Snapshot:
        with _translated(http):
            answer = _checked(await http.get("/governor/state"))
        try:
            return msgspec.json.decode(answer.content, type=Snapshot)
        except msgspec.MsgspecError as error:
            raise NotConnected(f"the governor's state is of another version: {error}") from error

    async def _keep_fresh(
        self, http: httpx.AsyncClient, snapshot: Snapshot, changed: asyncio.Event, tell: Callable[[Update], None]
    ) -> None:
        """Load the state again after events, while turns are open, and now and then. Events carry no sums, so nothing
        here is counted twice or drifts."""
        times = self._times
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(times.refresh_busy_s if snapshot.turns else times.refresh_quiet_s):
                    await changed.wait()
            changed.clear()
            snapshot = await self._load(http)
            tell(Loaded(snapshot))
            await asyncio.sleep(times.refresh_busy_s)

    async def _read_events(
        self, http: httpx.AsyncClient, changed: asyncio.Event, tell: Callable[[Update], None]
    ) -> None:
        """Read to the end of the page."""
        splitter = EventSplitter()
        headers = {"last-event-id": str(self._last_id)}
        times = httpx.Timeout(self._times.answer_s, read=self._times.silence_s)
        with _translated(http):
            async with http.stream("GET", "/governor/events", headers=headers, timeout=times) as answer:
                _checked(answer)
                async for chunk in answer.aiter_bytes():
                    for number, data in splitter.feed(chunk):
                        self._on_event(number, data, tell)
                        changed.set()

    def _on_event(self, number: int, data: bytes, tell: Callable[[Update], None]) -> None:
        self._last_id = number
        try:
            event = self._event_of.decode(data)
        except msgspec.ValidationError:
            return  # a kind of event that a newer governor has
        except msgspec.DecodeError as error:
            raise NotConnected(f"the events page sent something else: {error}") from error
        tell(Happened(event))


def _http(address: Address, answer_s: float, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """As the owner. The admin API speaks plain HTTP; a context that trusts the usual certificates takes 60 ms."""
    return httpx.AsyncClient(
        base_url=address.url,
        headers={"authorization": f"Bearer {address.token.reveal()}", **(headers or {})},
        timeout=httpx.Timeout(answer_s),
        trust_env=False,
        verify=_NO_TLS,
    )


class _Reason(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    """An error body."""

    error: _Reason


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        raise NotConnected("the governor does not take this admin token")
    if answer.status_code != httpx.codes.OK:
        raise NotConnected(f"the governor answered {answer.status_code} to {answer.request.url.path}")
    return answer


def _refusal(answer: httpx.Response) -> str:
    """Why, in the governor's words where it has any."""
    try:
        return msgspec.json.decode(answer.content, type=_Refusal).error.message
    except msgspec.MsgspecError:
        return f"the governor answered {answer.status_code} to {answer.request.url.path}"


@contextlib.contextmanager
def _translated(http: httpx.AsyncClient) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NotConnected(f"no connection to {http.base_url}: {type(error).__name__}") from error
