"""What a client must be told about the running governor: its address, a model and the window."""

from __future__ import annotations

import msgspec

from governor import instance
from governor.cli.status import ask
from governor.cli.up import DEFAULT_PORT
from governor.policy.model import Policy
from governor.settings import Home
from governor.snapshot import Snapshot

DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}/v1"
"""Where ``governor up`` listens unless told otherwise."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What is served now."""

    base_url: str = DEFAULT_URL
    running: bool = False
    models: tuple[str, ...] = ()
    window_tokens: int | None = None

    def model_for(self, policy: Policy) -> str | None:
        """The first model that the policy allows; ``None`` while nobody knows what is served."""
        allowed = [model for model in self.models if not policy.models or model in policy.models]
        # A model that is allowed but not listed may be another name of one that is.
        return next(iter((*allowed, *policy.models)), None)

    def window_for(self, policy: Policy) -> int | None:
        """Prompt + output that the agent can really use, in tokens."""
        known = [tokens for tokens in (self.window_tokens, policy.context.ceiling_tokens) if tokens is not None]
        return min(known, default=None)


def served(home: Home) -> Served:
    """Asks the governor that runs from ``home``; the defaults if none does. Ends the command if it does not answer."""
    note = instance.running_instance(home)
    if note is None:
        return Served()
    engine = msgspec.json.decode(ask(note, "/governor/state"), type=Snapshot).engine
    return Served(base_url=f"{note.url}/v1", running=True, models=engine.models, window_tokens=engine.window_tokens)
