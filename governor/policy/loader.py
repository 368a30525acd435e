"""The policies of all agents, in memory, kept equal to the files while the governor runs.

A file takes effect when it has been quiet for :data:`SETTLE_S`, since the first half of a file can be good TOML, with
some of the limits missing. What cannot be used changes nothing: the last good policy holds and the problem is shown.

The folder is polled. File notifications miss a change behind a symbolic link and end without a word when the folder
itself is replaced; a poll of a few files sees every form of save and costs some 0.1 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from governor.clock import Clock
from governor.errors import ConfigError
from governor.files import Signature, read_text, signature
from governor.names import NAME_RULE, is_agent_name
from governor.policy.model import Policy
from governor.policy.resolve import DEFAULT, PolicyFile, Resolved, parse, resolve_agent
from governor.types import AgentName

SETTLE_S = 0.5
"""Quiet time before a file is read. Editors and scripts that write in place finish within this."""
LONGEST_WAIT_S = 1.0
"""A file that is written all the time is read after this all the same, and once more when it is quiet."""
POLL_S = 0.25
"""Between looks at the folder while nothing changes; with the two above, a good save applies within 2 s."""
POLL_PENDING_S = 0.1

# Falling back to the default would lift limits because a file was lost or its folder is not mounted.
GONE = (
    "is gone; the last policy read from it holds until the governor restarts "
    "(for the default policy, write a file with only a comment)"
)

Observer = Callable[[str, ConfigError | None], None]
"""Told of an agent whose policy or problem has changed, with the problem it has now."""

Choice = Callable[[str], bool]
"""Of agents' names."""

_log = logging.getLogger(__name__)


def _none(name: str) -> bool:
    return False


def shipped_folder() -> Path:
    """The policies that come with the program."""
    return Path(str(importlib.resources.files("policies")))


def load_shipped(folder: Path) -> dict[str, PolicyFile]:
    """Shipped policies by name, each checked as it would be used. Raises :class:`ConfigError`."""
    found: dict[str, PolicyFile] = {}
    for path in sorted(folder.glob("*.toml")):
        shipped = parse(read_text(path) or "", str(path))
        if "base" in shipped.tree:
            line = shipped.lines[("base",)]
            raise ConfigError("a shipped policy stands on the default alone", file=str(path), key="base", line=line)
        found[path.stem] = shipped
    if DEFAULT not in found:
        raise ConfigError("there is no such shipped policy", file=str(folder / f"{DEFAULT}.toml"))
    for shipped in found.values():
        resolve_agent(shipped, found)
    return found


def read_agent(path: Path, shipped: Mapping[str, PolicyFile]) -> Resolved | None:
    """One agent's file as it is now; ``None`` if there is none. Raises :class:`ConfigError`."""
    if not is_agent_name(path.stem):
        raise ConfigError(f"is not named after an agent: use {NAME_RULE}", file=str(path))
    text = read_text(path)
    return None if text is None else resolve_agent(parse(text, str(path)), shipped)


class _View(msgspec.Struct, frozen=True):
    """What requests see; replaced as a whole."""

    default: Resolved
    """For an agent without a file."""
    resolved: Mapping[str, Resolved]
    problems: Mapping[str, ConfigError]

    def policy_of(self, name: str) -> Policy:
        return self.resolved.get(name, self.default).policy


class _Watched(msgspec.Struct):
    """What is known of one file between looks."""

    signature: Signature | None
    changed_at: float | None = None
    """When it was last seen to change; ``None`` once it has been read in quiet."""
    unread_since: float | None = None


