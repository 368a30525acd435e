"""From a credential to an agent. Nothing else in a request can name one."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Protocol

from governor.errors import Forbidden, NotAuthenticated
from governor.settings import Secret
from governor.types import AgentName

_HELP = "Make a key with 'governor agent add NAME', and send it as 'Authorization: Bearer KEY'."


class Authenticator(Protocol):
    """Who owns a key."""

    def authenticate(self, presented: str) -> AgentName | None:
        """The agent whose key this is. Changes nothing, does not block, raises nothing."""
        ...


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key of an ``Authorization: Bearer`` or an ``x-api-key`` header."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key") or None


def authenticated_agent(
    headers: Mapping[str, str], agents: Authenticator, loopback_default: AgentName | None
) -> AgentName:
    """The agent of a request. Raises :class:`NotAuthenticated`.

    ``loopback_default`` is used for requests without any key, if the owner switched it on; a wrong key stays wrong.
    """
    key = presented_key(headers)
    if key is None:
        if loopback_default is not None:
            return loopback_default
        raise NotAuthenticated(f"This request carries no API key. {_HELP}")
    agent = agents.authenticate(key)
    if agent is None:
        raise NotAuthenticated(f"This API key is not known here. {_HELP}")
    return agent


def check_admin(headers: Mapping[str, str], token: Secret) -> None:
    """Let only the owner's tools in. Raises :class:`NotAuthenticated` or :class:`Forbidden`."""
    key = presented_key(headers)
    if key is None:
        raise NotAuthenticated("This page needs the admin token, which the governor's own commands know.")
    if not hmac.compare_digest(key.encode(errors="replace"), token.reveal().encode()):
        raise Forbidden("This page needs the admin token; an agent's key does not open it.")
