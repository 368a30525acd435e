"""What the twin tells besides its answers: KV events as SGLang's publisher, states and L3 as our plugin in it.

One observer of the tiers for both, and the moments at which SGLang sends its batches: after each chunk of a prefill,
every ``--decode-log-interval`` steps of decoding, and when it is idle (``metrics_reporter.py:899,933``,
``scheduler.py:5315``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from serve.twin.engine_model import Ask, Ended, EngineEvent, Wrote
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import Tier, TierSettings
from serve.twin.tiers_node import Node, Stored
from serve.twin.tiers_observer import StateCause
from serve.twin_server.content import Content
from serve.twin_server.kv_events import KvPublisher
from serve.twin_server.kv_recorder import KvRecorder
from serve.twin_server.plugin_socket import PluginSocket

DECODE_LOG_INTERVAL = 8
"""``--decode-log-interval``: what our profiles start SGLang with."""


class Feeds:
    """An observer of the tiers (:class:`serve.twin.tiers_observer.TiersObserver`), made before them. What it is told
    before :meth:`open` counts too. Everything runs on one loop."""

    def __init__(
        self,
        tiers: TierSettings,
        content: Content,
        model: str,
        *,
        kv_events_endpoint: str | None = None,
        kv_replay_endpoint: str | None = None,
        plugin_socket: Path | None = None,
        loses_batch: Callable[[], bool] = lambda: False,
    ) -> None:
        """``loses_batch`` is asked before each batch of KV events, which is numbered and not sent where it says so.
        Raises :class:`OSError` where the plugin's socket cannot be had."""
        self._recorder = KvRecorder(content)
        self._publisher = KvPublisher(kv_events_endpoint, kv_replay_endpoint) if kv_events_endpoint else None
        self._plugin = PluginSocket(plugin_socket, tiers, content, model) if plugin_socket else None
        self._loses_batch = loses_batch
        self._live: set[str] = set()
        self._steps = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """While inside, listeners are served. Raises :class:`zmq.ZMQError` where an address is taken."""
        async with self._publisher.open() if self._publisher is not None else nullcontext():
            if self._plugin is None:
                yield
                return
            self._plugin.start()
            try:
                yield
            finally:
                await asyncio.to_thread(self._plugin.close)

    # What the service tells

    def on_ask(self, ask: Ask) -> None:
        """A request goes to the engine model."""
        self._live.add(ask.rid)
        if self._plugin is not None:
            self._plugin.on_ask(ask)

    def on_events(self, events: Sequence[EngineEvent]) -> None:
        """The engine model has gone on; also where nothing has happened."""
        if self._plugin is not None:
            self._plugin.on_events(events)
        self._live -= {event.rid for event in events if isinstance(event, Ended)}
        self._steps += max((event.stop - event.start for event in events if isinstance(event, Wrote)), default=0)
        if not self._live or self._steps >= DECODE_LOG_INTERVAL:
            self._publish()

    # What the tiers tell

    def kv_stored(self, node: Node, tier: Tier) -> None:
        if self._publisher is not None:
            self._recorder.stored(node, tier)

    def kv_removed(self, node: Node, tier: Tier) -> None:
        if self._publisher is not None:
            self._recorder.removed(node, tier)

    def state_stored(self, node: Node, tier: Tier, cause: StateCause) -> None:
        if self._plugin is not None:
            self._plugin.state_stored(node, tier, cause)

    def state_removed(self, node: Node, tier: Tier) -> None:
        if self._plugin is not None:
            self._plugin.state_removed(node, tier)

    def node_split(self, upper: Node, lower: Node) -> None:
        """Pages have names of their own, and the lower part keeps the state."""

    def node_removed(self, node: Node) -> None:
        """What it held was told of before."""

    def cleared(self) -> None:
        if self._publisher is not None:
            self._recorder.cleared()
        if self._plugin is not None:
            self._plugin.cleared()

    def prefilled(self) -> None:
        self._publish()

    def matched(self, key: Key, *, kv_tokens: int, usable_tokens: int, device_tokens: int, host_tokens: int) -> None:
        if self._plugin is not None:
            self._plugin.matched(
                key,
                kv_tokens=kv_tokens,
                usable_tokens=usable_tokens,
                device_tokens=device_tokens,
                host_tokens=host_tokens,
            )

    def storage_found(self, key: Key, start: int, tokens: int) -> None:
        if self._plugin is not None:
            self._plugin.storage_found(key, start, tokens)

    def storage_loaded(self, key: Key, start: int, tokens: int, *, has_state: bool) -> None:
        if self._plugin is not None:
            self._plugin.storage_loaded(key, start, tokens, has_state=has_state)

    def storage_written(self, node: Node, *, has_state: bool) -> None:
        if self._plugin is not None:
            self._plugin.storage_written(node, has_state=has_state)

    def storage_dropped(self, span: Stored, start: int, stop: int, *, has_state: bool) -> None:
        if self._plugin is not None:
            self._plugin.storage_dropped(span, start, stop, has_state=has_state)

    def _publish(self) -> None:
        self._steps = 0
        if self._publisher is None:
            return
        events = self._recorder.take()
        if events:
            self._publisher.publish(events, is_lost=self._loses_batch())
