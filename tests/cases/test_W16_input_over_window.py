"""W16 input-over-window: a prompt that cannot fit is refused at once, here, in numbers; it is never sent or queued."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from governor.types import TurnState
from tests.cases.play import send
from tests.harness import governed
from tests.scenario import CaseVariant, load_case

CASE = load_case("W16")
WINDOW = 4096
_WORDING = re.compile(r"maximum context length is (\d+) tokens\. However, your messages resulted in (\d+) tokens")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("variant", CASE.variants, ids=lambda variant: variant.v)
async def test_W16_one_local_refusal(variant: CaseVariant, stream: bool, tmp_path: Path) -> None:
    assert variant.request is not None
    async with variant.engine() as engine, governed(engine.url, tmp_path) as governor:
        began = time.monotonic()
        answer = await send(governor, variant.request, stream=stream)
        assert time.monotonic() - began < 1
        assert answer.status_code == 400
        error = answer.json()["error"]
        end = await governor.end()
        if variant.v == "0":
            assert (error["code"], error["param"]) == ("invalid_request", "max_tokens")
        else:
            assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
            numbers = _WORDING.search(error["message"])
            assert numbers is not None
            assert int(numbers[1]) == WINDOW
            assert int(numbers[2]) > 2 * WINDOW
            assert "at least 16 are kept for the answer" in error["message"]
            assert "rate limit" not in error["message"].lower()
            assert end.error_code == "context_length_exceeded"
        assert not engine.hits
        assert end.state is TurnState.REFUSED
        assert end.queued_ms is None
        await governor.assert_idle()
