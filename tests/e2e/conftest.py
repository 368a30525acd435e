"""Fixtures with real clients: installed once a machine, told on the terminal while that takes its minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.clients.hermes import ensure_hermes
from tests.e2e.clients.install import Say
from tests.e2e.clients.openclaw import OpenClawProgram, ensure_openclaw


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Say:
    """Prints past pytest's capture, so that a first installation does not look like a hang."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def line(text: str) -> None:
        if capture is None:
            print(text, flush=True)
            return
        with capture.global_and_fixture_disabled():
            print(text, flush=True)

    return line


@pytest.fixture(scope="session")
def hermes_program(say: Say) -> Path:
    return ensure_hermes(say)


@pytest.fixture(scope="session")
def openclaw_program(say: Say) -> OpenClawProgram:
    return ensure_openclaw(say)
