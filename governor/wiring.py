"""The one place where concrete parts are chosen: which store, which engine adapter, which counter, which clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import msgspec

from governor.canary_note import CanaryNote
from governor.clock import Clock, SystemClock
from governor.gateway.holds import HoldBook
from governor.gateway.residency import CacheFeed
from governor.gateway.sglang_cache import CachePlaces, SglangCache
from governor.identity.agents import AgentBook
from governor.policy.loader import PolicyStore, shipped_folder
from governor.runtime import Governor, RuntimeConfig
from governor.settings import Home, Secret
from governor.store.archive import SqlArchive
from governor.store.database import sqlite_url
from governor.store.home_id import ensure_home_id
from governor.store.model import StoreHealth
from governor.store.query import TurnLogReader
from governor.store.turnlog import SqlTurnLog
from governor.tokens.counter import Counter, EstimateCounter
from governor.types import AgentName
from serve.engine import Engine
from serve.engines.http import HttpTimeouts
from serve.engines.llamacpp import LlamaCpp
from serve.engines.openai_upstream import OpenAIUpstream
from serve.engines.sglang import Sglang

log = logging.getLogger(__name__)

CLOSE_LOG_S = 10.0


class EngineTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where the engine listens and what it is."""

    url: str
    kind: str = "upstream"
    """``upstream``, ``llamacpp`` or ``sglang``."""
    key: Secret | None = None
    """Sent to this URL only."""
    cache: CachePlaces | None = None
    """Where an SGLang tells of its cache; ``None``: nowhere."""
    timeouts: HttpTimeouts | None = None


def build_engine(target: EngineTarget) -> Engine:
    """The adapter for a target."""
    if target.kind == "llamacpp":
        return LlamaCpp(target.url, version=version("xllamacpp"))
    if target.kind == "sglang":
        return Sglang(target.url, key=target.key, timeouts=target.timeouts)
    return OpenAIUpstream("upstream", target.url, key=target.key, timeouts=target.timeouts)


def build_cache(target: EngineTarget) -> CacheFeed | None:
    """What tells of the target's cache."""
    if target.kind != "sglang" or target.cache is None:
        return None
    return SglangCache(target.url, target.cache, key=target.key)


@contextmanager
def assembled(
    home: Home,
    target: EngineTarget,
    admin_token: Secret,
    *,
    config: RuntimeConfig | None = None,
    database: str | None = None,
    counter: Counter | None = None,
    clock: Clock | None = None,
    cache: CacheFeed | None = None,
) -> Iterator[tuple[Governor, SqlTurnLog]]:
    """A governor ready to run on the running event loop, and its turn log, which is closed at the end.

    ``cache``: instead of what the target has.

    The caller holds the home's instance lock. Raises :class:`~governor.errors.ConfigError` for a bad file of the
    owner's and :class:`~governor.store.errors.StoreError` for an impossible database URL.
    """
    clock = clock or SystemClock()
    agents = AgentBook(home.agents, clock)
    agents.load()
    home.policies.mkdir(mode=0o700, parents=True, exist_ok=True)
    policies = PolicyStore(home.policies, shipped_folder(), clock)
    policies.load()
    holds = HoldBook(home.run / "held.json")
    holds.load()
    loop = asyncio.get_running_loop()
    governor: Governor | None = None

    def tell(health: StoreHealth) -> None:
        if governor is not None:
            loop.call_soon_threadsafe(governor.on_store_health, health)

    url, home_id = database or sqlite_url(home.database), ensure_home_id(home.root)
    turn_log = SqlTurnLog(url, home_id=home_id, on_health_change=tell)
    archive = SqlArchive(url, home_id=home_id, days_of=lambda agent: _archive_days(policies, agent), clock=clock)
    try:
        governor = Governor(
            config=config or RuntimeConfig(),
            engine=build_engine(target),
            counter=counter or EstimateCounter(),
            clock=clock,
            turn_log=turn_log,
            turns=TurnLogReader(url),
            archive=archive,
            agents=agents,
            policies=policies,
            admin_token=admin_token,
            secrets=() if target.key is None else (target.key,),
            cache=cache or build_cache(target),
            canary=CanaryNote(home),
            holds=holds,
            engine_log=home.logs / "engine.log",
        )
        governor.on_store_health(turn_log.health())
        yield governor, turn_log
    finally:
        archive.close(CLOSE_LOG_S)
        left = turn_log.close(CLOSE_LOG_S)
        if left:
            log.error("%d records of the turn log could not be written", left)


def _archive_days(policies: PolicyStore, agent: AgentName) -> float:
    return policies.policy_for(agent).policy.compression.archive_days
