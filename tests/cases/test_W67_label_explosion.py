"""W67 label-explosion: nothing a client can choose becomes a label, a key of a table or a row that stays."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from governor.types import TurnState
from tests.harness import Governed, governed
from tests.scenario import CaseRequest, load_case

VARIANT = load_case("W67").variant("flood")
WORKERS = 8
ODD_MODELS: list[Any] = [{"a": 1}, 7, ["m"], True, "x" * 5000, 'm"}\ngovernor_turns_total{agent="x"} 1', "\u2028", ""]


def numbered(request: CaseRequest, number: int) -> dict[str, Any]:
    text = msgspec.json.encode(request.body).replace(b"${i}", str(number).encode())
    return msgspec.json.decode(text, type=dict[str, Any])


def series(page: str) -> set[str]:
    """Every series of a page that has labels; the page must parse."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}"
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.labels
    }


async def metrics(gov: Governed) -> set[str]:
    async with gov.client(None) as client:
        return series((await client.get("/metrics")).raise_for_status().text)


def resident_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


async def flood(gov: Governed, numbers: range) -> None:
    """Requests that differ in everything a client can choose."""
    assert VARIANT.request is not None
    request = VARIANT.request

    async def worker(share: range) -> None:
        async with gov.client() as client:
            for number in share:
                headers = {"user-agent": f"agent-{number}", "x-agent": f"a-{number}", "x-agent-session": f"s-{number}"}
                answer = await client.post(request.path, json=numbered(request, number), headers=headers)
                assert answer.status_code == 404
                if number % 5 == 0:
                    assert (await client.get(f"/v1/{number}/{number}")).status_code == 404
                    assert (await client.get(f"/v1/models/{number}")).status_code == 404
                if number % 50 == 0:
                    served = {**numbered(request, number), "model": "m"}
                    assert (await client.post(request.path, json=served, headers=headers)).status_code == 200

    await asyncio.gather(*(worker(numbers[start::WORKERS]) for start in range(WORKERS)))


@pytest.mark.timeout(180)
async def test_W67(tmp_path: Path) -> None:
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as gov:
        await flood(gov, range(200))
        before, memory_kb = await metrics(gov), resident_kb()
        await flood(gov, range(200, VARIANT.repeat))
        after = await metrics(gov)
        assert after == before
        assert {agent for each in after for agent in re.findall(r"'agent', '([^']*)'", each)} == {"alice"}
        assert any(each.startswith("governor_agent_turns") for each in after)
        await gov.assert_idle()
        assert resident_kb() - memory_kb < 64 * 1024
        snapshot = await gov.snapshot()
        assert [agent.name for agent in snapshot.agents] == ["alice"]
        assert not snapshot.turns
        assert snapshot.agents[0].turns[TurnState.REFUSED] == VARIANT.repeat


@pytest.mark.parametrize("model", ODD_MODELS, ids=lambda model: repr(model)[:20])
async def test_W67_odd_models_leave_the_page_as_it_was(tmp_path: Path, model: object) -> None:
    async with VARIANT.engine() as engine, governed(engine.url, tmp_path) as gov:
        refused = await gov.chat(model="unknown")
        wrong = await gov.chat(model=7)
        before = await metrics(gov)
        answer: httpx.Response = await gov.chat(model=model)
        assert answer.status_code in {refused.status_code, wrong.status_code}
        assert answer.json()["error"]["param"] == "model"
        assert await metrics(gov) == before
        assert not engine.hits
