"""Sessions of a coding agent with needles in their old rounds: what a later turn may need of what was said long ago.

A needle is a value that stands once in the session. It is plain ASCII without anything that JSON would escape, so that
it is found in a message's bytes whoever encoded them, and it is no more than is needed: of a path, not the folder,
since search results may be grouped by folder and lose nothing. The same seed makes the same session.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from bench.histories import SYSTEM, TEXTS, asks, call, code, log, message, prose, result, seeded

Text = Callable[[random.Random, int], str]
_RECORDED = Path(__file__).parents[1] / "tests" / "replay" / "data"
_PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 1500
_OLD = 0.6
"""Share of a session in which needles are put."""
_LATE = 0.8
"""Share of a session from which on they are mentioned again."""


class NeedleKind(StrEnum):
    """What kind of thing it is, and where it stands."""

    FACT = "fact told by the user"
    DECISION = "decision in an answer"
    PATH = "path in a search result"
    ERROR = "error line in a log"
    FIELD = "field in a JSON result"
    WRITTEN = "value written by a call"
    SUPERSEDED = "value in a read made again"
    CAPTION = "caption of a picture"
    THOUGHT = "reasoning"


class Needle(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to find again."""

    kind: NeedleKind
    key: str
    """Its name, by which it is asked for. An identifier."""
    value: str
    is_used: bool
    """Later turns mention the name, where there are any."""

    @property
    def question(self) -> str:
        return _QUESTIONS.get(self.kind, "What is the value of {key}? Answer with the value only.").format(key=self.key)


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A history as the client sends it."""

    name: str
    messages: Sequence[bytes]
    needles: Sequence[Needle]


class _Writer:
    """Writes a session message by message. ``lines`` is how long a result is; a small session has
    short texts: a small model repeats any prose that it has seen."""

    def __init__(self, lines: int, seed: int, *, is_small: bool = False) -> None:
        self.random = seeded(seed)
        self.lines = lines
        self.texts: Sequence[Text] = (log,) if is_small else TEXTS
        self.is_small = is_small
        self.messages = [message("system", "You are a careful engineer." if is_small else SYSTEM)]
        self.needles: list[Needle] = []
        self._calls = 0

    def needle(self, kind: NeedleKind) -> Needle:
        number = self.random.getrandbits(32)
        key = f"{self.random.choice(_NAMES)}_{number & 0xFFF:03x}"
        value = _VALUES[kind](number)
        made = Needle(kind=kind, key=key, value=value, is_used=number % 2 == 0)
        self.needles.append(made)
        return made

    def said(self, words: int) -> str:
        return "Done." if self.is_small else prose(self.random, words)

    def user(self, text: str, needle: Needle | None = None) -> None:
        match needle:
            case Needle(kind=NeedleKind.FACT):
                text = f"{text} By the way, {needle.key} is {needle.value} on our side. {self.said(30)}"
            case Needle(kind=NeedleKind.CAPTION):
                picture = {"type": "image_url", "image_url": {"url": _PICTURE}}
                caption = {"type": "text", "text": f"{text} The picture shows {needle.key} at {needle.value}."}
                self.messages.append(message("user", [picture, caption]))
                return
        self.messages.append(message("user", text))

    def step(self, needle: Needle | None = None) -> None:
        """A call and its result; the needle is in one of them."""
        kind = needle.kind if needle is not None else None
        if needle is None or kind is NeedleKind.THOUGHT:
            thought = {} if needle is None else {"reasoning_content": f"{needle.key} must be {needle.value}, I think."}
            text = self.random.choice(self.texts)(self.random, self.lines)
            self._exchange("terminal", text, {"command": f"run {self._calls}"}, **thought)
        elif kind is NeedleKind.WRITTEN:
            body = f"{needle.key} = {needle.value}\n{code(self.random, 1)}"
            self._exchange("write_file", "written", {"path": f"conf/{needle.key}.py", "content": body})
        elif kind is NeedleKind.SUPERSEDED:
            for value in (needle.value, "none"):
                text = _with_line(code(self.random, max(1, self.lines // 6)), f"{needle.key} = {value}")
                self._exchange("read_file", text, {"path": f"conf/{needle.key}.py"})
        else:
            text, line = self.around(needle)
            self._exchange("terminal", _with_line(text, line), {"command": f"look {self._calls}"})

    def answer(self, decided: Sequence[Needle]) -> None:
        said = self.said(40)
        for each in decided:
            said = f"{said} Decision: {each.key} will be {each.value}, as measured. {self.said(20)}"
        self.messages.append(message("assistant", said))

    def use(self, needle: Needle) -> None:
        self._exchange("terminal", f"{needle.key}: found", {"command": f"check {needle.key}"})

    def around(self, needle: Needle) -> tuple[str, str]:
        """A result of the needle's kind without it, and its line."""
        if needle.kind is NeedleKind.ERROR:
            line = f"2026-11-29 12:00:31 worker-3 ERROR {needle.key} failed: {needle.value}"
            return log(self.random, self.lines), line
        if needle.kind is NeedleKind.FIELD:
            rows = [
                {"id": number, "name": f"{self.random.choice(_NAMES)}_{number}", "value": f"{self.random.random():.6f}"}
                for number in range(self.lines)
            ]
            listed = [msgspec.json.encode(row).decode() for row in rows]
            return "[" + ",\n".join(listed) + "]", f'{{"id":-1,"name":"{needle.key}","value":"{needle.value}"}},'
        picked = self.random.choices(_NAMES, k=self.lines)
        found = [f"src/{name}/{n}.py:{self.random.randrange(900)}: def {name}_{n}(" for n, name in enumerate(picked)]
        return "\n".join(found), f"src/deep/{needle.value}: def {needle.key}("

    def _exchange(self, tool: str, text: str, arguments: Mapping[str, str], **fields: str) -> None:
        self._calls += 1
        call_id = f"call_{self._calls}"
        self.messages += [asks(call(call_id, tool, **arguments), **fields), result(call_id, text)]


