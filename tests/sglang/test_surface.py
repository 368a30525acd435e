"""The form of the real SGLang's answers."""

from __future__ import annotations

import pytest

from tests.sglang.server import SglangServer
from tests.sglang_adapter import Served
from tests.sglang_surface import *  # noqa: F403 - tests and fixtures

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


@pytest.fixture
def served(sglang_server: SglangServer) -> Served:
    options = sglang_server.options
    return Served(sglang_server.url, options.context_length, options.max_total_tokens)
