"""The form of the twin's answers is SGLang's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.sglang_adapter import Served
from tests.sglang_surface import *  # noqa: F403 - tests and fixtures
from tests.twin_server import small_machine, twin_server


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    machine = small_machine()
    async with twin_server(machine) as twin:
        yield Served(twin.url, machine.engine.context_tokens, machine.engine.tiers.device_tokens)
