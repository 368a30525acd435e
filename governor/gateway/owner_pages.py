"""Pages that the dashboard asks for when somebody looks: an agent's policy in force, the end of the engine's log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from governor.errors import NotFound
from governor.gateway.auth import check_admin
from governor.gateway.http import JSON, headers_of
from governor.names import policy_path
from governor.pages import EngineLogPage, PolicyPage, PolicyValueView
from governor.policy.loader import PolicyStore
from governor.policy.model import as_tree
from governor.settings import Secret
from governor.types import AgentName
from governor.visible import visible

LOG_LINES = 200
_LOG_BYTES = 64 * 1024
_LONGEST_LINE = 500
_LONGEST_NAME = 80
_NO_STORE = {"cache-control": "no-store"}


class OwnerPages:
    """One per governor. ``log_file`` is the engine's; ``None``: the engine was started by somebody else."""

    def __init__(
        self, token: Secret, policies: PolicyStore, agents: Callable[[], Collection[str]], log_file: Path | None
    ) -> None:
        self._token = token
        self._policies = policies
        self._agents = agents
        self._log_file = log_file

    async def policy(self, request: Request) -> Response:
        check_admin(headers_of(request.scope), self._token)
        name = request.path_params["name"]
        if name not in self._agents():
            raise NotFound(f"There is no agent '{visible(name, _LONGEST_NAME)}'.")
        return _json(self._policy(AgentName(name)))

    async def engine_log(self, request: Request) -> Response:
        check_admin(headers_of(request.scope), self._token)
        return _json(await asyncio.to_thread(last_lines, self._log_file))

    def _policy(self, agent: AgentName) -> PolicyPage:
        resolved, problem = self._policies.policy_for(agent), self._policies.problems().get(agent)
        tree, own = as_tree(resolved.policy), str(policy_path(self._policies.folder, agent))
        values = tuple(
            PolicyValueView(key=key, value=_text(tree, key), source=str(source), own=source.file == own)
            for key, source in sorted(resolved.sources.items())
        )
        return PolicyPage(agent=agent, values=values, problem=None if problem is None else str(problem))


def last_lines(path: Path | None) -> EngineLogPage:
    """The end of a file that another thread writes and rotates. Blocks on the disk."""
    if path is None:
        return EngineLogPage(why_none="the engine was not started by this governor; its log is where that was done")
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return EngineLogPage(why_none="the engine has written nothing yet")
    except OSError as error:
        return EngineLogPage(why_none=f"the engine's log cannot be read: {error.strerror}")
    lines = text.splitlines()[1 if size > _LOG_BYTES else 0 :]
    return EngineLogPage(lines=tuple(line[:_LONGEST_LINE] for line in lines[-LOG_LINES:]))


def _text(tree: dict[str, Any], key: str) -> str:
    value: object = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return msgspec.json.encode(value).decode()


def _json(value: PolicyPage | EngineLogPage) -> Response:
    return Response(msgspec.json.encode(value), 200, _NO_STORE, JSON)
