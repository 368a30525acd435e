"""When the reasoning of an answer has used up its budget. Pure.

What is shown tells only roughly how many tokens it took: between one and eight characters each. So whoever follows an
answer is told when to have the text counted, and the moments come closer together as the budget runs out. Each text is
counted once, and the last count comes within a thirty-second of the budget before its end.
"""

from __future__ import annotations

_FIRST_CHARS_PER_TOKEN = 1.0
"""Hardly any token shows less."""
_COUNTS_TO_END = 32
_LEAST_STEP_TOKENS = 8


class ThinkingBudget:
    """Of one answer, which may be written in several pieces."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        """The bound."""
        self._kept = 0
        self._counted = 0
        self._counted_chars = 0
        self._uncounted: list[str] = []
        self._uncounted_chars = 0
        self._count_at = tokens * _FIRST_CHARS_PER_TOKEN
        self._chars_per_token = _FIRST_CHARS_PER_TOKEN

    @property
    def thought_tokens(self) -> int:
        """As far as they are known."""
        return self._kept + self._counted

    @property
    def is_used_up(self) -> bool:
        return self.thought_tokens >= self.tokens

    def on_text(self, text: str) -> bool:
        """Reasoning was shown; true if it is time to count."""
        self._uncounted.append(text)
        self._uncounted_chars += len(text)
        return self._uncounted_chars >= self._count_at

    def take_uncounted(self) -> str:
        """The text that is to be counted now; tell :meth:`on_counted` its tokens."""
        text = "".join(self._uncounted)
        self._uncounted, self._uncounted_chars = [], 0
        return text

    def on_counted(self, text: str, tokens: int) -> None:
        """So many tokens were counted in what was taken. Counted in parts, a text may seem a token a part longer."""
        self._counted += tokens
        self._counted_chars += len(text)
        if self._counted:
            self._chars_per_token = self._counted_chars / self._counted
        self._plan()

    def on_kept(self, tokens: int) -> None:
        """A piece has ended, still reasoning; its tokens are known exactly. What follows is the next piece's."""
        self._kept += tokens
        self._counted = self._counted_chars = 0
        self.take_uncounted()
        self._plan()

    def _plan(self) -> None:
        left = self.tokens - self.thought_tokens
        least = max(_LEAST_STEP_TOKENS, self.tokens // _COUNTS_TO_END)
        step = left if left <= least else max(least, left / 2)
        self._count_at = max(1.0, step * self._chars_per_token)
