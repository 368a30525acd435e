"""Which agents the owner has paused, on file, so that a governor that is started again still holds them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from governor.errors import ConfigError
from governor.files import read_text, write_atomic
from governor.names import is_agent_name
from governor.types import AgentName

log = logging.getLogger(__name__)

HELD_REASON = "paused by the owner"
"""The agent's own clients read it, too."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent is paused."""

    since: float
    """Unix time in seconds."""
    running: bool = False
    """Answers that had begun as well."""


class HoldBook:
    """One entry an agent. Lives on one event loop; ``path`` is ``None``: nothing is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._held: dict[AgentName, Held] = {}
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Read the file. A damaged one is told in the log and holds nobody."""
        if self._path is None:
            return
        try:
            text = read_text(self._path)
            kept = {} if text is None else msgspec.json.decode(text, type=dict[str, Held])
        except (ConfigError, msgspec.MsgspecError) as error:
            log.warning("which agents were paused cannot be read, so none is: %s: %s", self._path, error)
            return
        self._held = {AgentName(name): held for name, held in kept.items() if is_agent_name(name)}

    def all(self) -> Mapping[AgentName, Held]:
        return self._held

    def of(self, agent: AgentName) -> Held | None:
        return self._held.get(agent)

    async def put(self, agent: AgentName, held: Held) -> str | None:
        """The agent is paused. Returns why that will be forgotten at a restart, ``None`` if it will not."""
        self._held[agent] = held
        return await self._save()

    async def drop(self, agent: AgentName) -> str | None:
        """It is not paused. Returns why a restart will not know of that, ``None`` if it will."""
        self._held.pop(agent, None)
        return await self._save()

    async def _save(self) -> str | None:
        if self._path is None:
            return None
        async with self._writing:
            text = msgspec.json.encode(self._held).decode()
            try:
                await asyncio.to_thread(write_atomic, self._path, text)
            except ConfigError as error:
                log.warning("which agents are paused could not be kept: %s", error)
                return error.reason
        return None
