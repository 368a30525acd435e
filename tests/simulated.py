"""Rows of a simulated run, written by hand: what a test does not name is a turn of one second that nothing hindered."""

from __future__ import annotations

from typing import Any

from governor.simulate.result import Capacity, CompactionRow, Result, Sample, Slice, TurnEnd, TurnRow, Wait, WaitPlace
from governor.types import AgentName, PromptShape, TurnKind

CAPACITY = Capacity(window_tokens=1000, l1_tokens=1000, l1_slots=10, l2_tokens=4000, l2_slots=20)


def row(agent: str, arrived: float, first: float | None, ended: float, **facts: Any) -> TurnRow:
    """A turn that was admitted when it arrived, unless ``facts`` say otherwise."""
    plain: dict[str, Any] = {
        "turn_id": f"{agent}@{arrived:g}",
        "session": "s",
        "kind": TurnKind.TOOL_STEP,
        "shape": PromptShape.CONTINUATION,
        "asked_s": arrived,
        "granted_s": arrived,
        "admitted_s": arrived,
        "longest_silence_s": (ended if first is None else first) - facts.get("asked_s", arrived),
        "prompt_tokens": 0,
        "new_tokens": 0,
        "cached_device": 0,
        "cached_host": 0,
        "cached_storage": 0,
        "reprefilled_tokens": 0,
        "output_tokens": 0,
        "wanted_tokens": 0,
        "cap_requested": None,
        "cap_tokens": 100,
        "waits": (),
        "slices": (),
        "retractions": 0,
        "end": TurnEnd.STOP,
    }
    return TurnRow(agent=AgentName(agent), arrived_s=arrived, first_token_s=first, ended_s=ended, **plain | facts)


def wait(at: float, seconds: float, place: WaitPlace = WaitPlace.ENGINE, reason: str = "full", *behind: str) -> Wait:
    return Wait(at_s=at, seconds=seconds, place=place, reason=reason, behind=tuple(map(AgentName, behind)))


def stay(granted: float, ended: float) -> Slice:
    return Slice(granted_s=granted, admitted_s=granted, ended_s=ended, output_tokens=0)


def sample(at: float, used: int = 0, held: int = 0, **facts: int) -> Sample:
    plain = {"running": 0, "waiting": 0, "held": 0, "l2_tokens": 0, "l3_tokens": 0}
    plain |= {"l1_used_slots": 0, "l1_slots": 0, "l2_slots": 0}
    return Sample(at_s=at, l1_used_tokens=used, l1_tokens=max(used, held), **plain | facts)


def result(
    *turns: TurnRow, samples: tuple[Sample, ...] = (), compactions: tuple[CompactionRow, ...] = (), **facts: Any
) -> Result:
    plain: dict[str, Any] = {
        "trace": "t", "machine": "m", "governed": True, "seed": 0, "capacity": CAPACITY,
        "ended_s": max((each.ended_s for each in turns), default=0.0),
    }  # fmt: skip
    return Result(turns=turns, samples=samples, compactions=compactions, **plain | facts)
