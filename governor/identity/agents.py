"""Who the agents are: names and the hashes of their keys, in one JSON file that the command line and the running
gateway share.

A key is 256 random bits, so its plain SHA-256 is stored: slow, salted hashes defend passwords, which can be guessed;
2**256 keys cannot be tried at any speed, two agents never share one, and a fast hash lets a request be authenticated
in microseconds. The key itself is shown once and kept nowhere.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from governor.clock import Clock
from governor.errors import BadRequest, ConfigError, NotFound
from governor.files import Signature, locked, read_text, signature, write_atomic
from governor.names import NAME_RULE, agent_name, is_agent_name
from governor.settings import Secret
from governor.types import AgentName

KEY_BYTES = 32
KEY_FORM = re.compile(r"gov-[A-Za-z0-9_-]{43}")
"""``gov-`` and 32 bytes in URL-safe base64. The prefix lets people and secret scanners know what they look at."""


class ClientKind(StrEnum):
    """Which program an agent is, for the configuration shown to its owner. Decides nothing else."""

    HERMES = "hermes"
    OPENCLAW = "openclaw"
    OTHER = "other"


class Agent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent as it is stored."""

    name: str
    key_sha256: str
    """Hexadecimal digest of the key's ASCII text."""
    created_at: float
    """Unix time in seconds."""
    client: ClientKind = ClientKind.OTHER


class _Book(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = 1
    agents: tuple[Agent, ...] = ()


class _View(msgspec.Struct, frozen=True):
    by_name: Mapping[str, Agent]
    by_hash: Mapping[str, Agent]


class AgentBook:
    """The agents. Changes are written at once, under a lock that other processes respect, and changes made by another
    process are seen at the next call. A file that has become bad changes nothing: :attr:`problem` says why."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._view = _View(by_name={}, by_hash={})
        self._signature: Signature | None = None
        self._settled = True
        self.problem: ConfigError | None = None
        """Why the file cannot be used as it is; the agents known before still hold."""

    def load(self) -> None:
        """Read the file; a missing one means no agents. Raises :class:`ConfigError`."""
        found = signature(self._path)
        settled = self._is_settled(found)
        self._view = _view(_read(self._path))
        self._signature, self._settled, self.problem = found, settled, None

    def agents(self) -> tuple[Agent, ...]:
        """All agents, by name."""
        self._refresh()
        return tuple(sorted(self._view.by_name.values(), key=lambda agent: agent.name))

    def get(self, name: str) -> Agent | None:
        self._refresh()
        return self._view.by_name.get(name)

    def authenticate(self, presented: str) -> AgentName | None:
        """The agent whose key this is. One ``stat`` (some 2 µs), one hash, one look-up; never raises.

        What is compared is the hash, and nobody can choose a key by its hash: the time taken tells nothing about a key
        that one has not got.
        """
        self._refresh()
        if KEY_FORM.fullmatch(presented) is None:
            return None
        agent = self._view.by_hash.get(_digest(presented))
        return None if agent is None else AgentName(agent.name)

    def add(self, name: str, client: ClientKind = ClientKind.OTHER) -> Secret:
        """A new agent and its key, which is not kept. Raises :class:`BadRequest` for a bad or taken name and
        :class:`ConfigError` when the file cannot be read or written."""
        known = agent_name(name)
        key = _new_key()
        with locked(self._path):
            agents = _by_name(_read(self._path))
            if known in agents:
                raise BadRequest(f"there is already an agent {name!r}", param="name")
            added = Agent(name=known, key_sha256=_digest(key.reveal()), created_at=self._clock.wall(), client=client)
            self._write({**agents, known: added})
        return key

    def rotate(self, name: str) -> Secret:
        """A new key; the old one is refused from now on. Raises :class:`NotFound` and :class:`ConfigError`."""
        key = _new_key()
        with locked(self._path):
            agents = _by_name(_read(self._path))
            known = _known(agents, name)
            changed = msgspec.structs.replace(known, key_sha256=_digest(key.reveal()))
            self._write({**agents, known.name: changed})
        return key

    def remove(self, name: str) -> None:
        """The agent's key is refused from now on. Its policy file and its turns stay. Raises :class:`NotFound` and
        :class:`ConfigError`."""
        with locked(self._path):
            agents = _by_name(_read(self._path))
            gone = _known(agents, name)
            self._write({other: agent for other, agent in agents.items() if other != gone.name})

    def _write(self, agents: Mapping[str, Agent]) -> None:
        book = _Book(agents=tuple(agents.values()))
        text = msgspec.json.format(msgspec.json.encode(book), indent=2).decode() + "\n"
        write_atomic(self._path, text, mode=0o600)
        self.load()

    def _refresh(self) -> None:
        found = signature(self._path)
        if found == self._signature and self._settled:
            return
        if found is None:
            # A lost file must not lock every agent out in the middle of its work.
            self.problem = ConfigError("is gone; the agents read from it hold until a restart", file=str(self._path))
            self._signature, self._settled = None, True
            return
        try:
            self.load()
        except ConfigError as problem:
            self._signature, self._settled, self.problem = found, self._is_settled(found), problem

    def _is_settled(self, found: Signature | None) -> bool:
        return found is None or found.is_settled(self._clock.wall())


def _new_key() -> Secret:
    return Secret(f"gov-{secrets.token_urlsafe(KEY_BYTES)}")


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("ascii")).hexdigest()


def _known(agents: Mapping[str, Agent], name: str) -> Agent:
    agent = agents.get(name)
    if agent is None:
        raise NotFound(f"there is no agent {name[:80]!r}", param="name")
    return agent


def _by_name(book: _Book) -> dict[str, Agent]:
    return {agent.name: agent for agent in book.agents}


def _view(book: _Book) -> _View:
    return _View(by_name=_by_name(book), by_hash={agent.key_sha256: agent for agent in book.agents})


def _read(path: Path) -> _Book:
    """The file, checked. Raises :class:`ConfigError`."""
    text = read_text(path, owner_writes_only=True)
    if text is None:
        return _Book()
    try:
        book = msgspec.json.decode(text, type=_Book)
    except msgspec.DecodeError as error:
        raise ConfigError(f"not valid: {error}", file=str(path)) from error
    if book.version != 1:
        message = f"written by a newer governor (version {book.version}, known: 1)"
        raise ConfigError(message, file=str(path), key="version")
    for agent in book.agents:
        if not is_agent_name(agent.name):
            raise ConfigError(
                f"{agent.name[:80]!r} is not an agent's name: use {NAME_RULE}", file=str(path), key="agents"
            )
    view = _view(book)
    if len(view.by_name) != len(book.agents) or len(view.by_hash) != len(book.agents):
        raise ConfigError("two entries share a name or a key", file=str(path), key="agents")
    return book
