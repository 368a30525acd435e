"""What the owner can do to a running governor, and what is said back: the values of ``/governor/actions/...``.

Shared by the gateway, the commands and the dashboard; values only.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

ACTIONS_PATH = "/governor/actions/"
"""``POST`` here plus an act's ``name``, its fields as the JSON body."""
CLIENT_HEADER = "x-governor-client"
"""Names the program that acts; one of :data:`CLIENTS`."""
CLIENTS = ("top", "cli", "web")
OTHER_CLIENT = "api"
"""Whoever does not say, or is none of these."""

PolicyValue = bool | int | float | str | list[str]


class PauseAgent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's turns wait until it is resumed."""

    name: ClassVar[str] = "pause"
    agent: str
    running: bool = False
    """Answers that have begun are paused as well, where they can be continued. Else they go on to their end."""

    @property
    def target(self) -> str:
        return self.agent


class ResumeAgent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's turns wait no longer for the owner."""

    name: ClassVar[str] = "resume"
    agent: str

    @property
    def target(self) -> str:
        return self.agent


class CancelTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The turn ends now; its client gets an error that says so."""

    name: ClassVar[str] = "cancel"
    turn: str

    @property
    def target(self) -> str:
        return self.turn


class SliceTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The turn pauses now, and goes on when those that wait have come to run."""

    name: ClassVar[str] = "slice"
    turn: str

    @property
    def target(self) -> str:
        return self.turn


class CompactNow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's next prompt is made shorter, however far it is from its trigger."""

    name: ClassVar[str] = "compact"
    agent: str

    @property
    def target(self) -> str:
        return self.agent


class SetPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of an agent's policy file becomes another; its comments stay."""

    name: ClassVar[str] = "set"
    agent: str
    key: str
    """Dotted, as in ``output.final``."""
    value: PolicyValue | None
    """``None``: taken out, so that the policy under it decides."""

    @property
    def target(self) -> str:
        return self.agent


class ReloadPolicies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All policy files are read now."""

    name: ClassVar[str] = "reload"

    @property
    def target(self) -> str:
        return "policies"


Act = PauseAgent | ResumeAgent | CancelTurn | SliceTurn | CompactNow | SetPolicy | ReloadPolicies
ACTS: dict[str, type[Act]] = {
    kind.name: kind for kind in (PauseAgent, ResumeAgent, CancelTurn, SliceTurn, CompactNow, SetPolicy, ReloadPolicies)
}


class Acted(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of an act."""

    action: str
    target: str
    changed: bool
    """False: all was so already."""
    detail: str
    """One line for a person."""