_NAMES = ("evict", "retain", "prefill", "lease", "router", "ledger", "gateway", "quota", "shard", "replica")
_VALUES: Mapping[NeedleKind, Callable[[int], str]] = {
    NeedleKind.FACT: lambda n: f"10.{n >> 24}.{n >> 16 & 255}.{n >> 8 & 255}:{5000 + n % 4000}",
    NeedleKind.DECISION: lambda n: f"{n % 9000 + 1000}-slots-{n >> 20:03x}",
    NeedleKind.PATH: lambda n: f"{n:08x}.py:{n % 700 + 10}",
    NeedleKind.ERROR: lambda n: f"E{n % 90000 + 10000} checkpoint {n:08x} is missing",
    NeedleKind.FIELD: lambda n: f"{n:08x}{n ^ 0x5BD1E995:08x}",
    NeedleKind.WRITTEN: lambda n: f"0x{n:08x}",
    NeedleKind.SUPERSEDED: lambda n: f"0x{n:08x}",
    NeedleKind.CAPTION: lambda n: f"{n % 9000 / 100 + 10:.2f}-GiB-{n >> 20:03x}",
    NeedleKind.THOUGHT: lambda n: f"{n:08x}-guess",
}
_QUESTIONS = {
    NeedleKind.PATH: "In which file and line is {key} defined? Answer with the file and the line only.",
    NeedleKind.ERROR: 'Quote the error line that has "{key}" in it.',
}
_BY_USER = frozenset({NeedleKind.FACT, NeedleKind.CAPTION})
_SAID = _BY_USER | {NeedleKind.DECISION}
"""Not in a call or its result."""
_USED_A_CALL = 4
_UNSEEN = frozenset({NeedleKind.THOUGHT, NeedleKind.CAPTION, NeedleKind.WRITTEN})
"""The embedded model's template shows neither reasoning nor pictures nor calls."""


def coding(
    name: str,
    *,
    rounds: int,
    steps: int,
    lines: int,
    seed: int,
    kinds: Mapping[int, NeedleKind],
    is_small: bool = False,
) -> Session:
    """``rounds`` questions, each with ``steps`` calls and an answer; results of so many ``lines``. ``kinds`` says which
    needle comes with which call. With one round, it is one task without an answer yet."""
    writer = _Writer(lines, seed, is_small=is_small)
    writer.user("Find out why the cache is missed, and repair it.")
    unused = 0
    for number in range(rounds):
        calls = range(number * steps, (number + 1) * steps)
        needles = {at: writer.needle(kinds[at]) for at in calls if at in kinds}
        if number:
            writer.user(f"Question {number}: what about this? {writer.said(12)}")
        for needle in needles.values():
            if needle.kind in _BY_USER:
                writer.user("And see this.", needle)
        for at in calls:
            needle_there = needles.get(at)
            writer.step(None if needle_there is None or needle_there.kind in _SAID else needle_there)
            if at >= rounds * steps * _LATE:
                for used in writer.needles[unused : unused + _USED_A_CALL]:
                    if used.is_used:
                        writer.use(used)
                unused += _USED_A_CALL
        if rounds > 1:
            writer.answer([each for each in needles.values() if each.kind is NeedleKind.DECISION])
    if rounds > 1:
        writer.user("Thank you. What is left to do?")
    return Session(name=name, messages=writer.messages, needles=writer.needles)


