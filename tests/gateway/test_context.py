"""The context page of a running governor, and ``governor context`` beside it and without it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from governor import instance
from governor.cli import context, status
from governor.context import COMPRESSED, ContextKind, ContextPage, KindShare
from governor.settings import Home, Secret
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import ADMIN_TOKEN, Governed, governed
from tests.replay.recorded import RecordedRequest, recorded_requests
from tests.tool_loop import ToolLoop
from tests.twin_server import small_machine, twin_server

ADMIN = {"authorization": f"Bearer {ADMIN_TOKEN}"}
AGENTS = ("alice", "bob")
MODEL = "qwen3-stub"
"""As the recorded requests name it."""
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "description": "Looks at a thing. " * 20}}]

app = typer.Typer(rich_markup_mode=None)
app.command()(context.context)
app.command()(status.status)


@asynccontextmanager
async def governor(root: Path, knobs: Knobs | None = None, **options: Any) -> AsyncIterator[Governed]:
    async with (
        ScriptedEngine(knobs=knobs or Knobs(model=MODEL)) as engine,
        governed(engine.url, root, agents=AGENTS, **options) as gov,
    ):
        yield gov


async def ask(gov: Governed, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async with gov.client(None, headers=ADMIN if headers is None else headers) as client:
        return await client.get(path)


async def page(gov: Governed, agent: str = "alice", query: str = "") -> ContextPage:
    await gov.rows()  # all is written
    answer = await ask(gov, f"/governor/agents/{agent}/context{query}")
    return msgspec.json.decode(answer.raise_for_status().content, type=ContextPage)


async def chat(gov: Governed, **body: Any) -> httpx.Response:
    return await gov.chat(**{"model": MODEL, **body})


async def replay(gov: Governed, agent: str, requests: list[RecordedRequest]) -> None:
    async with gov.client(agent) as client:
        for request in requests:
            headers = {**dict(request.headers), "content-type": "application/json"}
            answer = await client.post(request.endpoint.value, content=request.body, headers=headers)
            assert answer.status_code == 200, answer.text


def of(file: str) -> list[RecordedRequest]:
    return [request for request in recorded_requests() if request.file == file]


def share(shown: ContextPage, kind: ContextKind) -> KindShare:
    assert shown.report is not None
    return next(each for each in shown.report.kinds if each.kind is kind)


@contextmanager
def noted(gov: Governed) -> Iterator[None]:
    """Commands find the governor."""
    with instance.only_instance(gov.home):
        instance.write_note(gov.home, gov.url, time.time(), Secret(ADMIN_TOKEN))
        yield


def run(home: Home, *arguments: str) -> Result:
    environment = {"GOVERNOR_HOME": str(home.root), "COLUMNS": "100"}
    return CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)


async def command(home: Home, *arguments: str) -> Result:
    return await asyncio.to_thread(run, home, *arguments)


def talk(*texts: str) -> list[dict[str, str]]:
    """A system prompt, then the user and the assistant in turn."""
    roles = ["system", *("user" if number % 2 == 0 else "assistant" for number in range(len(texts) - 1))]
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


class TestPage:
    async def test_a_real_clients_prompt_is_taken_apart(self, tmp_path: Path) -> None:
        async with governor(tmp_path) as gov:
            await replay(gov, "alice", of("openclaw-chat")[:2])
            shown = await page(gov)
            report = shown.report
            assert report is not None
            assert report.source == "reported"
            assert report.tokens == sum(each.tokens for each in report.kinds)
            assert report.window_tokens == 131_072
            assert share(shown, ContextKind.SKILLS).items > 5
            assert share(shown, ContextKind.TOOLS).items == report.tool_schemas
            assert share(shown, ContextKind.CARRIERS).items == 1
            assert shown.growth is not None
            assert [turn.prompt_tokens for turn in shown.growth.turns][-1] == report.tokens
            assert [cause.cause for cause in shown.growth.causes] == ["carrier_moved"]
            assert [note.session for note in shown.sessions] == [shown.session]

    async def test_after_a_clients_compaction_the_main_line_is_shown(self, tmp_path: Path) -> None:
        """The recording ends with a title and with a review that goes on from the main line."""
        async with governor(tmp_path) as gov:
            compacted = of("hermes-compaction")
            await replay(gov, "alice", compacted)
            shown = await page(gov)
            assert shown.report is not None
            assert shown.report.messages == len(json.loads(compacted[2].body)["messages"])
            assert share(shown, ContextKind.SUMMARIES).items == 1
            assert shown.growth is not None
            [cause] = shown.growth.causes
            assert (cause.cause, cause.count) == ("compacted", 1)
            assert cause.lost_tokens > 5_000
            assert shown.growth.side_turns >= 1

    async def test_another_session_may_be_asked_for(self, tmp_path: Path) -> None:
        async with governor(tmp_path) as gov:
            await chat(gov, messages=talk("One.", "first " * 50))
            await chat(gov, messages=talk("Two.", "second"))
            newest = await page(gov)
            assert newest.report is not None
            assert [item.begins for item in newest.report.largest if item.role == "user"] == ["second"]
            other = newest.sessions[1].session
            shown = await page(gov, query=f"?session={other}&top=1")
            assert shown.session == other
            assert shown.report is not None
            assert len(shown.report.largest) == 1
            assert shown.report.largest[0].begins.startswith("first first")

    async def test_volatile_bytes_are_named_and_priced(self, tmp_path: Path) -> None:
        async with governor(tmp_path) as gov:
            for minute in range(3):
                await chat(
                    gov,
                    messages=talk(f"Now it is 11:4{minute}. Be brief.", "word " * 3000, "Well.", "Go on."),
                    tools=TOOLS,
                )
            shown = await page(gov)
            assert shown.growth is not None
            [cause] = shown.growth.causes
            assert (cause.cause, cause.count, cause.unknown) == ("volatile", 2, 0)
            assert cause.lost_tokens > 5_000
            assert cause.last_place.startswith("message 0, byte ")

    async def test_what_the_engine_sees_of_a_compressed_prompt_stands_beside_it(self, tmp_path: Path) -> None:
        machine = small_machine(context_tokens=16_384, tiers={"device_tokens": 65_536, "host_tokens": 65_536})
        policies = {"alice": '[compression]\nmode = "enforce"\nstages = ["trim", "stub", "drop"]\n'}
        async with (
            twin_server(machine) as twin,
            governed(twin.url, tmp_path, engine_kind="sglang", policies=policies) as gov,
        ):
            loop = ToolLoop(gov, "alice")
            while not any(edit.startswith("compressed") for end in await gov.ends() for edit in end.edits):
                before = (await page(gov)).report
                await loop.step()
            await loop.step()
            last = (await gov.ends())[-1]
            shown = await page(gov)
        assert before is not None
        assert before.engine_tokens is None
        report, growth = shown.report, shown.growth
        assert report is not None
        assert growth is not None
        assert report.engine_tokens is not None
        assert report.engine_tokens == last.usage.prompt_tokens
        assert report.client_tokens > report.engine_tokens + 3_000
        assert report.client_tokens > before.client_tokens
        assert [note.session for note in shown.sessions] == [shown.session]
        assert COMPRESSED in [cause.cause for cause in growth.causes]

    async def test_what_is_not_held_is_not_made_up(self, tmp_path: Path) -> None:
        async with governor(tmp_path) as gov:
            await chat(gov, messages=talk("S", "u"))
        async with governor(tmp_path / "again") as gov:
            shown = await page(gov, "bob")
            assert (shown.session, shown.report) == (None, None)
            assert "nothing since the governor started" in shown.why_no_report
            assert shown.growth is not None
            assert shown.growth.turns == ()

    async def test_after_a_restart_the_turn_log_still_tells(self, tmp_path: Path) -> None:
        async with ScriptedEngine(knobs=Knobs(model=MODEL)) as engine:
            async with governed(engine.url, tmp_path) as gov:
                await chat(gov, messages=talk("S", "u " * 500))
                before = await page(gov)
            async with governed(engine.url, tmp_path, agents=("bob",)) as gov:
                shown = await page(gov)
                assert shown.report is None
                assert shown.session == before.session
                assert shown.growth == before.growth

    async def test_an_unknown_window_is_no_window(self, tmp_path: Path) -> None:
        async with governor(tmp_path, Knobs(model=MODEL, advertise_window=False)) as gov:
            await chat(gov, messages=talk("S", "u"))
            shown = await page(gov)
            assert shown.report is not None
            assert shown.report.window_tokens is None
            assert shown.report.stages is None

    @pytest.mark.parametrize(
        ("path", "status_code", "words"),
        [
            ("/governor/agents/nobody/context", 404, "There are alice, bob."),
            ("/governor/agents/%1b%5b31m%00/context", 404, "'\\x1b[31m\\x00'. There are alice, bob."),
            ("/governor/agents/alice/context?session=%0anope", 404, "has no session '\\nnope'"),
            ("/governor/agents/alice/context?top=0", 400, "between 1 and 100"),
            ("/governor/agents/alice/context?top=%d9%a3", 400, "between 1 and 100"),
            ("/governor/agents/a/b/context", 404, "nothing at this path"),
        ],
    )
    async def test_what_is_not_there_is_refused_with_what_is(
        self, tmp_path: Path, path: str, status_code: int, words: str
    ) -> None:
        async with governor(tmp_path) as gov:
            answer = await ask(gov, path)
            assert answer.status_code == status_code
            assert words in answer.json()["error"]["message"]

    async def test_only_the_owner_may_look(self, tmp_path: Path) -> None:
        async with governor(tmp_path) as gov:
            await chat(gov)
            path = "/governor/agents/alice/context"
            assert (await ask(gov, path, {})).status_code == 401
            assert (await ask(gov, path, {"authorization": f"Bearer {gov.keys['alice']}"})).status_code == 403

    async def test_pages_do_not_hold_up_turns(self, tmp_path: Path) -> None:
        async with governor(tmp_path) as gov:
            await chat(gov, messages=talk("S", "word " * 60_000))
            path = "/governor/agents/alice/context"
            pages = [asyncio.create_task(ask(gov, path)) for _ in range(4)]
            answer = await chat(gov, agent="bob")
            assert answer.status_code == 200
            assert [(await each).status_code for each in pages] == [200] * 4


class TestCommand:
    async def test_a_person_sees_one_screen_and_a_script_gets_the_page(self, tmp_path: Path) -> None:
        async with governor(tmp_path) as gov:
            await replay(gov, "alice", of("hermes-chat")[:2])
            await gov.rows()
            with noted(gov):
                result = await command(gov.home, "context", "alice", "--top", "2")
                assert result.exit_code == 0, result.output
                assert "T tools" in result.stdout
                assert "largest messages" in result.stdout
                assert result.stdout.count("  #") == 2
                assert max(map(len, result.stdout.splitlines())) <= 120
                told = await command(gov.home, "context", "alice", "--json")
                assert msgspec.json.decode(told.stdout, type=ContextPage).agent == "alice"

    async def test_a_refusal_is_told_in_the_governors_words(self, tmp_path: Path) -> None:
        async with governor(tmp_path) as gov:
            with noted(gov):
                result = await command(gov.home, "context", "no/bo[b]dy")
                assert result.exit_code == 2
                assert "There is nothing at this path" in result.stderr
                result = await command(gov.home, "context", "no[bold]body")
                assert result.exit_code == 2
                assert "There is no agent 'no[bold]body'. There are alice, bob." in " ".join(result.stderr.split())

    async def test_without_a_governor_the_turn_log_tells_what_it_can(self, tmp_path: Path) -> None:
        async with governor(tmp_path) as gov:
            for minute in range(3):
                await chat(gov, messages=talk(f"Now it is 11:4{minute}. Be brief.", "word " * 3000, "Well.", "Go on."))
            online = await page(gov)
        result = await command(gov.home, "context", "alice")
        assert result.exit_code == 0, result.output
        assert "only a running governor holds prompts" in " ".join(result.stdout.split())
        assert "volatile bytes in the system prompt" in result.stdout
        assert "('governor up' starts one)" in " ".join(result.stderr.split())
        told = await command(gov.home, "context", "alice", "--json")
        offline = msgspec.json.decode(told.stdout, type=ContextPage)
        assert (offline.session, offline.report, offline.growth) == (online.session, None, online.growth)

    async def test_every_error_has_a_cure(self, tmp_path: Path) -> None:
        nothing = await command(Home(tmp_path / "empty"), "context", "alice")
        assert nothing.exit_code == 3
        assert "'governor up'" in nothing.stderr
        async with governor(tmp_path) as gov:
            await chat(gov)
            await gov.rows()
        unknown = await command(gov.home, "context", "\x1b[31mmallory")
        assert unknown.exit_code == 2
        assert "no turn of '\\x1b[31mmallory'; it has turns of alice" in " ".join(unknown.stderr.split())
        session = await command(gov.home, "context", "alice", "--session", "nope")
        assert session.exit_code == 2
        assert "the newest are " in " ".join(session.stderr.split())
