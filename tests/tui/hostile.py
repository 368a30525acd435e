"""A picture in which every text is hostile, as the dashboard would have it after hearing such texts."""

from __future__ import annotations

from tests.tui import pictures
from tests.tui.pictures import spoiled
from tui.client import Disconnected, Happened, Loaded
from tui.picture import Fetched, NotFetched, Picture, updated_by_all


def hostile_picture(text: str, *, missing: bool = False) -> Picture:
    """``text`` in each place where any text may be. ``missing``: of the pages, only why they could not be had."""
    scene = spoiled(pictures.scenes()["normal"], text)
    told = [Happened(event) for event in pictures.hostile_events(text)]
    pages = [Fetched(scene.context), Fetched(scene.policy), Fetched(scene.engine_log)]
    not_had = [NotFetched(what, text) for what in ("context", "policy", "engine log")]
    heard = [Loaded(pictures.hostile(text)), *told, *(not_had if missing else pages), Disconnected(text, 1.0)]
    return updated_by_all(Picture(), heard)