def sessions() -> list[Session]:
    """Long ones of three shapes."""
    every = list(NeedleKind)
    not_said = [kind for kind in every if kind not in _SAID]
    return [
        coding("coding, 30 rounds", rounds=30, steps=3, lines=30, seed=11, kinds=_in_turn(90, every)),
        coding("one task, 90 calls", rounds=1, steps=90, lines=40, seed=12, kinds=_in_turn(90, not_said)),
        coding("large results", rounds=12, steps=3, lines=150, seed=13, kinds=_in_turn(36, every)),
    ]


def _in_turn(calls: int, kinds: Sequence[NeedleKind]) -> Mapping[int, NeedleKind]:
    return {at: kinds[at % len(kinds)] for at in range(int(calls * _OLD))}


def small_sessions(number: int) -> list[Session]:
    """Of some hundred tokens, with one needle each, and the question for it at the end."""
    kinds = [kind for kind in NeedleKind if kind not in _UNSEEN]
    made = []
    for at in range(number):
        needle = {1: kinds[at % len(kinds)]}
        short = coding(f"small {at}", rounds=3, steps=1, lines=3, seed=100 + at, kinds=needle, is_small=True)
        question = message("user", short.needles[0].question)
        made.append(msgspec.structs.replace(short, messages=[*short.messages[:-1], question]))
    return made


class _Line(msgspec.Struct):
    body: str


class _Body(msgspec.Struct):
    messages: list[msgspec.Raw]


class _Result(msgspec.Struct):
    role: str
    content: str | None = None


def recorded_sessions() -> list[Session]:
    """The longest that Hermes and OpenClaw sent, with a line more in each old result, and one in late ones that names
    some of them. None where the recordings are not at hand."""
    made = []
    for file, place in (("hermes-compaction", 0), ("openclaw-compaction", 3)):
        path = _RECORDED / f"{file}.jsonl.gz"
        if path.exists():
            line = gzip.decompress(path.read_bytes()).splitlines()[place]
            body = msgspec.json.decode(msgspec.json.decode(line, type=_Line).body, type=_Body)
            made.append(_planted(f"{file.partition('-')[0]}, recorded", [bytes(raw) for raw in body.messages]))
    return made


def _planted(name: str, messages: list[bytes]) -> Session:
    writer = _Writer(0, 21)
    kinds = (NeedleKind.ERROR, NeedleKind.PATH)
    for index, raw in enumerate(messages):
        read = msgspec.json.decode(raw, type=_Result)
        if read.role != "tool" or read.content is None:
            continue
        if index < len(messages) * _OLD:
            needle = writer.needle(kinds[len(writer.needles) % len(kinds)])
            messages[index] = _edited(raw, read.content, writer.around(needle)[1])
        elif index > len(messages) * _LATE:
            names = " ".join(needle.key for needle in writer.needles if needle.is_used)
            messages[index] = _edited(raw, read.content, f"found: {names}")
    return Session(name=name, messages=messages, needles=writer.needles)


def _edited(raw: bytes, content: str, line: str) -> bytes:
    """The message with a line more in its output; Hermes wraps that in JSON."""
    wrapped = content.startswith("{")
    value = msgspec.json.decode(content) if wrapped else {"output": content}
    value["output"] = _with_line(value["output"], line)
    text = msgspec.json.encode(value).decode() if wrapped else value["output"]
    return msgspec.json.encode(msgspec.json.decode(raw) | {"content": text})


def _with_line(text: str, line: str) -> str:
    """A line put in the middle, where neither a head nor a tail has it."""
    lines = text.split("\n")
    middle = len(lines) // 2
    return "\n".join([*lines[:middle], line, *lines[middle:]])
