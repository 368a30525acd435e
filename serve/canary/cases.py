"""Which prompts the canary asks, and how much of each an engine should reuse. Pure: same facts and seed, same plan.

Each case is made so that asking it again changes nothing: the tail after the reusable depth, with its answer, is
shorter than the engine's checkpoint grid, so no deeper checkpoint appears and L1, L2 and L3 are hit at one depth.
Where checkpoints are stored: SGLang 0.5.23 ``schedule_batch.py:3137-3238``, ``components/mamba.py:164-194``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec

from serve.canary.model import Checkpoints, EngineFacts, Shape, Tokens

NEW_TOKENS = 8
_TAIL_TOKENS = 48
_QUOTE_TOKENS = 8
_STATE_GRID = 64
"""SGLang stores a state at multiples of its chunk size of the recurrence, 64 in all models seen, and of the page."""
_LEAST_DEPTH = 320
"""SGLang looks into L3 for 256 tokens or more (``prefetch_threshold``)."""
_MOST_DEPTH = 2048
_SHARE_OF_L1 = 16
"""All cases with their references must stay in L1 together."""
_OTHER_TOKENS = 200
_LAST_TOKEN_ID = 16_000
"""In every vocabulary; ids below 1,000 may be special."""


class NoRoom(ValueError):
    """The engine's cache or window cannot hold the prompts; the message has the numbers."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    shape: Shape
    stored: tuple[Tokens, ...]
    """Prompts asked beforehand, in order."""
    prompt: Tokens
    depth_tokens: int
    """Of ``prompt``: what is reused."""


class Flood(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that push everything older out of L1."""

    name: str
    prompts: int
    prompt_tokens: int

    def prompt(self, seed: str, number: int) -> Tokens:
        return tokens(self.prompt_tokens, seed, self.name, str(number))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seed: str
    cases: tuple[Case, ...]
    left_out: tuple[tuple[Shape, str], ...]
    """Shapes with the reason why this engine cannot reuse them."""
    floods: tuple[Flood, ...]
    """From the cheapest on; the next one only for cases that the one before left in L1."""

    def host_shortage(self, facts: EngineFacts, flood: Flood) -> str | None:
        """Why the flood would push the cases out of L2 as well; ``None`` if it would not."""
        prompts = [prompt for case in self.cases for prompt in (*case.stored, case.prompt)]
        states, needed = facts.host_states, flood.prompts + 2 * len(prompts)
        if facts.checkpoints is not Checkpoints.ATTENTION and states is not None and states < needed:
            return f"L2 holds {states:,} states, {needed:,} are needed to push the prompts out of L1 and keep them"
        kv_tokens = facts.host_tokens
        needed = flood.prompts * flood.prompt_tokens + sum(map(len, prompts))
        if kv_tokens is not None and kv_tokens < needed:
            return f"L2 holds {kv_tokens:,} tokens, {needed:,} are needed to push the prompts out of L1 and keep them"
        return None


def make_plan(facts: EngineFacts, seed: str, *, quick: bool = False) -> Plan:
    """All shapes the engine can reuse; with ``quick`` the most usual one, and the cheapest flood.

    Raises :class:`NoRoom`.
    """
    grid = math.lcm(_STATE_GRID, facts.page_tokens)
    least, most = math.ceil(_LEAST_DEPTH / grid), _MOST_DEPTH // grid
    depth = grid * max(least, min(most, facts.device_tokens // _SHARE_OF_L1 // grid))
    room = min(facts.window_tokens, facts.device_tokens // 2)
    if depth + grid + _OTHER_TOKENS + NEW_TOKENS > room:
        raise NoRoom(f"prompts of {depth + grid + _OTHER_TOKENS:,} tokens do not fit into {room:,}")
    reusable, left_out = _shapes(facts.checkpoints)
    shapes = reusable[:1] if quick else reusable
    floods = _floods(facts, grid)
    return Plan(
        seed=seed,
        cases=tuple(_case(shape, facts.checkpoints, depth, grid, seed) for shape in shapes),
        left_out=left_out,
        floods=floods[:1] if quick else floods,
    )


def _shapes(checkpoints: Checkpoints) -> tuple[tuple[Shape, ...], tuple[tuple[Shape, str], ...]]:
    if checkpoints is not Checkpoints.NO_BUFFER:
        return tuple(Shape), ()
    why = "no_buffer stores a state where a request ends, none within it"
    return (Shape.CONTINUATION,), tuple((shape, why) for shape in Shape if shape is not Shape.CONTINUATION)


def _case(shape: Shape, checkpoints: Checkpoints, depth: int, grid: int, seed: str) -> Case:
    prefix = tokens(depth, seed, shape)
    prompt = prefix + quotes(prefix, _TAIL_TOKENS)
    match shape:
        case Shape.CONTINUATION:
            # A state of no_buffer is where the request ends, of the others at the grid point before.
            beyond = 0 if checkpoints is Checkpoints.NO_BUFFER else _TAIL_TOKENS // 2
            stored: tuple[Tokens, ...] = (prompt[: depth + beyond],)
        case Shape.BRANCH:
            # The first branch misses, and leaves a state at the fork.
            stored = tuple(prefix + tokens(_OTHER_TOKENS, seed, shape, branch) for branch in ("first", "second"))
        case Shape.REPEAT:
            stored = (prompt,)
        case Shape.ALIGNED:
            # Its own state is at its end, which never matches; the first repeat misses and leaves one before it.
            prompt = prefix + quotes(prefix, grid)
            stored = (prompt, prompt)
    return Case(shape=shape, stored=stored, prompt=prompt, depth_tokens=depth)


def _floods(facts: EngineFacts, grid: int) -> tuple[Flood, ...]:
    length = grid * max(1, min(_MOST_DEPTH, facts.window_tokens // 2, facts.device_tokens // 4) // grid)
    floods = [Flood(name="tokens", prompts=math.ceil(facts.device_tokens / length), prompt_tokens=length)]
    if facts.checkpoints is not Checkpoints.ATTENTION and facts.state_slots is not None:
        # Slots of a hybrid model are few, so its states leave L1 long before its KV would.
        floods.insert(0, Flood(name="states", prompts=facts.state_slots, prompt_tokens=grid + grid // 2))
    return tuple(floods)


def tokens(count: int, *names: str) -> Tokens:
    """Random token ids, the same for the same names. Two sets begin alike with a chance of one in 15,000."""
    source = random.Random("/".join(names))  # noqa: S311 - has to be repeatable
    return tuple(source.randrange(1000, _LAST_TOKEN_ID) for _ in range(count))


def quotes(prefix: Sequence[int], count: int) -> Tokens:
    """A tail that quotes runs of tokens from all over the prefix.

    A model that has the prefix right expects a quote's next token, so the tail's logprobs depend on every part of it.
    """
    runs = math.ceil(count / _QUOTE_TOKENS)
    starts = [run * (len(prefix) - _QUOTE_TOKENS) // runs for run in range(runs)]
    return tuple(token for start in starts for token in prefix[start : start + _QUOTE_TOKENS])[:count]
