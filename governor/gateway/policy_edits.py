"""The owner changes a policy while the governor runs: one key, checked before it is written, in force at once.

The file is the truth: a change made here is one of the owner's own saves, made for him.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from governor.acts import PolicyValue
from governor.errors import BadRequest, ConfigError
from governor.files import read_text
from governor.names import policy_path
from governor.policy.edit import set_key, unset_key
from governor.policy.keys import key_at
from governor.policy.loader import Observer, PolicyStore
from governor.policy.model import Policy, as_tree
from governor.policy.resolve import Resolved
from governor.types import AgentName

CheckPolicy = Callable[[AgentName, Policy], str | None]
"""Why a policy cannot be had beside all others, in words; ``None`` if it can."""


class PolicyEdits:
    """Edits the files of a :class:`PolicyStore`. ``on_change`` is told as its watch tells it."""

    def __init__(self, policies: PolicyStore, check: CheckPolicy, on_change: Observer) -> None:
        self._policies = policies
        self._check = check
        self._on_change = on_change

    def policy_of(self, agent: AgentName) -> Policy:
        return self._policies.policy_for(agent).policy

    async def set(self, agent: AgentName, key: str, value: PolicyValue | None) -> tuple[bool, str]:
        """Whether the file is another than before, and what is in force now. Raises :class:`BadRequest`."""
        before = _value_at(self.policy_of(agent), key)
        try:
            changed, resolved = await asyncio.to_thread(self._write, agent, key, value)
        except ConfigError as error:
            raise BadRequest(str(error), param="value" if _is_key(key) else "key") from error
        # Only this one: another may just be half saved, which can be good TOML with limits missing.
        await self._policies.look(self._on_change, lambda name: name == agent)
        after, source = _value_at(resolved.policy, key), resolved.sources.get(key)
        if not changed:
            return False, f"{key} of {agent} is {after} already"
        at = f", from {source}" if value is None and source is not None else ""
        return True, f"{key} of {agent} is {after}{at} (was {before})"

    async def reload(self) -> tuple[bool, str]:
        """Read all files now, quiet or not. Whether anything has changed, and whose files cannot be used."""
        changes: list[str] = []

        def on_change(agent: str, problem: ConfigError | None) -> None:
            changes.append(agent)
            self._on_change(agent, problem)

        await self._policies.look(on_change, lambda _: True)
        said = f"changed: {', '.join(sorted(changes))}" if changes else "nothing has changed"
        problems = "; ".join(str(problem) for problem in self._policies.problems().values())
        return bool(changes), f"{said}; not usable: {problems}" if problems else said

    def _write(self, agent: AgentName, key: str, value: PolicyValue | None) -> tuple[bool, Resolved]:
        """Blocks on the disk. Raises :class:`ConfigError`."""
        path = policy_path(self._policies.folder, agent)

        def check(resolved: Resolved) -> None:
            problem = self._check(agent, resolved.policy)
            if problem is not None:
                raise ConfigError(problem, file=str(path), key=key)

        before = read_text(path)
        shipped = self._policies.shipped
        resolved = unset_key(path, key, shipped, check) if value is None else set_key(path, key, value, shipped, check)
        return read_text(path) != before, resolved


def _is_key(key: str) -> bool:
    """Whether the name is right, so that it is the value that is not."""
    return key_at(tuple(key.split("."))) is not None or key.startswith("request.sampling.")


def _value_at(policy: Policy, key: str) -> str:
    value: object = as_tree(policy)
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return "unset" if value is None else msgspec.json.encode(value).decode()
