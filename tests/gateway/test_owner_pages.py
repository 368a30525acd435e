"""The pages of a policy in force and of the engine's log, over HTTP, and what the state says of an agent's window."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec

from governor.gateway.owner_pages import LOG_LINES, last_lines
from governor.pages import EngineLogPage, PolicyPage
from governor.runtime import RuntimeConfig
from serve.scripted import ScriptedEngine
from tests.harness import ADMIN_TOKEN, Governed, governed

POLICY = """\
[output]
final = 1234
[context]
ceiling_tokens = 10000
[compression]
mode = "enforce"
trigger = 0.5
target = 0.3
"""


async def get(governor: Governed, path: str, token: str = ADMIN_TOKEN) -> httpx.Response:
    async with governor.client(None, headers={"authorization": f"Bearer {token}"}) as client:
        return await client.get(path)


async def test_a_policy_in_force_says_where_each_value_comes_from(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, governed(engine.url, tmp_path, policies={"alice": POLICY}) as governor:
        answer = await get(governor, "/governor/agents/alice/policy")
        page = msgspec.json.decode(answer.content, type=PolicyPage)
        values = {value.key: value for value in page.values}
        assert (page.agent, page.problem) == ("alice", None)
        assert (values["output.final"].value, values["output.final"].own) == ("1234", True)
        assert values["output.final"].source.endswith("alice.toml:2")
        assert not values["output.title"].own
        (alice,) = (agent for agent in (await governor.snapshot()).agents if agent.name == "alice")
        assert (alice.window_tokens, alice.trigger_tokens) == (10_000, 5_000)


async def test_the_pages_are_the_owners(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, governed(engine.url, tmp_path) as governor:
        for path in ("/governor/agents/alice/policy", "/governor/engine/log"):
            assert (await get(governor, path, token=governor.keys["alice"])).status_code in {401, 403}
        assert (await get(governor, "/governor/agents/nobody/policy")).status_code == 404


async def test_the_log_of_an_engine_of_ours_and_of_another(tmp_path: Path) -> None:
    for supervised, lines in ((True, ("one", "two")), (False, ())):
        home = tmp_path / str(supervised)
        (home / "logs").mkdir(parents=True)
        (home / "logs" / "engine.log").write_text("one\ntwo\n")
        config = RuntimeConfig(supervised=supervised)
        async with ScriptedEngine() as engine, governed(engine.url, home, config=config) as governor:
            page = msgspec.json.decode((await get(governor, "/governor/engine/log")).content, type=EngineLogPage)
            assert page.lines == lines
            assert bool(page.why_none) != supervised


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    assert last_lines(path) == EngineLogPage(why_none="the engine has written nothing yet")
    path.write_bytes(b"\xff" * 100_000 + b"\n" + b"".join(b"line %d\n" % number for number in range(300)))
    page = last_lines(path)
    assert len(page.lines) == LOG_LINES
    assert page.lines[-1] == "line 299"
    assert "cannot be read" in last_lines(tmp_path).why_none
