"""A running governor: its tasks, its server, and an end in which nothing is lost.

Receives its concrete parts; which ones they are is decided in ``governor.wiring``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import msgspec

from governor import events
from governor.budget.floors import overdrawn
from governor.canary_note import CanaryReader
from governor.clock import Clock
from governor.compress.limits import limits_of
from governor.errors import ConfigError
from governor.events import EventLog
from governor.gateway.actions import Actions
from governor.gateway.admin import AdminPages, HealthPages, ModelPages
from governor.gateway.answering import Answering
from governor.gateway.app import build_app
from governor.gateway.body import BodyLimits
from governor.gateway.cache_metrics import CacheMetrics
from governor.gateway.clients import Clients
from governor.gateway.compression import Compressor
from governor.gateway.connection import HEAD_DEADLINE_S, STALL_DEADLINE_S
from governor.gateway.context_page import ContextPages, TurnReader
from governor.gateway.drafting import Drafting
from governor.gateway.engine_watch import EngineWatch, WatchTimes
from governor.gateway.generate import Services
from governor.gateway.heads import Heads
from governor.gateway.history import History
from governor.gateway.holds import HoldBook
from governor.gateway.losses import PrefixLosses
from governor.gateway.metrics import Metrics
from governor.gateway.owner_pages import OwnerPages
from governor.gateway.planner import Planner
from governor.gateway.policy_edits import PolicyEdits
from governor.gateway.prewarm import Prewarmer
from governor.gateway.recalling import Recaller
from governor.gateway.relay import AnswerLimits
from governor.gateway.requested import Requested
from governor.gateway.residency import CacheFeed, Residency
from governor.gateway.server import GatewayServer
from governor.gateway.shaping import Shaping
from governor.gateway.sight import EngineSight
from governor.gateway.state_metrics import StateMetrics
from governor.gateway.summary import DEADLINE_S, Summariser
from governor.gateway.turn import TurnBook
from governor.identity.agents import AgentBook
from governor.output.caps import effective_window
from governor.policy.loader import PolicyStore
from governor.policy.model import CompressionMode, Policy
from governor.redact import Redactor
from governor.schedule.events import EngineMode
from governor.schedule.loop import Admission
from governor.settings import Secret
from governor.snapshot import AgentView, Snapshot, StoreView
from governor.store.archive_model import Archive
from governor.store.model import StoreHealth, TurnLog
from governor.tokens.chain import SessionIndex
from governor.tokens.counter import Counter
from governor.types import AgentName
from serve.engine import Engine

log = logging.getLogger(__name__)

_LAST_TURNS_S = 5.0


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What can be set about a running governor."""

    hosts: tuple[str, ...] = ()
    """Names besides loopback ones that a ``Host`` header may carry."""
    window_tokens: int | None = None
    """Window configured by the owner; the smaller of this and what the engine reports counts."""
    supervised: bool = False
    """Somebody restarts the engine when it dies, so turns are held meanwhile."""
    loopback_agent: AgentName | None = None
    """Agent of requests without a key; ``None`` refuses them."""
    body_limits: BodyLimits = BodyLimits()
    answer_limits: AnswerLimits = AnswerLimits()
    watch_times: WatchTimes = WatchTimes()
    head_deadline_s: float = HEAD_DEADLINE_S
    stall_deadline_s: float = STALL_DEADLINE_S
    summary_deadline_s: float = DEADLINE_S
    """How long the engine may take for a summary."""
    stop_within_s: int = 10
    """How long running turns may take to end after a stop is asked for."""


