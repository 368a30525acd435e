"""What ``governor up`` was asked for, as values: shared by the command and by what carries it out."""

from __future__ import annotations

import msgspec

from governor.settings import Home, Secret


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine was asked for on the command line."""

    upstream: str | None = None
    upstream_key: Secret | None = None
    window_tokens: int | None = None
    model: str | None = None
    context_tokens: int | None = None
    slots: int = 2


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line."""

    home: Home
    host: str
    port: int
    hosts: tuple[str, ...]
    engine: EngineOptions
    database: str | None
    loopback_agent: str | None
    verbose: bool
