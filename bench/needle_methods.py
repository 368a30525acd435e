"""Our compression as the needles see it: once to a target, and again and again while a session grows."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from bench.compress import limits_at, size_of
from bench.needle_places import Compressed
from governor.compress.draft import Left
from governor.compress.messages import read_message
from governor.compress.plan import Plan, plan
from governor.policy.model import CompressionPolicy

HANDLES = "gov-[0-9a-f]{16}"


SHIPPED = CompressionPolicy()


def once(messages: Sequence[bytes], target_tokens: int, *, policy: CompressionPolicy = SHIPPED) -> Compressed | None:
    """A plan that leaves so much of the history, by the estimate; ``None`` where there is none."""
    sizes = [size_of(raw) for raw in messages]
    began = time.process_time()
    made = _plan(messages, sizes, target_tokens, policy)
    cpu_ms = (time.process_time() - began) * 1000
    if made is None:
        return None
    return Compressed(
        messages=list(map(bytes, made.messages)), archive=_archive(made.left), handles=HANDLES, cpu_ms=cpu_ms
    )


def while_it_grows(messages: Sequence[bytes], window: float) -> Compressed | None:
    """The history as it comes in, brought down to half whenever it reaches so much of its whole size: what has been
    left of it stands for what it was, and is made shorter in its turn."""
    trigger = int(sum(map(size_of, messages)) * window)
    now: list[bytes] = []
    sizes: list[int] = []
    archive: dict[str, bytes] = {}
    times, cpu_s, tried = 0, 0.0, 0
    for raw in messages:
        if read_message(raw).role != "tool" and sum(sizes) >= max(trigger, tried):
            began = time.process_time()
            made = _plan(now, sizes, trigger // 2, SHIPPED)
            cpu_s += time.process_time() - began
            if made is None:
                tried = sum(sizes) + trigger // 10
            else:
                now, sizes = list(map(bytes, made.messages)), [size_of(bytes(each)) for each in made.messages]
                archive |= _archive(made.left)
                times += 1
        now.append(raw)
        sizes.append(size_of(raw))
    if not times:
        return None
    return Compressed(messages=now, archive=archive, handles=HANDLES, cpu_ms=cpu_s * 1000, times=times)


def _plan(
    messages: Sequence[bytes], sizes: Sequence[int], target_tokens: int, policy: CompressionPolicy
) -> Plan | None:
    limits = msgspec.structs.replace(limits_at(sum(sizes), target_tokens), gain_tokens=1)
    made = plan(messages, sizes, size_of=size_of, fixed_tokens=0, policy=policy, limits=limits)
    return made if isinstance(made, Plan) else None


def _archive(left: Sequence[Left]) -> dict[str, bytes]:
    return {each.handle: b"\n".join(map(bytes, each.values)) for each in left}
