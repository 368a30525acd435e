"""The description of a scripted engine: which answers, in which order, for which calls.

The same typed values come from a test's arguments, from a JSON file or from the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from serve.scripted.ask import CallKind
from serve.scripted.behaviour import Behaviour, Knobs, Script, parse_word
from serve.scripted.modes import MODES, ModeOptions
from serve.scripted.script import BadScript, Step, parse_script

Source: TypeAlias = str | Behaviour | Mapping[str, Any] | Sequence[Any]
"""One answer as written: the name of a mode, a behaviour (its JSON, a word for one), or a list of steps."""

Reaction: TypeAlias = str | Behaviour | tuple[Step, ...]
"""One answer as played: the name of a mode, a behaviour, or parsed steps."""


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about an engine but its address; the shape of a ``--script`` file."""

    answers: list[Any] = []
    """The nth generation call gets the nth of them, the last one repeats. Empty: the engine converses."""
    by_path: dict[str, list[Any]] = {}
    """Answers of single paths, which come before ``answers`` and before the built-in paths."""
    calls: dict[CallKind, list[Any]] = {}
    """While the engine converses: behaviours per kind of call, consumed one a call, then ordinary answers."""
    summaries: list[Any] = []
    """The same as ``answers`` for a gateway's own requests for a summary; empty: they are calls like others."""
    knobs: Knobs = Knobs()
    """The engine itself."""
    options: ModeOptions = ModeOptions()
    """What modes among the answers are told."""


class AnswerQueue:
    """Answers in order; the last one repeats."""

    def __init__(self, sources: Sequence[Source]) -> None:
        reactions = [parse_source(source) for source in sources]
        self._reactions = [item for item in reactions for _ in range(_times(item))]
        self._next = 0

    @property
    def is_empty(self) -> bool:
        """There never was an answer."""
        return not self._reactions

    def take(self) -> Reaction | None:
        """The next answer, ``None`` when there never was one."""
        if not self._reactions:
            return None
        reaction = self._reactions[min(self._next, len(self._reactions) - 1)]
        self._next += 1
        return reaction


def _times(reaction: Reaction) -> int:
    return reaction.times if isinstance(reaction, Behaviour) else 1


def parse_source(source: Source) -> Reaction:
    """Raises :class:`BadScript` when the source is none of the forms."""
    if isinstance(source, Behaviour):
        return source
    if isinstance(source, str):
        return source if source in MODES else parse_word(source)
    if isinstance(source, Mapping):
        return parse_behaviour(source)
    return parse_script(source)


def parse_behaviour(source: str | Behaviour | Mapping[str, Any]) -> Behaviour:
    """A behaviour, its JSON form, or a word for one. Raises :class:`BadScript`."""
    if isinstance(source, Behaviour):
        return source
    if isinstance(source, str):
        return parse_word(source)
    try:
        return msgspec.convert(source, Behaviour)
    except msgspec.ValidationError as error:
        raise BadScript(f"{source!r}: {error}") from error


def parse_calls(calls: Mapping[CallKind, Sequence[Any]]) -> dict[CallKind, Script]:
    return {kind: Script(tuple(parse_behaviour(item) for item in items)) for kind, items in calls.items()}


def load_setup(path: Path) -> Setup:
    """A script file: a JSON object with the fields of :class:`Setup`, or a list of steps, which is one answer.

    Raises :class:`BadScript` naming the file, and ``OSError``.
    """
    try:
        raw = msgspec.json.decode(path.read_bytes())
        return Setup(answers=[raw]) if isinstance(raw, list) else msgspec.convert(raw, Setup)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadScript(f"{path}: {error}") from error
