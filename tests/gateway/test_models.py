"""What an agent is told of models: those its policy allows, and windows it may be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve.scripted import Knobs, ScriptedEngine
from tests.harness import governed


async def test_an_agent_sees_and_uses_only_its_models(tmp_path: Path) -> None:
    async with (
        ScriptedEngine(knobs=Knobs(model="org/large")) as engine,
        governed(
            engine.url, tmp_path, agents=("alice", "bob"), policies={"bob": 'models = ["org/other"]\n'}
        ) as running,
    ):
        async with running.client("alice") as alice, running.client("bob") as bob:
            assert [card["id"] for card in (await alice.get("/v1/models")).json()["data"]] == ["org/large"]
            assert (await alice.get("/v1/models/org/large")).status_code == 200
            assert (await bob.get("/v1/models")).json()["data"] == []
            assert (await bob.get("/v1/models/org/large")).status_code == 404
        refused = await running.chat("bob", model="org/large")
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "model_not_found"
        assert engine.hits == []


@pytest.mark.parametrize(("window", "advertised"), [(40_960, None), (64_000, 64_000), (131_072, 131_072)])
async def test_a_small_window_is_enforced_and_not_advertised(
    tmp_path: Path, window: int, advertised: int | None
) -> None:
    """Hermes 0.19.0 refuses to start under 64,000."""
    async with (
        ScriptedEngine(knobs=Knobs(model="m", window_tokens=window)) as engine,
        governed(engine.url, tmp_path) as running,
        running.client() as client,
    ):
        card = (await client.get("/v1/models/m")).json()
        assert card.get("max_model_len") == advertised
        assert card["governor"]["window_tokens"] == window
        answer = await running.chat(max_tokens=65_536 * 4)
        assert answer.status_code == 200


async def test_a_client_may_be_told_a_larger_window_while_its_prompts_are_made_shorter(tmp_path: Path) -> None:
    wide = "[compression]\nclient_window = 400_000\nmode = "
    async with (
        ScriptedEngine(knobs=Knobs(model="m", window_tokens=131_072)) as engine,
        governed(
            engine.url,
            tmp_path,
            agents=("alice", "bob"),
            policies={"alice": f'{wide}"enforce"\n', "bob": f'{wide}"observe"\n'},
        ) as running,
    ):
        for agent, told in (("alice", 400_000), ("bob", 131_072)):
            async with running.client(agent) as client:
                card = (await client.get("/v1/models/m")).json()
            assert (card["max_model_len"], card["governor"]["window_tokens"]) == (told, 131_072)


async def test_models_are_waited_for_while_the_engine_comes(tmp_path: Path) -> None:
    async with ScriptedEngine(knobs=Knobs(model="m")) as engine:
        port = int(engine.url.rpartition(":")[2])
        await engine.aclose()
        async with governed(engine.url, tmp_path, wait_ready=False) as running, running.client() as client:
            async with ScriptedEngine(knobs=Knobs(model="m"), port=port):
                listing = await client.get("/v1/models")
            assert [card["id"] for card in listing.json()["data"]] == ["m"]
