"""What our plugin inside SGLang would tell, told of the twin: states, L3, and what requests find.

The socket and its protocol are the plugin's own (``docs/design/sglang-plugin.md``). Where the engine's plugin finds
out between two batches what has fallen, the twin knows at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from serve.sglang_plugin.engine_path.governor_sglang_plugin.channel import Channel
from serve.twin.engine_model import Admitted, Ask, Ended, EngineEvent
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import Tier, TierSettings
from serve.twin.tiers_node import Node, Stored
from serve.twin.tiers_observer import StateCause
from serve.twin_server.content import Content

_LETTERS: Final = {Tier.L1: "d", Tier.L2: "h"}


class _State:
    __slots__ = ("name", "places", "tokens")

    def __init__(self, name: str, tokens: int) -> None:
        self.name = name
        self.tokens = tokens
        self.places: set[Tier] = set()

    @property
    def letters(self) -> str:
        return "".join(letter for tier, letter in _LETTERS.items() if tier in self.places)


class _Waiting:
    """A request that has not been admitted. ``told``: what it was last said to find."""

    __slots__ = ("prompt_tokens", "rid", "told")

    def __init__(self, rid: str, prompt_tokens: int) -> None:
        self.rid = rid
        self.prompt_tokens = prompt_tokens
        self.told: tuple[int, ...] | None = None


class PluginSocket:
    """Listens between :meth:`start` and :meth:`close`. The tiers know no names, so requests are known by prompts."""

    def __init__(self, path: Path, settings: TierSettings, content: Content, model: str) -> None:
        """``model`` is in the names of L3's files. Removes what is at ``path``; raises :class:`OSError` where that or
        listening fails."""
        self._settings = settings
        self._content = content
        self._suffix = f"_{model.replace('/', '-')}_0_1"
        self._states: dict[int, _State] = {}
        self._waiting: dict[Key, list[_Waiting]] = {}
        self._keys: dict[str, Key] = {}
        self._dropped = 0
        self._channel = Channel(str(path), self._greeting)

    def start(self) -> None:
        self._channel.start()

    def close(self) -> None:
        """Sends what is queued; blocks for that long."""
        self._channel.close()

    # Requests

    def on_ask(self, ask: Ask) -> None:
        """A request has come."""
        key = self._asked_key(ask.prompt)
        self._keys[ask.rid] = key
        self._waiting.setdefault(key, []).append(_Waiting(ask.rid, len(ask.prompt)))

    def on_events(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            if isinstance(event, Admitted):
                self._on_admitted(event)
            elif isinstance(event, Ended):
                self._forget(event.rid)
        if self._channel.dropped != self._dropped:
            self._dropped = self._channel.dropped
            known = [[each.name, each.tokens, each.letters] for each in self._states.values()]
            self._channel.post("states", states=known)

    def _on_admitted(self, event: Admitted) -> None:
        waiting = self._forget(event.rid)
        if waiting is None:  # again, after a retraction
            return
        cached = event.cached
        self._channel.post(
            "admitted",
            rid=event.rid,
            prompt_tokens=waiting.prompt_tokens,
            device=cached.device,
            host=cached.host,
            storage=cached.storage,
        )

    def _forget(self, rid: str) -> _Waiting | None:
        key = self._keys.pop(rid, None)
        if key is None:
            return None
        same = self._waiting.pop(key)
        if others := [each for each in same if each.rid != rid]:
            self._waiting[key] = others
        return next(each for each in same if each.rid == rid)

    def _asked_key(self, prompt: Key) -> Key:
        """The last token cannot match, and pages match whole."""
        return prompt.cut(0, self._settings.page_floor(len(prompt) - 1))

    # What the tiers tell

    def state_stored(self, node: Node, tier: Tier, cause: StateCause) -> None:
        state = self._states.get(node.number)
        if state is None:
            state = self._states[node.number] = _State(self._names(node.key)[-1], node.depth)
        state.places.add(tier)
        self._tell_state(cause.value, tier, state)

    def state_removed(self, node: Node, tier: Tier) -> None:
        state = self._states[node.number]
        state.places.discard(tier)
        if not state.places:
            del self._states[node.number]
        self._tell_state("evicted", tier, state)

    def cleared(self) -> None:
        self._states.clear()
        self._channel.post("states", states=[])

    def matched(self, key: Key, *, kv_tokens: int, usable_tokens: int, device_tokens: int, host_tokens: int) -> None:
        figures = (len(key), kv_tokens, usable_tokens, device_tokens, host_tokens)
        for waiting in self._waiting.get(key.cut(0, self._settings.page_floor(len(key))), ()):
            if waiting.prompt_tokens - 1 != len(key) or waiting.told == figures:
                continue
            waiting.told = figures
            self._channel.post(
                "match",
                rid=waiting.rid,
                prompt_tokens=len(key),
                kv_tokens=kv_tokens,
                usable_tokens=usable_tokens,
                device=device_tokens,
                host=host_tokens,
            )

    def storage_found(self, key: Key, start: int, tokens: int) -> None:
        found = self._names(key.cut(start, start + tokens))
        asked_pages = (len(key) - start) // self._settings.page_tokens
        self._channel.post(
            "l3",
            change="found",
            rid=self._rid_of(key),
            tokens=tokens,
            asked_pages=asked_pages,
            hash=found[-1] if found else None,
        )

    def storage_loaded(self, key: Key, start: int, tokens: int, *, has_state: bool) -> None:
        pages = tokens // self._settings.page_tokens
        self._channel.post(
            "l3", change="loaded", rid=self._rid_of(key), tokens=tokens, asked_pages=pages, states=int(has_state)
        )

    def storage_written(self, node: Node, *, has_state: bool) -> None:
        names = self._names(node.key)
        self._channel.post("l3", change="written", hashes=names, state_hashes=names[-1:] if has_state else [])

    def storage_dropped(self, span: Stored, start: int, stop: int, *, has_state: bool) -> None:
        for name in self._names(span.key.cut(start, stop)):
            self._channel.post("l3", change="evicted", file=name + self._suffix)
        if has_state:
            self._channel.post("l3", change="evicted", file=f"{self._names(span.key)[-1]}.mamba{self._suffix}")

    # Parts

    def _tell_state(self, change: str, tier: Tier, state: _State) -> None:
        self._channel.post(
            "state", change=change, tier=_LETTERS[tier], hash=state.name, tokens=state.tokens, tiers=state.letters
        )

    def _names(self, key: Key) -> list[str]:
        return [name for run in key.runs for name in self._content.storage_names(run)]

    def _rid_of(self, key: Key) -> str | None:
        """A prefetch asks for whole pages of a waiting request's prompt."""
        return next((each.rid for each in self._waiting.get(key, ())), None)

    def _greeting(self) -> dict[str, Any]:
        """No hooks: nothing was hooked into, so nothing is missing."""
        return {
            "pid": os.getpid(),
            "tree": "twin",
            "page_tokens": self._settings.page_tokens,
            "has_states": self._settings.has_states,
            "hooks": {},
            "calls": {},
            "failures": 0,
        }
