"""The owner's own agent: made at the first start, so that ``governor up`` and ``governor chat`` just work.

Its key is a client credential like those in ``~/.pgpass``: kept in the home, mode 0600. The governor itself keeps only
the hash.
"""

from __future__ import annotations

import os

from governor.clock import SystemClock
from governor.errors import ConfigError
from governor.identity.agents import AgentBook
from governor.settings import Home, Secret

OWNER = "owner"


def owner_key(home: Home) -> Secret:
    """The owner's key; makes agent and key when there are none, and a new key when the file is lost or outdated.

    Raises :class:`ConfigError` when the file of agents or the key file cannot be used.
    """
    book = AgentBook(home.agents, SystemClock())
    book.load()
    kept = read_owner_key(home)
    if kept is not None and book.authenticate(kept.reveal()) == OWNER:
        return kept
    key = book.rotate(OWNER) if book.get(OWNER) is not None else book.add(OWNER)
    descriptor = os.open(home.owner_key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key.reveal() + "\n")
    return key


def read_owner_key(home: Home) -> Secret | None:
    """The key on file; ``None`` if there is none. Raises :class:`ConfigError` if it cannot be read."""
    try:
        text = home.owner_key.read_text().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(home.owner_key)) from error
    return Secret(text) if text else None
