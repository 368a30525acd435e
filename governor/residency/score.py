"""How well the index knows the engine: what it said of each prompt just before the engine was asked, against what the
answer says was served. The published figure is :class:`Figures`.

The prompt's tokens are told with its answer, so the question is put then, to the pages as they were at the grant:
nothing that was told later has a part in it, and nothing of the answer but its prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from governor.residency.blocks import Blocks, Mark
from governor.residency.predict import Prediction, Rules, predict
from governor.types import Usage

_RECENT = 200


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Over some turns."""

    turns: int = 0
    """Compared."""
    within_page: int = 0
    """Of these, turns whose cached tokens were predicted to within a page."""
    equal: int = 0
    """To the token."""
    tier_turns: int = 0
    """Turns whose answers told the tiers."""
    tier_right: int = 0
    """Of these, turns with each tier within a page."""
    unknown: int = 0
    """Turns nothing was predicted of, or whose answers did not tell."""

    @property
    def within_page_share(self) -> float | None:
        return self.within_page / self.turns if self.turns else None

    @property
    def tier_share(self) -> float | None:
        return self.tier_right / self.tier_turns if self.tier_turns else None


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that was served otherwise than predicted, for a person."""

    name: str
    prompt_tokens: int
    predicted: tuple[int, int, int]
    """L1, L2, L3."""
    served: tuple[int | None, int | None, int | None]
    served_tokens: int


class Score:
    """Running figures: since the start, and of the last turns."""

    def __init__(self, recent: int = _RECENT) -> None:
        self._all = _Sums()
        self._recent: deque[_Outcome] = deque(maxlen=recent)
        self.misses: deque[Miss] = deque(maxlen=20)

    def note(self, name: str, predicted: Prediction | None, served: Usage, page_tokens: int | None) -> None:
        """One turn. ``name``: for :attr:`misses`."""
        outcome = _outcome(predicted, served, page_tokens)
        self._all.add(outcome)
        self._recent.append(outcome)
        missed = outcome.compared and not (outcome.within_page and outcome.tier_right is not False)
        if missed and predicted is not None and served.cached_tokens is not None:
            self.misses.append(
                Miss(
                    name=name,
                    prompt_tokens=predicted.context_tokens,
                    predicted=(predicted.l1_tokens or 0, predicted.l2_tokens or 0, predicted.l3_tokens or 0),
                    served=(served.cached_device_tokens, served.cached_host_tokens, served.cached_storage_tokens),
                    served_tokens=served.cached_tokens,
                )
            )

    @property
    def since_start(self) -> Figures:
        return self._all.figures

    @property
    def recent(self) -> Figures:
        sums = _Sums()
        for outcome in self._recent:
            sums.add(outcome)
        return sums.figures


def predicted_at(
    mark: Mark, blocks: Blocks, pages: Sequence[int], prompt_tokens: int, rules: Rules
) -> Prediction | None:
    """What the index knew of a prompt at ``mark``. ``pages``: at least the prompt's, whole ones. ``None``: that is too
    long ago."""
    page_tokens = mark.knowledge.page_tokens or blocks.knowledge.page_tokens or prompt_tokens
    # The last token has to be computed, so what is looked up ends before it.
    places = blocks.places_at(mark, pages[: max(0, prompt_tokens - 1) // page_tokens])
    return None if places is None else predict(places, prompt_tokens, mark.knowledge, rules)


class _Outcome(msgspec.Struct, frozen=True):
    compared: bool = False
    within_page: bool = False
    equal: bool = False
    tier_right: bool | None = None


class _Sums:
    def __init__(self) -> None:
        self.figures = Figures()

    def add(self, outcome: _Outcome) -> None:
        before = self.figures
        self.figures = Figures(
            turns=before.turns + outcome.compared,
            within_page=before.within_page + outcome.within_page,
            equal=before.equal + outcome.equal,
            tier_turns=before.tier_turns + (outcome.tier_right is not None),
            tier_right=before.tier_right + (outcome.tier_right is True),
            unknown=before.unknown + (not outcome.compared),
        )


def _outcome(predicted: Prediction | None, served: Usage, page_tokens: int | None) -> _Outcome:
    if predicted is None or not predicted.is_whole or served.cached_tokens is None:
        return _Outcome()
    page = page_tokens or 0
    off = abs((predicted.usable_tokens or 0) - served.cached_tokens)
    tiers = (
        (predicted.l1_tokens, served.cached_device_tokens),
        (predicted.l2_tokens, served.cached_host_tokens),
        (predicted.l3_tokens, served.cached_storage_tokens),
    )
    tier_right = None
    if served.cached_device_tokens is not None:
        tier_right = all(abs((said or 0) - (told or 0)) <= page for said, told in tiers)
    return _Outcome(compared=True, within_page=off <= page, equal=off == 0, tier_right=tier_right)
