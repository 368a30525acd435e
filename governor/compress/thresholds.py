"""At which reported size a client compacts, learnt from what it did after each answer. No I/O, no clock."""

from __future__ import annotations

from collections import deque

_REMEMBERED = 8
"""Sizes that were followed by a compaction. One that a person asked for by hand is forgotten with time."""


class Threshold:
    """Of one client. Sizes are ``usage.prompt_tokens`` as the client was told them.

    Hermes compares exactly that with its threshold after each step; OpenClaw adds its own estimate of what came since,
    and looks only before a user's turn, so that a large size which was let pass says nothing about it.
    """

    def __init__(self) -> None:
        self._followed: deque[int] = deque(maxlen=_REMEMBERED)
        self._let_pass: int | None = None

    @property
    def compacts_at(self) -> int | None:
        """The smallest size that a compaction followed; ``None``: not seen yet."""
        return min(self._followed, default=None)

    @property
    def let_pass(self) -> int | None:
        """The largest size under :attr:`compacts_at` that no compaction followed."""
        return self._let_pass

    @property
    def safe_tokens(self) -> int | None:
        """A size after which the client will not compact, by all that is known. ``None``: nothing is known."""
        compacts_at = self.compacts_at
        if compacts_at is None:
            return None
        return max(1, compacts_at // 2) if self._let_pass is None else self._let_pass

    def on_followed(self, told_tokens: int) -> None:
        """The client compacted after it was told this size."""
        self._followed.append(told_tokens)
        if self._let_pass is not None and self._let_pass >= told_tokens:
            self._let_pass = None

    def on_let_pass(self, told_tokens: int) -> None:
        """The client went on after it was told this size."""
        if self.compacts_at is None or told_tokens < self.compacts_at:
            self._let_pass = max(self._let_pass or 0, told_tokens)

    def forget(self) -> None:
        """What was learnt was not what the client goes by."""
        self._followed.clear()
        self._let_pass = None
