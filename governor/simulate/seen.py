"""What has ever been computed, as an unbounded prefix cache: tells the new tokens of a prompt from those that had to be
computed again. Equal token sequences have equal runs, so a walk costs the prompt's runs."""

from __future__ import annotations

from serve.twin.tiers_key import Key, Run

_Place = int
_ROOT: _Place = 0


class Seen:
    """Sequences that have been computed from their beginning on."""

    def __init__(self) -> None:
        self._longest: dict[tuple[_Place, int, int], int] = {}
        """Of the run that begins there, how far it has been seen."""
        self._behind: dict[tuple[_Place, Run], _Place] = {}
        """Where one stands behind a run that something else has followed."""

    def prefix_tokens(self, key: Key) -> int:
        """How many of its first tokens have been computed in this very order."""
        place: _Place | None = _ROOT
        tokens = 0
        for run in key.runs:
            source, start, stop = run
            if place is None:
                break
            longest = self._longest.get((place, source, start))
            if longest is None:
                break
            tokens += min(stop, longest) - start
            if longest < stop:
                break
            place = self._behind.get((place, run))
        return tokens

    def add(self, key: Key) -> None:
        """All of it has been computed."""
        place = _ROOT
        for run in key.runs:
            source, start, stop = run
            at = place, source, start
            self._longest[at] = max(stop, self._longest.get(at, 0))
            place = self._behind.setdefault((place, run), len(self._behind) + 1)
