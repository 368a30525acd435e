"""Scripts: a TOML file that says how the twin answers which request, and what goes wrong.

::

    [[rule]]                          # the first rule that matches decides; one without `match` always does
    name = "weather"
    match = { last_user = "weather", agent = "hermes", turn = 1 }

    [rule.answer]                     # what custom_params.twin of a request may say too
    reasoning = "The user wants the weather."
    calls = [{ name = "get_weather", arguments = { city = "Oslo" } }]

    [[rule.faults]]                   # of the requests this rule answers
    kind = "cut"
    after_tokens = 3
    every = 5

    [[faults]]                        # of all requests, aborts, batches of events
    kind = "slow_start"
    seconds = 20
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from serve.twin_server.faults import Fault, RequestFault
from serve.twin_server.wishes import Wish


class BadScript(ValueError):
    """A script cannot be used. The message names the file and the key."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What rules look at."""

    last_user: str
    """The text of the last user message, or of a prompt without messages."""
    agent: str = ""
    """Who asks, by header or by the ``user`` field."""
    turn: int = 1
    """Which answer of the conversation is asked for, from 1."""


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is given must hold."""

    last_user: str | None = None
    """Stands in the last user message."""
    agent: str | None = None
    turn: int | None = None

    def matches(self, asked: Asked) -> bool:
        return (
            (self.last_user is None or self.last_user in asked.last_user)
            and self.agent in (None, asked.agent)
            and self.turn in (None, asked.turn)
        )


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    """Its faults are counted under it; without one it is named after its place."""
    match: Match = Match()
    answer: Wish | None = None
    """``None``: as without a script."""
    faults: tuple[RequestFault, ...] = ()


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rules: tuple[Rule, ...] = msgspec.field(default=(), name="rule")
    faults: tuple[Fault, ...] = ()

    def rule_for(self, asked: Asked) -> Rule | None:
        return next((rule for rule in self.rules if rule.match.matches(asked)), None)


def load_script(path: Path) -> Script:
    """Raises :class:`BadScript`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadScript(f"{path}: cannot be read: {error}") from error
    return parse_script(text, str(path))


def parse_script(text: str, file: str) -> Script:
    """Raises :class:`BadScript`."""
    try:
        script = msgspec.convert(tomllib.loads(text), Script)
    except tomllib.TOMLDecodeError as error:
        raise BadScript(f"{file}: is not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise BadScript(f"{file}: {str(error).replace('$.', '')}") from error
    rules = tuple(
        msgspec.structs.replace(rule, name=rule.name or f"rule {number}") for number, rule in enumerate(script.rules, 1)
    )
    names = [rule.name for rule in rules]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadScript(f"{file}: rule: more than one is named {', '.join(sorted(twice))}")
    return msgspec.structs.replace(script, rules=rules)
