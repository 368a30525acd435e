"""Loads the failure cases of ``tests/cases/inputs`` as typed variants.

A case file holds variants: a request (or several), the engine's answers, and what must hold, in words. The words are
for the person who writes the test; everything else is expanded here, so that a case test only configures and checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from serve.scripted import Knobs, ModeOptions, ScriptedEngine, expand

_INPUTS = Path(__file__).parent / "cases" / "inputs"


class CaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request as a client sends it."""

    method: str
    path: str
    """With its query, if it has one."""
    body: dict[str, Any]

    def content(self) -> bytes:
        return msgspec.json.encode(self.body)


class CaseVariant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of a case. Field names are those of the files."""

    v: str
    expect: list[str]
    request: CaseRequest | None = None
    requests: list[CaseRequest] = []
    stub: str | list[dict[str, Any]] | None = None
    stub_second: str | list[dict[str, Any]] | None = None
    summary_stub: str | list[dict[str, Any]] | None = None
    stub_tokens: tuple[int, int] | None = None
    client: dict[str, float] = {}
    """``disconnect_after_bytes``, ``disconnect_after_chunks`` or ``disconnect_after_s``."""
    policy: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    repeat: int = 1
    mix: tuple[str, ...] = ()
    canary: str | None = None
    """``127.0.0.1:CANARY``, to be replaced by the address of a listener."""
    also_get: str | None = None
    strings: list[str] = []
    where: list[str] = []
    writes: list[str] = []

    def all_requests(self) -> tuple[CaseRequest, ...]:
        """The requests in order, whichever way the file gives them."""
        return (*self.requests, *([self.request] if self.request else []))

    def engine(self, **changes: Any) -> ScriptedEngine:
        """The engine this variant describes, not yet started.

        ``policy.window`` and ``policy.pool_tokens`` become the engine's own, ``policy.summary_window`` that of the
        requests for a summary, which ``summary_stub`` answers.
        ``changes`` replace fields of :class:`~serve.scripted.Knobs`.
        """
        answers = [answer for answer in (self.stub, self.stub_second) if answer is not None]
        knobs: dict[str, Any] = {"model": "m"}
        if isinstance(self.policy.get("window"), int):
            knobs["window_tokens"] = self.policy["window"]
        if "pool_tokens" in self.policy:
            knobs["pool_tokens"] = self.policy["pool_tokens"]
        options = ModeOptions(
            tokens=self.stub_tokens, mix=self.mix, summary_window_tokens=self.policy.get("summary_window")
        )
        summaries = [] if self.summary_stub is None else [self.summary_stub]
        return ScriptedEngine(*answers, summaries=summaries, knobs=Knobs(**(knobs | changes)), options=options)


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One failure seen in a comparable product."""

    id: str
    name: str
    area: str
    set: str
    source: list[str]
    variants: list[CaseVariant]

    def variant(self, name: str) -> CaseVariant:
        """Raises ``KeyError``."""
        for variant in self.variants:
            if variant.v == name:
                return variant
        raise KeyError(f"{self.id} has no variant {name!r}")


def load_case(case_id: str) -> Case:
    """The case of an id like ``W05``, with ``$repeat`` and ``$concat`` expanded. Raises ``FileNotFoundError``."""
    for path in _INPUTS.glob(f"{case_id.removeprefix('W')}-*.json"):
        return _load(path)
    raise FileNotFoundError(f"no case {case_id} in {_INPUTS}")


def all_cases() -> Iterator[Case]:
    """Every case there is an input file for, in order of ids."""
    for path in sorted(_INPUTS.glob("*.json")):
        yield _load(path)


def _load(path: Path) -> Case:
    case = msgspec.convert(expand(msgspec.json.decode(path.read_bytes())), Case)
    if not path.name.startswith(case.id.removeprefix("W")):
        raise ValueError(f"{path.name} holds case {case.id}")
    return case