class Governor:
    """One governor on one event loop."""

    def __init__(
        self,
        *,
        config: RuntimeConfig,
        engine: Engine,
        counter: Counter,
        clock: Clock,
        turn_log: TurnLog,
        turns: TurnReader,
        archive: Archive,
        agents: AgentBook,
        policies: PolicyStore,
        admin_token: Secret,
        secrets: tuple[Secret, ...] = (),
        cache: CacheFeed | None = None,
        canary: CanaryReader = lambda: None,
        holds: HoldBook | None = None,
        engine_log: Path | None = None,
    ) -> None:
        self._clock = clock
        self._started_at = clock.wall()
        self._turn_log = turn_log
        self._agents = agents
        self._policies = policies
        self._engine = engine
        self.events = EventLog()
        self.metrics = Metrics(self._labelled_agents)
        self.events.listen(self.metrics.on_event)
        redactor = Redactor((admin_token, *secrets))
        self.book = TurnBook(clock, turn_log, self.events, self.metrics, redactor)
        self.admission = Admission(clock, self.book.on_decided)
        self.sessions = SessionIndex()
        self.history = History()
        self.watch = EngineWatch(
            engine,
            clock,
            self.events,
            self._on_engine,
            window_tokens=config.window_tokens,
            supervised=config.supervised,
            busy=lambda: self.admission.running > 0,
            times=config.watch_times,
        )
        self.sight = EngineSight(engine, self.admission, clock)
        self.prewarmer = Prewarmer(engine, self.admission)
        self.residency = Residency(cache, clock, self.watch.set_alert, canary=canary)
        self.metrics.registry.register(CacheMetrics(self.residency.view, self.metrics.label))
        self.losses = PrefixLosses(self.book, self.residency.blocks, clock)
        planner = Planner(engine, self.sessions, counter)
        self.archive = archive
        self.heads = Heads(archive)
        self.requested = Requested()
        summariser = Summariser(engine, counter, self.admission, self.book, self.history, config.summary_deadline_s)
        drafting = Drafting(engine, counter, summariser, self.admission)
        self.preparer = drafting.preparer
        compressor = Compressor(engine, planner, self.heads, drafting, archive, self.requested, self.events, clock)
        self.shaping = Shaping(planner, compressor, self.preparer)
        answering = Answering(
            engine,
            self.watch,
            self.admission,
            self.history,
            self.prewarmer,
            self.residency,
            self.losses,
            Recaller(archive, engine, counter, self.admission, clock),
            clock,
            config.answer_limits,
        )
        services = Services(
            engine=engine,
            watch=self.watch,
            agents=agents,
            policies=policies,
            planner=planner,
            shaping=self.shaping,
            clients=Clients(archive, self.events, clock),
            history=self.history,
            admission=self.admission,
            answering=answering,
            served=self.sight.served,
            book=self.book,
            clock=clock,
            body_limits=config.body_limits,
            redactor=redactor,
            loopback_agent=config.loopback_agent,
        )
        self._holds = holds or HoldBook()
        self._loopback_agent = config.loopback_agent
        self.metrics.registry.register(StateMetrics(self.snapshot, archive.health, self.metrics.label))
        actions = Actions(
            token=admin_token,
            agents=self._agent_names,
            book=self.book,
            admission=self.admission,
            holds=self._holds,
            edits=PolicyEdits(policies, self._floors_broken_by, self._on_policy),
            requested=self.requested,
        )
        actions.restore()
        app = build_app(
            services,
            health=HealthPages(self.watch),
            models=ModelPages(self.watch, agents, policies, config.loopback_agent, self._started_at),
            admin=AdminPages(admin_token, self.events, self.metrics, self.snapshot, self._refresh_metrics),
            context=ContextPages(
                admin_token,
                self.sessions,
                counter,
                policies,
                turns,
                clock,
                agents=self._agent_names,
                window=lambda: self.watch.view().window_tokens,
            ),
            owner=OwnerPages(admin_token, policies, self._agent_names, engine_log if config.supervised else None),
            actions=actions,
            metrics=self.metrics,
            hosts=config.hosts,
        )
        self._listening = asyncio.Event()
        self._floors_kept = False
        self._refused = asyncio.Event()
        self._refusal: ConfigError | None = None
        """Why this governor must not run, found out once its engine has told what it holds."""
        self._server = GatewayServer(
            app,
            head_deadline_s=config.head_deadline_s,
            stall_deadline_s=config.stall_deadline_s,
            on_listening=self._listening.set,
            stop_within_s=config.stop_within_s,
        )

    async def run(self, bound: socket.socket, stop: asyncio.Event, on_listening: Callable[[], None]) -> None:
        """Serve on a bound socket until ``stop`` is set, then end: turns first, then the tasks, then the log."""
        tasks = [
            asyncio.create_task(self.admission.run(), name="admission"),
            asyncio.create_task(self.watch.run(), name="engine-watch"),
            asyncio.create_task(self.sight.run(), name="engine-sight"),
            asyncio.create_task(self.prewarmer.run(), name="prewarmer"),
            asyncio.create_task(self.preparer.run(), name="preparer"),
            asyncio.create_task(self.residency.run(), name="residency"),
            asyncio.create_task(self._policies.watch(self._on_policy), name="policy-watch"),
        ]
        for task in tasks:
            task.add_done_callback(self._on_task_done)
        serving = asyncio.create_task(self._server.serve([bound]), name="server")
        try:
            await self._until(stop, serving, on_listening)
        finally:
            self.events.close()
            self._server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            await self._last_turns()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._engine.aclose()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """They run until they are cancelled; the end of one by a bug would show in nothing but what stands still."""
        if task.cancelled():
            return
        name, error = task.get_name(), task.exception()
        log.error("the task '%s' has ended", name, exc_info=error)
        why = "without a reason" if error is None else f"by a bug: {type(error).__name__}"
        self.watch.set_alert(f"task_{name}", f"{name} has ended {why}; restart the governor, whose log says more")

    async def _until(self, stop: asyncio.Event, serving: asyncio.Task[None], on_listening: Callable[[], None]) -> None:
        listening = asyncio.create_task(self._listening.wait())
        stopping = asyncio.create_task(stop.wait())
        refused = asyncio.create_task(self._refused.wait())
        try:
            await asyncio.wait({listening, serving}, return_when=asyncio.FIRST_COMPLETED)
            if self._listening.is_set():
                on_listening()
                await asyncio.wait({stopping, serving, refused}, return_when=asyncio.FIRST_COMPLETED)
            if self._refusal is not None:
                raise self._refusal
            if serving.done():
                await serving
        finally:
            listening.cancel()
            stopping.cancel()
            refused.cancel()

    async def _last_turns(self) -> None:
        """The server has cancelled what was still running; let the turns write their ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_TURNS_S):
                await self.book.wait_until_none_open()

    def snapshot(self) -> Snapshot:
        """The whole picture now."""
        problems = self._policies.problems()
        health = self._turn_log.health()
        queue = self.admission.view()
        alerts = [*self.watch.alerts.values(), *(str(problem) for problem in problems.values())]
        if not health.ok:
            alerts.append(f"the turn log cannot write: {health.last_error}")
        return Snapshot(
            version=version("agent-governor"),
            started_at=self._started_at,
            now=self._clock.wall(),
            last_event_id=self.events.last_id,
            engine=self.watch.view(),
            agents=tuple(self._agent_view(name, _text(problems.get(name))) for name in self._agent_names()),
            turns=self.book.views({waiting.turn_id: waiting.reason for waiting in queue.waiting}),
            queue=queue,
            cache=self.residency.view(),
            prefill=self.losses.prefill_view(),
            store=StoreView(ok=health.ok, pending=health.pending, dropped=health.dropped, last_error=health.last_error),
            alerts=tuple(alerts),
        )

    def _agent_view(self, name: AgentName, policy_problem: str | None) -> AgentView:
        policy = self._policies.policy_for(name).policy
        window = effective_window(self.watch.view().window_tokens, policy)
        compression, limits = policy.compression, None
        if window is not None and compression.mode is CompressionMode.ENFORCE:
            limits = limits_of(compression, window)
        return msgspec.structs.replace(
            self.book.agent_view(name, policy_problem, self._holds.of(name)),
            window_tokens=window,
            trigger_tokens=None if limits is None else limits.trigger_tokens,
        )

    def _agent_names(self) -> list[AgentName]:
        """Those with a key, those that had one when they sent something, those that are paused."""
        on_file = {AgentName(agent.name) for agent in self._agents.agents()}
        return sorted(on_file | self.book.agents() | self._holds.all().keys())

    def _labelled_agents(self) -> set[str]:
        """Names that may become labels of metrics: they are bounded, and nobody's but the owner's choice."""
        names = {agent.name for agent in self._agents.agents()}
        return names if self._loopback_agent is None else names | {self._loopback_agent}

    def on_store_health(self, health: StoreHealth) -> None:
        """The turn log fares otherwise than before. Call on the event loop."""
        if health.ok and not health.dropped:
            return
        detail = f"{health.last_error or 'writes fail'}; {health.pending} records wait, {health.dropped} were dropped"
        self.events.publish(events.Alert(at=self._clock.wall(), name="turn_log", detail=detail))

    def _on_engine(self, mode: EngineMode, slots: int | None, detail: str) -> None:
        pauses = self._engine.continuation is not None
        anew = self.watch.is_anew
        self.admission.set_engine(mode, slots, detail, self.watch.capacity, pauses=pauses, anew=anew)
        self.metrics.engine_up.set(mode is EngineMode.READY)
        if mode is not EngineMode.READY:
            self.losses.on_engine_away()
        if mode is EngineMode.READY:
            self.history.clear()  # it may be another one
            self.residency.on_engine_ready([card.id for card in self.watch.models])
            self._set_floors()

    def _set_floors(self) -> None:
        """Promise the floors of all policies. If they cannot all be kept a start ends, and an edit changes nothing."""
        floors = self._floors()
        problem = overdrawn(floors, self.watch.capacity.tokens)
        self.watch.set_alert("floors", problem or "")
        if problem is None:
            self._floors_kept = True
            self.admission.set_floors(floors)
        elif not self._floors_kept:
            self._refusal = ConfigError(problem, file=str(self._policies.folder), key="share.floor_tokens")
            self._refused.set()

    def _floors(self) -> dict[AgentName, int]:
        """KV tokens, of those on file who are promised any."""
        agents = [AgentName(agent.name) for agent in self._agents.agents()]
        asked = {name: self._policies.policy_for(name).policy.share.floor_tokens for name in agents}
        return {name: tokens for name, tokens in asked.items() if tokens}

    def _floors_broken_by(self, agent: AgentName, policy: Policy) -> str | None:
        """Why this policy's floor cannot be promised beside the others."""
        return overdrawn(self._floors() | {agent: policy.share.floor_tokens}, self.watch.capacity.tokens)

    def _on_policy(self, agent: str, problem: ConfigError | None) -> None:
        if self.watch.mode is EngineMode.READY:
            self._set_floors()
        log.info("policy of %s read anew%s", agent, f", but not usable: {problem}" if problem else "")
        self.events.publish(events.PolicyChanged(at=self._clock.wall(), agent=agent, problem=_text(problem)))

    def _refresh_metrics(self) -> None:
        self.metrics.running.set(self.admission.running)
        self.metrics.waiting.set(self.admission.waiting)
        self.metrics.open_turns.set(self.book.open_turns)


def _text(problem: object | None) -> str | None:
    return None if problem is None else str(problem)
