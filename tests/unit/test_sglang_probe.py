"""The probe of SGLang against its stand-in: a token first, then figures; an answer alone is not life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serve.launcher import free_port
from serve.readiness import ProbeResult
from serve.sglang_probe import SglangProbe
from tests.sglang_program import Faults, StandIn


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with StandIn(tmp_path, Faults(), model="m", window_tokens=8192, port=0) as engine:
        yield engine


@pytest.fixture
async def probe(engine: StandIn) -> AsyncIterator[SglangProbe]:
    probe = SglangProbe(engine.url, timeout_s=0.3)
    yield probe
    await probe.aclose()


def asked(engine: StandIn) -> list[str]:
    return [hit.path for hit in engine.probes]


async def test_one_token_proves_it_and_nothing_is_generated_after_that(engine: StandIn, probe: SglangProbe) -> None:
    assert await probe.check() == ProbeResult(ready=True)
    assert asked(engine) == ["/v1/models", "/generate"]
    later = await probe.check()
    assert later.ready
    assert later.fingerprint is not None
    assert asked(engine)[2:] == ["/v1/loads"]
    probe.on_spawned()
    await probe.check()
    assert asked(engine)[3:] == ["/v1/models", "/generate"]


async def test_a_scheduler_that_publishes_nothing_is_not_ready(
    engine: StandIn, probe: SglangProbe, tmp_path: Path
) -> None:
    await probe.check()
    (tmp_path / "stuck").touch()
    first, second = await probe.check(), await probe.check()
    assert not first.ready
    assert first.detail == "its scheduler has published nothing for 3600 s"
    assert first.fingerprint == second.fingerprint is not None


async def test_a_silent_engine_is_busy(engine: StandIn, probe: SglangProbe, tmp_path: Path) -> None:
    await probe.check()
    (tmp_path / "hang").touch()
    assert await probe.check() == ProbeResult(ready=False, detail="no answer in time: busy")


async def test_an_engine_that_is_not_there_is_not_ready() -> None:
    probe = SglangProbe(f"http://127.0.0.1:{free_port()}")
    assert await probe.check() == ProbeResult(ready=False, detail="not listening yet")
    await probe.aclose()
