"""Property tests on sockets run on the loop that ``governor up`` runs on."""

from __future__ import annotations

from tests.gateway.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
