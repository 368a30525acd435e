"""What is known of the engine now: whether it answers, what it serves, how large its window is.

One probe at a time, cheap and non-generating. An engine that works on turns and does not answer a probe is busy, not
down: a long prefill blocks the health path of real engines for minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from governor import events
from governor.budget.claim import Capacity
from governor.clock import Clock
from governor.errors import GovernorError, ModelNotFound, UpstreamUnavailable
from governor.schedule.events import EngineMode
from governor.snapshot import EngineView
from serve.engine import Engine, EngineInfo, ModelCard

log = logging.getLogger(__name__)

SMALLEST_ADVERTISED_WINDOW = 64_000
"""Hermes 0.19.0 refuses to start when a model card says less. Smaller windows are enforced, not advertised."""


class WatchTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    while_coming_s: float = 0.5
    while_ready_s: float = 10.0
    down_after_s: float = 15.0
    """An engine nobody supervises that has not answered for so long is down: turns are refused, not held."""


EngineListener = Callable[[EngineMode, int | None, str], None]
"""Told the mode, the slots and a detail; what the engine can hold stands in :attr:`EngineWatch.capacity` by then, and
whether it is another process in :attr:`EngineWatch.is_anew`."""
ProcessListener = Callable[[EngineMode, str], None]


class EngineWatch:
    """Watches one engine. :meth:`run` must be running; everything else is for the same event loop."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        event_log: events.EventLog,
        on_change: EngineListener,
        *,
        window_tokens: int | None = None,
        supervised: bool = False,
        busy: Callable[[], bool] = lambda: False,
        times: WatchTimes | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._events = event_log
        self._on_change = on_change
        self._configured_window = window_tokens
        self._supervised = supervised
        self._busy = busy
        self._times = times or WatchTimes()
        self._mode = EngineMode.COMING
        self._process_mode: EngineMode | None = None
        """As its supervisor last told; ``None`` where nobody supervises it."""
        self._has_gone = False
        """Its process, since it was last ready."""
        self._detail = ""
        self._info = EngineInfo(models=())
        self._by_name: dict[str, ModelCard] = {}
        self._last_answer = clock.monotonic()
        self._checked_at: float | None = None
        self._look_now = asyncio.Event()
        self._changed = asyncio.Event()
        self.capacity = Capacity()
        """What it says it can hold for running turns."""
        self.is_anew = False
        """It has become ready as another process, as its supervisor has told. Holds while that is passed on."""
        self.alerts: dict[str, str] = {}
        """What the owner should know, by name."""

    @property
    def mode(self) -> EngineMode:
        return self._mode

    @property
    def models(self) -> tuple[ModelCard, ...]:
        return self._info.models

    def model(self, name: str) -> ModelCard:
        """The card of a served model, by id or alias. Raises :class:`ModelNotFound`."""
        card = self._by_name.get(name)
        if card is None:
            served = ", ".join(card.id for card in self._info.models) or "none yet: the engine is not ready"
            shown = name if name.isprintable() and len(name) <= 100 else "this name"
            raise ModelNotFound(f"The model {shown!r} is not served here. Served: {served}.", param="model")
        return card

    async def wait_until_met(self, patience_s: float) -> None:
        """Wait until the engine has told what it serves. Raises :class:`UpstreamUnavailable` when it is down, or has
        not by then."""
        try:
            async with asyncio.timeout(patience_s):
                while not self._info.models and self._mode is not EngineMode.DOWN:
                    await self._changed.wait()
        except TimeoutError as error:
            raise self._unavailable() from error
        if not self._info.models:
            raise self._unavailable()

    def _unavailable(self) -> UpstreamUnavailable:
        detail = self._detail.rstrip(".") or "it has not answered yet"
        return UpstreamUnavailable(f"No answer can be had now: the engine is not ready: {detail}.", retry_after_s=5)

    def on_unavailable(self) -> None:
        """A turn has found nobody at the engine's address: hold the others, and look at once."""
        if self._mode is EngineMode.READY:
            self._last_answer = self._clock.monotonic()
            self._set(EngineMode.COMING, "it does not accept connections")
        self._look_now.set()

    def on_process(self, mode: EngineMode, detail: str) -> None:
        """A supervisor reports on the engine's process. ``READY`` from it still waits for our own look.

        Until then nobody is asked: an engine that is not ready may list its models already, and a stranger may have
        taken the port of one that is gone.
        """
        self._process_mode = mode
        self._has_gone = self._has_gone or mode is not EngineMode.READY
        if mode is not EngineMode.READY:
            self._set(mode, detail)
        self._look_now.set()

    def set_alert(self, name: str, detail: str) -> None:
        """Tell the owner, once for each new text; an empty one takes the alert back."""
        if self.alerts.get(name, "") == detail:
            return
        if not detail:
            del self.alerts[name]
            return
        self.alerts[name] = detail
        log.warning("%s: %s", name, detail)
        self._events.publish(events.Alert(at=self._clock.wall(), name=name, detail=detail))

    def view(self) -> EngineView:
        windows = [card.window_tokens for card in self._info.models if card.window_tokens is not None]
        return EngineView(
            name=self._engine.name,
            mode=self._mode.value,
            detail=self._detail,
            version=self._info.version,
            models=tuple(card.id for card in self._info.models),
            window_tokens=min(windows, default=None),
            slots=self._info.slots,
            checked_at=self._checked_at,
        )

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self._look()
            except Exception:
                log.exception("looking at the engine failed")
            ready = self._mode is EngineMode.READY
            pause = self._times.while_ready_s if ready else self._times.while_coming_s
            try:
                async with asyncio.timeout(pause):
                    await self._look_now.wait()
            except TimeoutError:
                pass
            self._look_now.clear()

    async def _look(self) -> None:
        if self._process_mode not in {None, EngineMode.READY}:
            return
        answers = await self._engine.is_ready()
        now = self._clock.monotonic()
        self._checked_at = self._clock.wall()
        if answers:
            self._last_answer = now
            if self._mode is not EngineMode.READY:
                await self._meet()
            elif self.capacity.tokens is None and await self._learn_capacity():
                self._on_change(self._mode, self._info.slots, self._detail)
        elif self._mode is EngineMode.READY and self._busy():
            self._detail = "busy: it works on turns and does not answer probes"
        elif self._supervised:
            if self._mode is EngineMode.READY:
                self._set(EngineMode.COMING, "it does not answer")
        elif now - self._last_answer > self._times.down_after_s or self._mode is EngineMode.DOWN:
            self._set(EngineMode.DOWN, "it does not answer")
        else:
            self._set(EngineMode.COMING, "it does not answer")

    async def _meet(self) -> None:
        """The engine has begun to answer: ask what it serves."""
        try:
            info = await self._engine.describe()
        except GovernorError as error:
            self._set(self._mode, error.message)
            return
        cards = tuple(self._with_window(card) for card in info.models)
        self._info = msgspec.structs.replace(info, models=cards)
        self._by_name = {name: card for card in reversed(cards) for name in (*card.aliases, card.id)}
        await self._learn_capacity()
        self._set(EngineMode.READY, "")

    async def _learn_capacity(self) -> bool:
        """Ask what it can hold; an engine that is ready may not tell it yet. Returns whether it has told."""
        self.capacity = Capacity(tokens=(await self._engine.load()).kv_capacity_tokens or None)
        return self.capacity.tokens is not None

    def _with_window(self, card: ModelCard) -> ModelCard:
        """The smaller of what is configured and what the engine reports; a difference is an alert."""
        reported, configured = card.window_tokens, self._configured_window
        if reported is not None and configured is not None and reported != configured:
            self.set_alert(
                "window_mismatch",
                f"{card.id}: configured for {configured} tokens, the engine reports {reported}; the smaller counts",
            )
        windows = [tokens for tokens in (reported, configured) if tokens is not None]
        return msgspec.structs.replace(card, window_tokens=min(windows, default=None))

    def _set(self, mode: EngineMode, detail: str) -> None:
        if (mode, detail) == (self._mode, self._detail) and mode is not EngineMode.READY:
            return
        self._mode, self._detail = mode, detail
        self._changed.set()
        self._changed = asyncio.Event()
        self.is_anew = self._has_gone and mode is EngineMode.READY
        self._on_change(mode, self._info.slots, detail)
        if self.is_anew:
            self.is_anew = self._has_gone = False
        self._events.publish(events.EngineChanged(at=self._clock.wall(), state=mode.value, detail=detail))