class PolicyStore:
    """Policies by agent. ``policy_for`` and ``problems`` never touch the disk and may be called from any thread;
    :meth:`poll` belongs to one caller at a time, which is :meth:`look`."""

    def __init__(self, folder: Path, shipped: Path, clock: Clock) -> None:
        self._folder = folder
        self._shipped_folder = shipped
        self._clock = clock
        self._shipped: dict[str, PolicyFile] = {}
        self._watched: dict[str, _Watched] = {}
        self._view: _View | None = None
        self._looking = asyncio.Lock()

    @property
    def folder(self) -> Path:
        """Where the owner's files are."""
        return self._folder

    @property
    def shipped(self) -> Mapping[str, PolicyFile]:
        """The policies that come with the program, by name."""
        return self._shipped

    def load(self) -> None:
        """Read everything anew. Raises :class:`ConfigError` for the first bad file and then leaves all as it was."""
        shipped = load_shipped(self._shipped_folder)
        resolved: dict[str, Resolved] = {}
        watched: dict[str, _Watched] = {}
        try:
            names = sorted(self._names())
        except OSError as error:
            raise ConfigError(f"cannot be listed: {error.strerror}", file=str(self._folder)) from error
        for name in names:
            now = self._clock.monotonic()
            # Looked at again once quiet: a write just before or during this read may leave the signature as it is.
            seen = _Watched(signature(self._path(name)), changed_at=now, unread_since=now)
            own = read_agent(self._path(name), shipped)
            if own is None:
                raise ConfigError("is a link to nothing", file=str(self._path(name)))
            resolved[name] = own
            watched[name] = seen
        self._shipped, self._watched = shipped, watched
        self._view = _View(default=resolve_agent(None, shipped), resolved=resolved, problems={})

    def policy_for(self, agent: AgentName) -> Resolved:
        """The agent's policy; the default for one without a file."""
        view = self._loaded()
        return view.resolved.get(agent, view.default)

    def problems(self) -> Mapping[str, ConfigError]:
        """Files that cannot be used as they are, by agent. The last good policy of each still holds."""
        return self._loaded().problems

    def poll(self, at_once: Choice = _none) -> list[tuple[str, ConfigError | None]]:
        """Look at the folder once and read what has changed and is quiet. ``at_once``: whose file is read anyhow, and
        again when it is quiet. Blocks on the disk. Returns the agents whose
        policy or problem is another than before, with the problem they have now; never raises for a bad file."""
        before = self._loaded()
        now = self._clock.monotonic()
        with contextlib.suppress(OSError):  # files known before show it themselves when their folder is out of reach
            for name in self._names() - self._watched.keys():
                self._watched[name] = _Watched(signature=None)
        resolved = dict(before.resolved)
        problems = dict(before.problems)
        looked_at: list[str] = []
        for name, seen in list(self._watched.items()):
            is_due = _is_due(seen, signature(self._path(name)), now)
            if not is_due and not at_once(name):
                continue
            looked_at.append(name)
            problems.pop(name, None)
            try:
                own = read_agent(self._path(name), self._shipped)
                if own is not None:
                    resolved[name] = own
                elif name in resolved:
                    raise ConfigError(GONE, file=str(self._path(name)))
                else:
                    del self._watched[name]
            except ConfigError as problem:
                problems[name] = problem
        after = self._view = _View(default=before.default, resolved=resolved, problems=problems)
        return [
            (name, problems.get(name))
            for name in looked_at
            if before.policy_of(name) != after.policy_of(name)
            or str(before.problems.get(name)) != str(problems.get(name))
        ]

    async def look(self, on_change: Observer, at_once: Choice = _none) -> None:
        """:meth:`poll` in a thread; ``on_change`` is called in this task. Several may look, one after the other."""
        async with self._looking:
            changes = await asyncio.to_thread(self.poll, at_once)
        for agent, problem in changes:
            on_change(agent, problem)

    async def watch(self, on_change: Observer) -> None:
        """Look for ever."""
        while True:
            pending = any(seen.changed_at is not None for seen in self._watched.values())
            await asyncio.sleep(POLL_PENDING_S if pending else POLL_S)
            try:
                await self.look(on_change)
            except Exception:  # noqa: BLE001 - task boundary; the watch outlives whatever a look at the disk can raise
                _log.exception("policy files could not be looked at; the policies in force stay")

    def _names(self) -> set[str]:
        """Stems of the policy files; none without a folder. Hidden files are locks and scratch of editors and of our
        own writer. Raises :class:`OSError`."""
        try:
            return {path.stem for path in self._folder.iterdir() if path.suffix == ".toml" and path.name[0] != "."}
        except FileNotFoundError:
            return set()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.toml"

    def _loaded(self) -> _View:
        if self._view is None:
            raise RuntimeError("load() comes first")
        return self._view


def _is_due(seen: _Watched, current: Signature | None, now: float) -> bool:
    """Note what the file looks like now and say whether to read it."""
    if current != seen.signature:
        seen.signature, seen.changed_at = current, now
        seen.unread_since = now if seen.unread_since is None else seen.unread_since
    if seen.changed_at is None or seen.unread_since is None:
        return False
    if now - seen.changed_at >= SETTLE_S:
        seen.changed_at = seen.unread_since = None
        return True
    if now - seen.unread_since >= LONGEST_WAIT_S:
        seen.unread_since = now
        return True
    return False
