"""What ``governor up`` was asked for, as values: shared by the command and by what carries it out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from governor.settings import Home, Secret
from serve.profile.tiers import LowerTier


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine was asked for on the command line. What is ``None`` is the profile's to say."""

    profile: str | None = None
    """A shipped one by name, the owner's by path, or ``twin:`` and a machine; ``None``: ``upstream`` if there is one,
    else ``embedded``."""
    upstream: str | None = None
    upstream_key: Secret | None = None
    window_tokens: int | None = None
    model: str | None = None
    context_tokens: int | None = None
    slots: int | None = None
    python: Path | None = None
    """Interpreter of an SGLang of the owner's, in place of the installed one."""
    without: tuple[LowerTier, ...] = ()
    """Cache tiers to run without."""
    speed: float | None = None
    """Of the twin, this and what follows."""
    script: Path | None = None
    seed: int | None = None


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
