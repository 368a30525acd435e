"""When copies that nobody waits for are made: L1 to L2, then L2 to L3, each way one after another.

The tiers start them by the way, wherever KV or a state is given to the tree; here each gets its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Reversible
from math import inf

from serve.twin.cost import Cost
from serve.twin.tiers import Tiers


class Copies:
    """Copies under way, in the order in which they were started."""

    def __init__(self, tiers: Tiers, cost: Cost) -> None:
        self.tiers = tiers
        self.cost = cost
        self._to_host: deque[tuple[float, int]] = deque()
        self._to_storage: deque[tuple[float, int]] = deque()
        self._newest_to_storage = 0

    @property
    def next_at(self) -> float:
        """When the next one is made; infinity: none is under way."""
        host = self._to_host[0][0] if self._to_host else inf
        storage = self._to_storage[0][0] if self._to_storage else inf
        return min(host, storage)

    def note(self, now: float) -> None:
        """Give a time to all that was started since the last call."""
        host = self.tiers.host
        host.launch()
        started = _since(host.writes, self._newest_to_host) if self._to_host else list(host.writes)
        for number in started:
            start = max(now, self._to_host[-1][0]) if self._to_host else now
            self._to_host.append((start + self.cost.host_write_token_s * host.writes[number].tokens, number))
        for number in _since(host.storage_writes, self._newest_to_storage):
            start = max(now, self._to_storage[-1][0]) if self._to_storage else now
            tokens = host.storage_writes[number].tokens
            self._to_storage.append((start + self.cost.storage_write_token_s * tokens, number))
            self._newest_to_storage = number

    @property
    def _newest_to_host(self) -> int:
        return self._to_host[-1][1]

    def advance(self) -> None:
        """What was to be made at ``next_at`` is made."""
        now = self.next_at
        if self._to_host and self._to_host[0][0] == now:
            number = self._to_host.popleft()[1]
            self.tiers.host.finish_write(number)
            self.note(now)
        else:
            self.tiers.host.finish_storage_write(self._to_storage.popleft()[1])
            if self.tiers.host.launch():
                self.note(now)


def _since(started: Reversible[int], newest: int) -> list[int]:
    """What was started after ``newest``, in order; all of it where ``newest`` is made already."""
    numbers: list[int] = []
    for number in reversed(started):
        if number == newest:
            break
        numbers.append(number)
    numbers.reverse()
    return numbers
