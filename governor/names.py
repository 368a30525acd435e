"""Names that become file names. One rule, checked wherever a name enters, so that no name can leave its folder."""

from __future__ import annotations

import re
from pathlib import Path

from governor.errors import BadRequest
from governor.types import AgentName

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NAME_RULE = "1 to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or a digit"


def is_agent_name(text: str) -> bool:
    """Lower case only, since some file systems take ``Hermes`` and ``hermes`` for one file."""
    return _NAME.fullmatch(text) is not None


def agent_name(text: str) -> AgentName:
    """``text`` as a name. Raises :class:`BadRequest` if it is not one."""
    if not is_agent_name(text):
        raise BadRequest(f"{text[:80]!r} is not an agent's name: use {NAME_RULE}", param="name")
    return AgentName(text)


def policy_path(folder: Path, agent: str) -> Path:
    """Where an agent's policy file is. Raises :class:`BadRequest` before a bad name can be joined into a path."""
    return folder / f"{agent_name(agent)}.toml"
