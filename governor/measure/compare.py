"""Two results beside each other: ratios, and whether they are more than chance. Pure.

What is not comparable is refused: another model, version or flag, another machine, other prompts. Who knows better says
``anyway`` and gets the differences told with the ratios.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from governor.measure.errors import NotComparable
from governor.measure.result import Case, Measure, Metric, Result
from governor.measure.stats import least_p, rank_sum_p, ratio_interval

SIGNIFICANT_P = 0.05
_BUSY = 1.0
"""Load average over cores, before a run: the machine had other work."""


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference"
    DIFFERENT = "different"
    """And neither direction is better."""
    TOO_FEW = "too few values"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both."""

    case: Case
    metric: Metric
    ours: float
    theirs: float
    ratio: float
    """Theirs over ours."""
    low: float
    high: float
    """95 % of the ratio, by bootstrap."""
    p: float
    """Mann and Whitney, two-sided."""
    verdict: Verdict
    """Of theirs."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    rows: tuple[Row, ...]
    differences: tuple[str, ...]
    """Why the two are not comparable; empty where they are."""
    only_one: tuple[str, ...]
    """Figures that the other has not."""


def compare(ours: Result, theirs: Result, *, anyway: bool = False) -> Comparison:
    """Raises :class:`NotComparable`, unless ``anyway``; and always where no figure is in both."""
    differences = tuple(_differences(ours, theirs))
    if differences and not anyway:
        raise NotComparable(differences)
    mine, other = _by_key(ours), _by_key(theirs)
    rows = tuple(_row(mine[key], other[key]) for key in mine if key in other)
    if not rows:
        raise NotComparable((*differences, "they have no figure in common"))
    only = [f"{case}, {metric.value}" for case, metric in mine.keys() ^ other.keys()]
    return Comparison(rows=rows, differences=differences, only_one=tuple(sorted(only)))


def _by_key(result: Result) -> dict[tuple[Case, Metric], Measure]:
    return {(measure.case, measure.metric): measure for measure in result.measures}


def _row(ours: Measure, theirs: Measure) -> Row:
    low, high = ratio_interval(ours.values, theirs.values)
    p = rank_sum_p(ours.values, theirs.values)
    return Row(
        case=ours.case,
        metric=ours.metric,
        ours=ours.median,
        theirs=theirs.median,
        ratio=theirs.median / ours.median if ours.median else float("nan"),
        low=low,
        high=high,
        p=p,
        verdict=_verdict(ours, theirs, p),
    )


def _verdict(ours: Measure, theirs: Measure, p: float) -> Verdict:
    if least_p(len(ours.values), len(theirs.values)) > SIGNIFICANT_P:
        return Verdict.TOO_FEW
    if p > SIGNIFICANT_P or ours.median == theirs.median:
        return Verdict.NO_DIFFERENCE
    if ours.better == "neither":
        return Verdict.DIFFERENT
    return Verdict.BETTER if (theirs.median > ours.median) == (ours.better == "higher") else Verdict.WORSE


def engine_differences(ours: Result, theirs: Result) -> Iterator[str]:
    """Why they are of different engines or machines, whatever was measured."""
    pairs = (
        ("engine", ours.engine.kind, theirs.engine.kind),
        ("engine's version", ours.engine.version, theirs.engine.version),
        ("model", ours.engine.model, theirs.engine.model),
        ("model's files", ours.engine.model_hash, theirs.engine.model_hash),
        ("twin's speed", ours.engine.speed, theirs.engine.speed),
        ("processor", ours.machine.processor, theirs.machine.processor),
        ("number of cores", ours.machine.cores, theirs.machine.cores),
        ("pool of L1", ours.engine.device_tokens, theirs.engine.device_tokens),
        ("pool of L2", ours.engine.host_tokens, theirs.engine.host_tokens),
        ("L3", ours.engine.storage, theirs.engine.storage),
    )
    yield from _others(pairs)
    yield from _other_gpus(ours, theirs)
    for name in sorted(ours.engine.flags.keys() | theirs.engine.flags.keys()):
        one_flag, other_flag = ours.engine.flags.get(name), theirs.engine.flags.get(name)
        if one_flag != other_flag:
            yield f"another setting of the engine: {name} is {one_flag} and {other_flag}"


def _differences(ours: Result, theirs: Result) -> Iterator[str]:
    pairs = (
        ("suite", ours.suite, theirs.suite),
        ("form of prompts", ours.engine.prompts, theirs.engine.prompts),
        ("choices", _told(dict(ours.protocol)), _told(dict(theirs.protocol))),
    )
    yield from _others(pairs)
    yield from engine_differences(ours, theirs)
    for which, result in (("first", ours), ("second", theirs)):
        machine = result.machine
        if machine.engine_is_local and machine.load_before > _BUSY * machine.cores:
            yield (
                f"the {which} was measured on a busy machine: load average {machine.load_before:g} on {machine.cores} "
                "cores before it began"
            )


def _others(pairs: Iterable[tuple[str, object, object]]) -> Iterator[str]:
    for what, one, other in pairs:
        if one != other:
            yield f"another {what}: {_named(one)} and {_named(other)}"


def _named(value: object) -> str:
    return "unknown" if value is None else str(value)


def _other_gpus(ours: Result, theirs: Result) -> Iterator[str]:
    """By name and driver; clocks differ from minute to minute."""
    one, other = ([",".join(gpu.split(",")[:2]) for gpu in each.machine.gpus] for each in (ours, theirs))
    if one != other:
        yield f"other GPUs: {'; '.join(one) or 'none'} and {'; '.join(other) or 'none'}"


def _told(protocol: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(protocol.items())) or "the suite's own"
