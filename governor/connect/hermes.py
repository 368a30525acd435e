"""Hermes Agent's ``config.yaml``: the table ``model`` with a ``custom`` provider.

What each setting is for is known from Hermes 0.19.0: without ``max_tokens`` it sends 65,536 on every call; under a
``context_length`` of 64,000 it refuses to start; ``model.default`` is the model's name.
"""

from __future__ import annotations

from typing import Any

from governor.connect import yamltext
from governor.connect.model import Change, Connected, Connection, at
from governor.connect.secrets import secret_values

SMALLEST_WINDOW = 64_000
"""``MINIMUM_CONTEXT_LENGTH`` of Hermes, in tokens."""


class HermesConfig:
    """The file ``config.yaml`` of one Hermes home, which is one agent."""

    def __init__(self, file: str) -> None:
        self._file = file

    def present_key(self, text: str, agent: str) -> str | None:
        key = at(yamltext.read(text, self._file), ("model", "api_key"))
        return key if isinstance(key, str) else None

    def connected(self, text: str, connection: Connection) -> Connected:
        tree = yamltext.read(text, self._file)
        notes: list[str] = []
        if connection.window_tokens is None and at(tree, ("model", "context_length")) is None:
            notes.append("The window is not known, so context_length is left out; set it with --window.")
        wanted = [(("model", name), value) for name, value in _settings(connection, notes).items()]
        if at(tree, ("model", "api_mode")) not in {None, "chat_completions"}:
            wanted.append((("model", "api_mode"), "chat_completions"))
        changes: list[Change] = [(path, value) for path, value in wanted if at(tree, path) != value]
        if not changes:
            return Connected(text, tuple(notes))
        return Connected(yamltext.edited(text, "model", changes, self._file), tuple(notes))

    def secrets(self, text: str) -> frozenset[str]:
        return frozenset(secret_values(yamltext.read(text, self._file)))


def _settings(connection: Connection, notes: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "provider": "custom",
        "default": connection.model,
        "base_url": connection.base_url,
        "api_key": connection.key.reveal(),
    }
    window = connection.window_tokens
    if window is not None:
        settings["context_length"] = max(window, SMALLEST_WINDOW)
        if window < SMALLEST_WINDOW:
            notes.append(
                f"The window is {window:,} tokens. Hermes refuses to start under {SMALLEST_WINDOW:,}, so it is told "
                f"{SMALLEST_WINDOW:,}; the governor tells it when the real one is full."
            )
    settings["max_tokens"] = connection.output_tokens
    return settings
