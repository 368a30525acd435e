"""OpenClaw's ``openclaw.json``: one provider entry for one agent, and that agent's model.

A provider entry of its own gives each agent its own key. The flags under ``compat`` make OpenClaw send what the
governor knows sessions by, and the fields it owns. Known from OpenClaw 2026.9.6 and its shipped documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.connect import json5text
from governor.connect.model import Change, Connected, Connection, Path, at
from governor.connect.secrets import secret_values
from governor.errors import ConfigError

TIMEOUT_S = 900
"""Of one model call. A turn may be held for as long as its policy says, 600 s by default, before it even starts."""
_IMPLICIT_AGENT = "main"
_COMPAT = {
    "supportsPromptCacheKey": True,
    "sendSessionAffinityHeaders": True,
    "maxTokensField": "max_tokens",
    "supportsReasoningEffort": True,
    "requiresToolResultName": True,
}
_FREE = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}


class OpenClawConfig:
    """The file ``openclaw.json`` of one OpenClaw. ``agent_id`` is OpenClaw's own name of the agent; ``None`` takes the
    only one, or the one named as the governor's agent."""

    def __init__(self, file: str, agent_id: str | None = None) -> None:
        self._file = file
        self._agent_id = agent_id

    def present_key(self, text: str, agent: str) -> str | None:
        key = at(json5text.read(text, self._file), (*_provider(agent), "apiKey"))
        return key if isinstance(key, str) else None

    def connected(self, text: str, connection: Connection) -> Connected:
        tree = json5text.read(text, self._file)
        if not isinstance(tree, Mapping):
            raise ConfigError("is not a table of settings", file=self._file)
        changes = [*self._provider_changes(tree, connection), *self._model_changes(tree, connection)]
        for path, _ in changes:
            self._check_not_included(tree, path)
        after = json5text.edited(text, changes, self._file) if changes else text
        models = at(json5text.read(after, self._file), (*_provider(connection.agent), "models"))
        if not all(at(model, ("contextWindow",)) for model in models if at(model, ("id",)) == connection.model):
            return Connected(after, ("The window is not known; OpenClaw takes its own default. Set it with --window.",))
        return Connected(after)

    def secrets(self, text: str) -> frozenset[str]:
        return frozenset(secret_values(json5text.read(text, self._file)))

    def _provider_changes(self, tree: Any, connection: Connection) -> list[Change]:
        provider = _provider(connection.agent)
        connecting = {
            "baseUrl": connection.base_url,
            "apiKey": connection.key.reveal(),
            "api": "openai-completions",
            "timeoutSeconds": TIMEOUT_S,
        }
        if not isinstance(at(tree, provider), Mapping):
            return [(provider, {**connecting, "models": [_model(connection)]})]
        changes: list[Change] = [((*provider, name), value) for name, value in connecting.items()]
        models = at(tree, (*provider, "models"))
        known = [at(model, ("id",)) for model in models] if isinstance(models, list) else []
        if connection.model in known:
            entry = (*provider, "models", known.index(connection.model))
            changes += [((*entry, name), value) for name, value in _sizes(connection).items()]
            changes += [((*entry, "compat", name), value) for name, value in _COMPAT.items()]
        else:
            changes.append(((*provider, "models", len(known)), _model(connection)))
        return [(path, value) for path, value in changes if at(tree, path) != value]

    def _model_changes(self, tree: Any, connection: Connection) -> list[Change]:
        path = (*self._owner_of_model(tree, connection.agent), "model")
        wanted = f"governor-{connection.agent}/{connection.model}"
        present = at(tree, path)
        if isinstance(present, Mapping) or (present is None and "defaults" in path):
            path = (*path, "primary")
        return [] if at(tree, path) == wanted else [(path, wanted)]

    def _owner_of_model(self, tree: Any, agent: str) -> Path:
        """The table whose ``model`` counts. OpenClaw makes its agents itself, since a second one changes who receives
        what the first one did: here no agent is added."""
        if at(tree, ("agents", "list")) is not None:
            message = "is OpenClaw's old list of agents; 'openclaw doctor --fix' brings it up to date"
            raise ConfigError(message, file=self._file, key="agents.list")
        entries = at(tree, ("agents", "entries"))
        names = list(entries) if isinstance(entries, Mapping) else []
        if not names and self._agent_id in {None, _IMPLICIT_AGENT}:
            return ("agents", "defaults")
        chosen = self._agent_id or (names[0] if len(names) == 1 else agent)
        if chosen in names:
            return ("agents", "entries", chosen)
        there = f"there are: {', '.join(names)}" if names else f"there is only the implicit {_IMPLICIT_AGENT!r}"
        if self._agent_id is None:
            message = f"has several agents; choose one with --agent ({there})"
        else:
            message = f"has no agent {chosen!r} ({there}); 'openclaw agents add {chosen}' makes one"
        raise ConfigError(message, file=self._file, key="agents.entries")

    def _check_not_included(self, tree: Any, path: Path) -> None:
        for depth in range(len(path)):
            included = at(tree, (*path[:depth], "$include"))
            if included is not None:
                key = ".".join(map(str, path[:depth])) or None
                message = f"comes from another file ({included}); paste the configuration there by hand"
                raise ConfigError(message, file=self._file, key=key)


def _provider(agent: str) -> Path:
    return ("models", "providers", f"governor-{agent}")


def _model(connection: Connection) -> dict[str, Any]:
    return {
        "id": connection.model,
        "name": f"{connection.model} (governor)",
        "reasoning": True,
        "input": ["text"],
        "cost": _FREE,
        **_sizes(connection),
        "compat": _COMPAT,
    }


def _sizes(connection: Connection) -> dict[str, int]:
    window = connection.window_tokens
    return ({} if window is None else {"contextWindow": window}) | {"maxTokens": connection.output_tokens}
