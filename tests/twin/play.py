"""Random operations for the tiers: agents that talk, branch, repeat themselves and share a beginning.

Operations and answers are plain JSON, so that another process can do the same on something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from serve.twin.tiers import Tiers
from serve.twin.tiers_key import Key
from serve.twin.tiers_model import OutOfCapacity, TierSettings
from serve.twin.tiers_observer import TiersObserver
from serve.twin.tiers_prefetch import Prefetch
from serve.twin.tiers_request import Request
from tests.twin.cases import Case

WAITING = 4
"""Requests at the most, with ``buffer_only``, that something is staged for."""
Operation = list[Any]
"""Its name and its arguments."""
Answer = dict[str, Any]


class Twin:
    """Does on the tiers model what the driver does on the engine."""

    def __init__(self, settings: TierSettings, observer: TiersObserver | None = None) -> None:
        self.tiers = Tiers(settings, observer=observer)
        self.requests: dict[int, Request] = {}
        self.staged: dict[int, Prefetch] = {}
        """What was read for requests that wait (``buffer_only``)."""

    def do(self, operation: Operation) -> Answer:
        name, *arguments = operation
        try:
            answer: Answer = getattr(self, f"do_{name}")(*arguments) or {}
        except (OutOfCapacity, KeyError) as error:
            answer = {"error": repr(error)}
        tree = self.tiers.tree
        answer["free"] = [tree.free_tokens, tree.free_slots, tree.free_host_tokens, tree.free_host_slots]
        return answer

    def do_match(self, runs: list[Any]) -> Answer:
        found = self.tiers.match(Key(map(tuple, runs)))
        return {
            "device": found.device_tokens,
            "host": found.host_tokens,
            "loads_state": found.loads_state,
            "kv": found.kv_tokens,
        }

    def do_admit(self, number: int, runs: list[Any], priority: int) -> Answer:
        staged = self.staged.pop(number, None)
        try:
            request = self.tiers.admit(Key(map(tuple, runs)), priority, staged=staged)
        except OutOfCapacity:
            if staged is not None:
                self.tiers.prefetches.release(staged)
            raise
        self.requests[number] = request
        return {"device": request.device_hit_tokens, "host": request.host_hit_tokens}

    def do_extend(self, number: int, tokens: int) -> None:
        self.tiers.extend(self.requests[number], tokens)

    def do_checkpoint(self, number: int) -> None:
        self.tiers.checkpoint(self.requests[number])

    def do_decode(self, number: int, runs: list[Any]) -> None:
        self.tiers.decode(self.requests[number], Key(map(tuple, runs)))

    def do_finish(self, number: int, stop: int) -> None:
        request = self.requests.pop(number)
        self.tiers.finish(request, None if stop < 0 else request.prompt_tokens + stop)

    def do_retract(self, number: int, others: int) -> None:
        self.tiers.retract(self.requests.pop(number), others)

    def do_evict(self, tokens: int, states: int) -> None:
        self.tiers.evict(tokens, states)

    def do_settle(self) -> None:
        self.tiers.settle()

    def do_flush(self) -> None:
        self.tiers.flush()

    def do_prefetch(self, runs: list[Any], number: int | None = None) -> Answer:
        """``number``: whose it is, where it is kept for a request."""
        prefetches = self.tiers.prefetches
        prefetch = self.tiers.prefetch(Key(map(tuple, runs)))
        if prefetch is None:
            return {"loaded": 0}
        tokens = prefetches.answer(prefetch)
        loaded = prefetches.finish(prefetch, tokens) if prefetch.is_reading else 0
        if number is None or prefetch in prefetches.running:
            prefetches.release(prefetch)
        else:
            self.staged[number] = prefetch
        if self.tiers.settings.is_buffer_only:
            self.tiers.settle()  # a write that waits for staging may go on in the engine's loop meanwhile
        return {"loaded": loaded}

    def do_drop(self, number: int) -> None:
        """A request that waited is gone."""
        staged = self.staged.pop(number, None)
        if staged is not None:
            self.tiers.prefetches.release(staged)


class Play:
    """Makes up operations that the twin can do, one at a time: each must be done before the next is asked for."""

    def __init__(self, case: Case, twin: Twin, chance: Random) -> None:
        self.case = case
        self.twin = twin
        self.random = chance
        self.sources = 0
        self.heads = [self._words(self.random.randint(1, case.turn_tokens)) for _ in range(2)]
        self.contexts: list[Key] = [self.heads[0]]
        self.running: dict[int, int] = {}
        """Request to the tokens that it has yet to decode."""
        self.waiting: dict[int, Key] = {}
        """Of ``buffer_only``: requests that L3 was asked for, and their prompts."""
        self.numbers = 0

    def operations(self) -> Iterator[Operation]:
        settles, prefetches = (12, 12) if self.case.slow_copies else (160, 60)
        names = ["match", "admit", "run", "settle", "evict", "prefetch", "retract", "flush"]
        weights = [240, 200, 800, settles, 20, prefetches, 10, 3]
        if self.case.is_buffer_only:
            names.append("wait")
            weights[1] = 60
            weights.append(260)
        while True:
            name = self.random.choices(names, weights)[0]
            yield from getattr(self, f"_{name}")()

    def _words(self, tokens: int) -> Key:
        self.sources += 1
        return Key([(self.sources, 0, tokens)])

    def _prompt(self) -> Key:
        """A context as an agent would send it next."""
        pick = self.random.random()
        context = self.random.choice(self.contexts)
        if pick < 0.15 or len(context) > self.case.context_tokens:
            context = self.random.choice([Key(), *self.heads])
        elif pick < 0.3:
            context = context.cut(0, self.random.randint(1, len(context)))
        elif pick < 0.4:
            return context
        return context + self._words(self.random.randint(1, self.case.turn_tokens))

    def _remember(self, context: Key) -> None:
        self.contexts.append(context)
        if len(self.contexts) > self.case.contexts:
            self.contexts.pop(self.random.randrange(len(self.contexts)))

    def _match(self) -> Iterator[Operation]:
        context = self.random.choice(self.contexts)
        stop = len(context) if self.random.random() < 0.6 else self.random.randint(1, len(context))
        yield ["match", _json(context.cut(0, stop))]

    def _admit(self) -> Iterator[Operation]:
        prompt = self._prompt()
        tiers = self.twin.tiers
        busy = len(self.running) >= self.case.running
        if busy or len(prompt) < 2 or tiers.available_tokens < len(prompt) + 256 or not self._has_slots():
            return
        self.numbers += 1
        number = self.numbers
        self._remember(prompt)
        share = 0.05 if self.case.slow_copies else 0.5
        if self.case.has_storage and not self.case.is_buffer_only and self.random.random() < share:
            yield ["settle"]
            yield ["prefetch", _json(prompt)]
            if tiers.available_tokens < len(prompt) + 256 or not self._has_slots():
                return
        yield from self._start(number, prompt)

    def _start(self, number: int, prompt: Key) -> Iterator[Operation]:
        yield ["admit", number, _json(prompt), self.random.randint(0, 2)]
        if number in self.twin.requests:
            self.running[number] = self.random.randint(1, self.case.turn_tokens)

    def _wait(self) -> Iterator[Operation]:
        """L3 is asked for the next request; one that waits is admitted, or gives up."""
        if len(self.waiting) < WAITING:
            self.numbers += 1
            prompt = self._prompt()
            self._remember(prompt)
            self.waiting[self.numbers] = prompt
            yield ["settle"]
            yield ["prefetch", _json(prompt), self.numbers]
        number = self.random.choice(list(self.waiting))
        prompt = self.waiting[number]
        has_room = self.twin.tiers.available_tokens >= len(prompt) + 256 and self._has_slots()
        if self.random.random() < 0.1:
            del self.waiting[number]
            yield ["drop", number]
        elif len(self.running) < self.case.running and len(prompt) > 1 and has_room and self.random.random() < 0.5:
            del self.waiting[number]
            yield from self._start(number, prompt)

    def _run(self) -> Iterator[Operation]:
        if not self.running:
            return
        number = self.random.choice(list(self.running))
        request, left = self.twin.requests[number], self.running[number]
        if request.left_tokens > 0:
            tokens = min(self.case.chunk_tokens, request.left_tokens)
            if self.twin.tiers.available_tokens < tokens + 256 or not self._has_slots():
                yield from self._make_room(number)
                return
            yield ["extend", number, tokens]
            yield ["checkpoint", number]
        elif left > 0 and self.random.random() < 0.8:
            tokens = min(left, self.random.randint(1, 100))
            if self.twin.tiers.available_tokens < tokens + 256:
                yield from self._make_room(number)
                return
            yield ["decode", number, _json(self._words(tokens))]
            self.running[number] = left - tokens
        else:
            self._remember(request.key)
            del self.running[number]
            decoded = request.computed_tokens - request.prompt_tokens
            stop = self.random.randint(0, decoded) if decoded and self.random.random() < 0.2 else -1
            yield ["finish", number, stop]

    def _make_room(self, number: int) -> Iterator[Operation]:
        """Copies under way hold much; when that is not it, somebody has to go."""
        yield ["settle"]
        if self.twin.tiers.available_tokens < 2 * self.case.chunk_tokens or not self._has_slots():
            yield from self._retract(number)

    def _retract(self, number: int | None = None) -> Iterator[Operation]:
        started = [each for each in self.running if self.twin.requests[each].counted_tokens]
        number = number if number in started else next(iter(started), None)
        if number is not None:
            del self.running[number]
            yield ["retract", number, len(self.running)]

    def _settle(self) -> Iterator[Operation]:
        yield ["settle"]

    def _evict(self) -> Iterator[Operation]:
        if self.case.device_slots and self.random.random() < 0.5:
            yield ["evict", 0, self.random.randint(1, 6)]
        else:
            yield ["evict", self.random.randint(1, self.case.device_tokens), 0]

    def _prefetch(self) -> Iterator[Operation]:
        if self.case.has_storage:
            yield ["settle"]
            yield ["prefetch", _json(self.random.choice(self.contexts))]

    def _flush(self) -> Iterator[Operation]:
        if all(self.twin.requests[each].counted_tokens for each in self.running):
            yield ["settle"]
            for number in list(self.running):
                yield from self._retract(number)
            yield ["settle"]
            for number in list(self.waiting):
                del self.waiting[number]
                yield ["drop", number]
            yield ["flush"]

    def _has_slots(self) -> bool:
        return self.case.device_slots == 0 or self.twin.tiers.available_slots >= 8


def _json(key: Key) -> list[list[int]]:
    return [list(run) for run in key.runs]
