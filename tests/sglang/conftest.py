"""One real server for all tests of a session: a start costs 20 CPU seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sglang.engine import installed_engine
from tests.sglang.server import SglangServer

_LIMIT_S = 1200
"""The first test of a session also installs the engine and starts the server."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("sglang") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LIMIT_S))


@pytest.fixture(scope="session")
def sglang_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    """Shared: leave it as you found it. The pool is small, so earlier prompts may have been pushed to L2."""
    with SglangServer(tmp_path_factory.mktemp("sglang"), engine=installed_engine()) as server:
        yield server
