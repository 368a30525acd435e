"""What the owner does through the admin API: authorised, done once, told to all who follow, kept in the log."""

from __future__ import annotations

import asyncio
import logging
import tomllib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from governor.acts import ACTS, CLIENT_HEADER, Acted
from governor.events import AnyEvent, OwnerActed, PolicyChanged, TurnDecided
from governor.types import AgentName, TurnState, Verdict
from governor.wire.sse import SseSplitter
from serve.scripted import Knobs, ScriptedEngine
from tests.harness import ADMIN_TOKEN, Governed, governed
from tests.twin_server import Running, small_machine, twin_server

KEPT_ALIVE = "[stream]\nkeepalive_after_s = 0.05\nkeepalive_every_s = 0.05\n"
SLOW = Knobs(decode_tokens_per_s=60)
COMMENTED = "# caps of alice\noutput.final = 4096 # short answers\n"
FIELDS: dict[str, dict[str, Any]] = {
    "pause": {"agent": "alice"},
    "resume": {"agent": "alice"},
    "cancel": {"turn": "t-0"},
    "slice": {"turn": "t-0"},
    "compact": {"agent": "alice"},
    "set": {"agent": "alice", "key": "output.final", "value": 9},
    "reload": {},
}


async def post(gov: Governed, action: str, *, token: str | None = ADMIN_TOKEN, via: str = "cli", **body: Any) -> Any:
    headers = {CLIENT_HEADER: via} | ({} if token is None else {"authorization": f"Bearer {token}"})
    async with gov.client(None, headers=headers) as client:
        return await client.post(f"/governor/actions/{action}", json=body)


async def act(gov: Governed, action: str, **body: Any) -> Acted:
    answer: httpx.Response = await post(gov, action, **body)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=Acted)


async def refused(gov: Governed, action: str, status: int, **body: Any) -> dict[str, Any]:
    answer: httpx.Response = await post(gov, action, **body)
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["source"] == "governor"
    return error


def told(gov: Governed) -> list[tuple[str, str, str, str]]:
    """What followers hear of the owner: who, what, of what, with which outcome."""
    heard = [each.event for each in gov.governor.events.since(0)]
    return [(e.who, e.action, e.target, e.outcome) for e in heard if isinstance(e, OwnerActed)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Stream:
    """A client's stream, read in the background."""

    def __init__(self, gov: Governed, agent: str = "alice", **body: Any) -> None:
        self._gov, self._agent = gov, agent
        defaults = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
        self._body = defaults | body | {"stream": True}
        self.status: int | None = None
        self.turn_id = ""
        self.raw = b""
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with (
            self._gov.client(self._agent) as client,
            client.stream("POST", "/v1/chat/completions", json=self._body) as answer,
        ):
            self.turn_id, self.status = answer.headers.get("x-governor-turn", ""), answer.status_code
            async for chunk in answer.aiter_bytes():
                self.raw += chunk

    @property
    def data(self) -> list[Any]:
        found = [each.data for each in SseSplitter().feed(self.raw) if each.data not in (None, b"[DONE]")]
        return [msgspec.json.decode(each) for each in found if each is not None]

    @property
    def error(self) -> dict[str, Any]:
        last = self.data[-1]
        assert "error" in last, last
        error: dict[str, Any] = last["error"]
        return error

    async def until_it_writes(self) -> None:
        await until(lambda: any(choice for chunk in self.data for choice in chunk.get("choices", ())))


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(knobs=SLOW) as running:
        yield running


@pytest.fixture
async def gov(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Governed]:
    policies = {"alice": COMMENTED + KEPT_ALIVE, "bob": KEPT_ALIVE}
    async with governed(engine.url, tmp_path, agents=("alice", "bob"), policies=policies) as running:
        yield running
        await running.assert_idle()


# Who may


async def test_only_the_owner_may(gov: Governed, caplog: pytest.LogCaptureFixture) -> None:
    assert FIELDS.keys() == ACTS.keys()
    for action, fields in FIELDS.items():
        for token, status in ((None, 401), ("wrong", 403), (gov.keys["alice"], 403), (f"{ADMIN_TOKEN}x", 403)):
            assert (await post(gov, action, token=token, **fields)).status_code == status
    assert not told(gov)
    assert (await gov.snapshot()).agents[0].held is False
    assert (gov.home.policies / "alice.toml").read_text() == COMMENTED + KEPT_ALIVE
    assert gov.governor.requested.take(AgentName("alice")) is False
    assert caplog.text.count("without the admin token") == 4 * len(FIELDS)
    assert not any(secret in caplog.text for secret in (ADMIN_TOKEN, gov.keys["alice"]))


async def test_a_web_page_may_not(gov: Governed) -> None:
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    async with gov.client(None, headers=headers) as client:
        for more in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            answer = await client.post("/governor/actions/reload", json={}, headers=more)
            assert answer.status_code == 403
        answer = await client.post("/governor/actions/reload", content=b"{}", headers={"content-type": "text/plain"})
        assert answer.status_code == 415
        assert (await client.get("/governor/actions/reload")).status_code == 405
    assert not told(gov)


BAD_BODIES: list[tuple[str, bytes, str | None]] = [
    ("pause", b"{}", "agent"),
    ("pause", b'{"agent": 7}', "agent"),
    ("pause", b'{"agent": "alice", "runing": true}', "runing"),
    ("pause", b'{"agent": "alice", "running": "yes"}', "running"),
    ("set", b'{"agent": "alice", "key": "output.final"}', "value"),
    ("set", b'{"agent": "alice", "key": "output.final", "value": {"a": 1}}', "value"),
    ("set", b'{"agent": "alice", "key": "output.final", "value": ["a", 1]}', "value"),
    ("cancel", b"[]", None),
    ("cancel", b'{"turn": "\xff"}', None),
    ("cancel", b"", None),
    ("cancel", b"[" * 5000, None),
]


async def test_a_bad_body_is_refused_naming_the_field(gov: Governed) -> None:
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}", "content-type": "application/json"}
    async with gov.client(None, headers=headers) as client:
        for action, body, field in BAD_BODIES:
            answer = await client.post(f"/governor/actions/{action}", content=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), body
        answer = await client.post("/governor/actions/pause", content=b'{"agent": "' + b"a" * 70_000 + b'"}')
        assert answer.status_code == 413
    assert not told(gov)


async def test_what_is_not_there_is_said(gov: Governed) -> None:
    assert "pause, resume" in (await refused(gov, "explode", 404))["message"]
    for action in ("pause", "resume", "compact"):
        assert (await refused(gov, action, 404, agent="../eve\x1b[31m"))["param"] == "agent"
    for action in ("cancel", "slice"):
        error = await refused(gov, action, 404, turn="t-never")
        assert error["param"] == "turn"
        assert "is not open" in error["message"]
    assert (await refused(gov, "set", 404, agent="eve", key="output.final", value=9))["param"] == "agent"
    assert {each[3] for each in told(gov)} == {"refused"}
    assert all(each[2].isprintable() for each in told(gov))


# Pausing an agent


async def test_a_paused_agent_waits_and_others_do_not(gov: Governed) -> None:
    assert (await act(gov, "pause", agent="alice")).changed
    waits = Stream(gov)
    await until(lambda: b"paused by the owner" in waits.raw)  # told while it is kept alive
    assert (await gov.chat("bob", model="scripted")).status_code == 200
    snapshot = await gov.snapshot()
    alice, bob = snapshot.agents
    assert (alice.held, alice.held_reason, alice.waiting) == (True, "paused by the owner", 1)
    assert alice.held_since is not None
    assert (bob.held, bob.held_reason, bob.held_since) == (False, None, None)
    assert [turn.waits_for for turn in snapshot.turns] == ["paused by the owner"]
    assert not (await act(gov, "pause", agent="alice")).changed
    assert (await act(gov, "resume", agent="alice")).changed
    assert not (await act(gov, "resume", agent="alice")).changed
    await waits.task
    assert [end.state for end in await gov.ends()] == [TurnState.OK] * 2
    assert (await gov.snapshot()).agents[0].held is False
    via = "owner via cli"
    assert told(gov) == [
        (via, "pause", "alice", "done"),
        (via, "pause", "alice", "unchanged"),
        (via, "resume", "alice", "done"),
        (via, "resume", "alice", "unchanged"),
    ]


async def test_what_runs_goes_on(gov: Governed) -> None:
    runs = Stream(gov)
    await runs.until_it_writes()
    assert "what runs goes on" in (await act(gov, "pause", agent="alice")).detail
    await runs.task
    assert (await gov.end()).state is TurnState.OK
    await act(gov, "resume", agent="alice")


async def test_a_client_that_waited_too_long_is_told_who_paused_it(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with governed(engine.url, tmp_path, policies={"alice": "limits.hold_s = 0.2\n"}) as gov:
        await act(gov, "pause", agent="alice")
        answer = await gov.chat(model="scripted")
        assert answer.status_code == 429
        assert answer.json()["error"]["message"].startswith("The owner has paused this agent: waited 0 s")
        assert answer.headers["retry-after"] == "60"
        assert not engine.hits
        assert "paused by the owner" in ((await gov.end()).reason or "")


async def test_a_restart_remembers_who_is_paused(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with governed(engine.url, tmp_path) as gov:
        await act(gov, "pause", agent="alice", running=True)
    assert (tmp_path / "run" / "held.json").stat().st_mode & 0o777 == 0o600
    async with governed(engine.url, tmp_path, agents=("bob",)) as gov:
        alice, bob = (await gov.snapshot()).agents
        assert (alice.held, bob.held) == (True, False)
        assert not (await act(gov, "pause", agent="alice", running=True)).changed
        assert (await act(gov, "pause", agent="alice")).changed
        await act(gov, "resume", agent="alice")
    async with governed(engine.url, tmp_path, agents=("carol",)) as gov:
        assert not any(agent.held for agent in (await gov.snapshot()).agents)


async def test_a_damaged_file_of_pauses_stops_nobody(
    engine: ScriptedEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "held.json").write_text('{"alice": {"sin')
    async with governed(engine.url, tmp_path) as gov:
        assert (await gov.chat(model="scripted")).status_code == 200
    assert "which agents were paused cannot be read" in caplog.text


async def test_a_pause_that_cannot_be_kept_holds_and_says_so(gov: Governed) -> None:
    (gov.home.run / "held.json").mkdir(parents=True)
    acted = await act(gov, "pause", agent="alice")
    assert acted.changed
    assert "a restart resumes it, since that cannot be kept on file" in acted.detail
    assert (await gov.snapshot()).agents[0].held
    await act(gov, "resume", agent="alice")


# Ending a turn


async def test_a_running_turn_is_cancelled_and_its_client_told(gov: Governed, engine: ScriptedEngine) -> None:
    runs = Stream(gov)
    await runs.until_it_writes()
    acted = await act(gov, "cancel", turn=runs.turn_id, via="top")
    assert (acted.changed, acted.target) == (True, runs.turn_id)
    await runs.task
    assert runs.error["message"] == "The owner has cancelled this turn."
    assert (runs.error["code"], runs.error["source"]) == ("cancelled_by_owner", "governor")
    assert b"[DONE]" not in runs.raw
    end = await gov.end()
    assert (end.state, end.error_code) == (TurnState.REFUSED, "cancelled_by_owner")
    assert end.reason == "The owner has cancelled this turn."
    assert "cancelled: owner via top" in end.flags
    error = await refused(gov, "cancel", 404, turn=runs.turn_id)
    assert "has ended" in error["message"]
    assert told(gov) == [
        ("owner via top", "cancel", runs.turn_id, "done"),
        ("owner via cli", "cancel", runs.turn_id, "refused"),
    ]
    assert len(engine.hits) == 1


async def test_a_waiting_turn_is_cancelled_with_an_http_error(gov: Governed, engine: ScriptedEngine) -> None:
    await act(gov, "pause", agent="bob")
    asked = asyncio.create_task(gov.chat("bob", model="scripted"))
    await until(lambda: gov.governor.admission.waiting == 1)
    (turn,) = (await gov.snapshot()).turns
    await act(gov, "cancel", turn=turn.turn_id)
    answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "cancelled_by_owner")
    assert not engine.hits
    decisions = [each.event for each in gov.governor.events.since(0)]
    verdicts = [each.verdict for each in decisions if isinstance(each, TurnDecided)]
    assert verdicts == [Verdict.QUEUED, Verdict.REFUSED]
    await act(gov, "resume", agent="bob")


async def test_many_who_cancel_at_once_cancel_once(gov: Governed) -> None:
    runs = Stream(gov)
    await runs.until_it_writes()
    answers = await asyncio.gather(*(post(gov, "cancel", turn=runs.turn_id) for _ in range(8)))
    done = [each for each in answers if each.status_code == 200 and each.json()["changed"]]
    assert len(done) == 1
    assert {each.status_code for each in answers} <= {200, 404}
    await runs.task
    assert runs.raw.count(b"cancelled_by_owner") == 1
    assert len(await gov.ends()) == 1


async def test_a_client_that_leaves_while_it_is_cancelled_leaves_one_row(gov: Governed) -> None:
    for _ in range(5):
        runs = Stream(gov)
        await runs.until_it_writes()
        cancelling = asyncio.create_task(post(gov, "cancel", turn=runs.turn_id))
        runs.task.cancel()
        await asyncio.gather(cancelling, runs.task, return_exceptions=True)
    states = {end.state for end in await gov.ends()}
    assert states <= {TurnState.REFUSED, TurnState.CLIENT_ABORTED}


async def test_a_turn_that_has_not_asked_for_the_engine_is_told_apart(tmp_path: Path) -> None:
    async with governed("http://127.0.0.1:9", tmp_path, wait_ready=False) as gov:
        asked = asyncio.create_task(gov.chat(model="scripted"))
        await until(lambda: gov.governor.book.open_turns == 1)
        (turn,) = (await gov.snapshot()).turns
        assert "try again" in (await refused(gov, "cancel", 409, turn=turn.turn_id))["message"]
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


# Slices


@pytest.fixture
async def twin() -> AsyncIterator[Running]:
    """With room for one turn at a time."""
    async with twin_server(small_machine(max_running_requests=1), speed=6) as running:
        yield running


@pytest.fixture
async def sliced(twin: Running, tmp_path: Path) -> AsyncIterator[Governed]:
    """Nobody is paused there but by the owner."""
    patient = f"[slices]\nyield_after_s = 600\nquantum_s = 600\n{KEPT_ALIVE}"
    policies = {"alice": patient, "bob": patient, "carol": f"slices.enabled = false\n{KEPT_ALIVE}"}
    async with governed(twin.url, tmp_path, engine_kind="sglang", agents=tuple(policies), policies=policies) as gov:
        yield gov
        await gov.assert_idle()
        await twin.until_idle()


def wish(text: str) -> dict[str, Any]:
    return {"model": "tiny-hybrid", "custom_params": {"twin": {"text": text, "reasoning": ""}}}


LONG = "One line after the other, until it is full.\n" * 30


async def test_a_sliced_turn_lets_others_go_first_and_is_whole(sliced: Governed) -> None:
    hog = Stream(sliced, "alice", **wish(LONG))
    await hog.until_it_writes()
    small = asyncio.create_task(sliced.chat("bob", **wish("Quick.")))
    await until(lambda: sliced.governor.admission.waiting == 1)
    acted = await act(sliced, "slice", turn=hog.turn_id)
    assert acted.changed
    assert (await small).status_code == 200
    assert not hog.task.done()
    await hog.task
    text = "".join(c["delta"].get("content") or "" for chunk in hog.data for c in chunk["choices"])
    assert text.strip() == LONG.strip()
    first, _ = await sliced.ends()
    assert (first.state, first.pieces) == (TurnState.OK, 2)
    asked = [each.event for each in sliced.governor.events.since(0)]
    whys = [e.why for e in asked if isinstance(e, TurnDecided) and e.verdict is Verdict.PAUSE_ASKED]
    assert whys == ["the owner via cli lets others go first"]


async def test_running_answers_pause_with_their_agent_and_go_on_with_it(sliced: Governed) -> None:
    hog = Stream(sliced, "alice", **wish(LONG))
    await hog.until_it_writes()
    await act(sliced, "pause", agent="alice", running=True)
    await until(lambda: sliced.governor.admission.waiting == 1)
    assert (await sliced.chat("bob", **wish("Quick."))).status_code == 200
    (turn,) = (await sliced.snapshot()).turns
    assert (turn.phase, turn.waits_for) == ("paused", "paused by the owner")
    assert not (await act(sliced, "slice", turn=hog.turn_id)).changed
    await act(sliced, "resume", agent="alice")
    await hog.task
    text = "".join(c["delta"].get("content") or "" for chunk in hog.data for c in chunk["choices"])
    assert text.strip() == LONG.strip()


async def test_a_paused_turn_is_cancelled(sliced: Governed, twin: Running) -> None:
    hog = Stream(sliced, "alice", **wish(LONG))
    await hog.until_it_writes()
    await act(sliced, "pause", agent="alice", running=True)
    await until(lambda: sliced.governor.admission.waiting == 1)
    await act(sliced, "cancel", turn=hog.turn_id)
    await hog.task
    assert hog.error["code"] == "cancelled_by_owner"
    assert (await sliced.end()).state is TurnState.REFUSED
    await twin.until_idle()


async def test_one_generation_is_not_paused(sliced: Governed) -> None:
    whole = Stream(sliced, "carol", **wish(LONG))
    await whole.until_it_writes()
    error = await refused(sliced, "slice", 409, turn=whole.turn_id)
    assert (error["param"], error["code"]) == ("turn", "not_possible")
    assert "slices.enabled" in error["message"]
    await act(sliced, "cancel", turn=whole.turn_id)
    await whole.task


async def test_an_engine_that_cannot_go_on_with_an_answer_is_not_asked_to(gov: Governed) -> None:
    plain = Stream(gov)
    await plain.until_it_writes()
    assert "cannot go on with an answer" in (await refused(gov, "slice", 409, turn=plain.turn_id))["message"]
    await plain.task


# Policies


async def test_a_key_is_set_with_comments_kept_and_in_force_at_once(gov: Governed) -> None:
    acted = await act(gov, "set", agent="alice", key="output.final", value=2048)
    assert acted.detail == "output.final of alice is 2048 (was 4096)"
    text = (gov.home.policies / "alice.toml").read_text()
    assert text == (COMMENTED + KEPT_ALIVE).replace("4096", "2048")
    answer = await gov.chat(model="scripted", max_tokens=9999)
    assert answer.headers["x-governor-cap"].startswith("9999 -> 2048")
    heard = [each.event for each in gov.governor.events.since(0)]
    assert [event.agent for event in heard if isinstance(event, PolicyChanged)] == ["alice"]
    assert not (await act(gov, "set", agent="alice", key="output.final", value=2048)).changed
    acted = await act(gov, "set", agent="alice", key="output.final", value=None)
    assert acted.detail.startswith("output.final of alice is 16384, from ")
    assert "# caps of alice" in (gov.home.policies / "alice.toml").read_text()


BAD_SETTINGS: list[tuple[str, object, str, str]] = [
    ("output.finl", 9, "key", "did you mean 'final'?"),
    ("", 9, "key", "unknown key"),
    ("output", 9, "key", "output"),
    ("output.final.deep", 9, "key", "output.final"),
    ("a\x1b[31m.\u202eb", 9, "key", "unknown key"),
    ("output.final", -1, "value", ">= 1"),
    ("output.final", "many", "value", "output.final"),
    ("output.floor", 99_999, "value", "below output.floor"),
    ("class", "king", "value", "class"),
    ("base", "nobody", "value", "there is no shipped policy"),
]


async def test_a_bad_key_or_value_leaves_the_file_as_it_was(gov: Governed) -> None:
    for key, value, field, words in BAD_SETTINGS:
        error = await refused(gov, "set", 400, agent="alice", key=key, value=value)
        assert error["param"] == field, key
        assert words in error["message"]
        assert (gov.home.policies / "alice.toml").read_text() == COMMENTED + KEPT_ALIVE
    assert told(gov) == [("owner via cli", "set", "alice", "refused")] * len(BAD_SETTINGS)
    assert not (await gov.snapshot()).agents[0].policy_problem
    (gov.home.policies / "alice.toml").write_text("{{{ # by hand")
    assert "not valid TOML" in (await refused(gov, "set", 400, agent="alice", key="class", value="normal"))["message"]
    assert (gov.home.policies / "alice.toml").read_text() == "{{{ # by hand"


async def test_a_floor_that_cannot_be_promised_is_not_written(sliced: Governed) -> None:
    before = (sliced.home.policies / "alice.toml").read_text()
    error = await refused(sliced, "set", 400, agent="alice", key="share.floor_tokens", value=9_000)
    assert "9,000 (alice)" in error["message"]
    assert (sliced.home.policies / "alice.toml").read_text() == before
    await act(sliced, "set", agent="alice", key="share.floor_tokens", value=4_000)


async def test_changes_at_once_are_all_made(gov: Governed) -> None:
    keys = ("output.final", "output.title", "output.background", "limits.queue", "limits.concurrency")
    await asyncio.gather(*(act(gov, "set", agent="alice", key=key, value=77) for key in keys))
    text = (gov.home.policies / "alice.toml").read_text()
    tree = tomllib.loads(text)
    assert tree["output"] == {"final": 77, "title": 77, "background": 77}
    assert tree["limits"] == {"queue": 77, "concurrency": 77}
    assert "# short answers" in text


async def test_files_are_read_when_that_is_asked(gov: Governed) -> None:
    (gov.home.policies / "alice.toml").write_text("output.final = 33\n")
    acted = await act(gov, "reload")
    assert acted.detail == "changed: alice"
    answer = await gov.chat(model="scripted", max_tokens=9999)
    assert answer.headers["x-governor-cap"].startswith("9999 -> 33")
    (gov.home.policies / "bob.toml").write_text("{{{")
    acted = await act(gov, "reload")
    assert acted.changed
    assert "bob.toml:1: not valid TOML" in acted.detail
    assert (await gov.snapshot()).agents[1].policy_problem
    (gov.home.policies / "bob.toml").write_text("# none\n")
    await act(gov, "reload")
    acted = await act(gov, "reload")
    assert (acted.changed, acted.detail) == (False, "nothing has changed")


# Compacting


async def test_the_next_prompt_is_made_shorter_once(gov: Governed) -> None:
    error = await refused(gov, "compact", 409, agent="alice")
    assert "set compression.mode of alice to enforce" in error["message"]
    await act(gov, "set", agent="alice", key="compression.mode", value="enforce")
    assert (await act(gov, "compact", agent="alice")).changed
    assert not (await act(gov, "compact", agent="alice")).changed
    requested = gov.governor.requested
    assert [requested.take(AgentName(name)) for name in ("bob", "alice", "alice")] == [False, True, False]


# Who hears of it


async def test_others_who_follow_see_what_was_done(gov: Governed) -> None:
    heard: list[OwnerActed] = []
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    async with gov.client(None, headers=headers) as client, client.stream("GET", "/governor/events") as answer:

        async def follow() -> None:
            splitter, decoder = SseSplitter(), msgspec.json.Decoder(AnyEvent)
            async for chunk in answer.aiter_bytes():
                for each in splitter.feed(chunk):
                    event = decoder.decode(each.data) if each.data else None
                    if isinstance(event, OwnerActed):
                        heard.append(event)

        follower = asyncio.create_task(follow())
        await act(gov, "pause", agent="alice", via="web")
        await act(gov, "resume", agent="alice", via="a stranger")
        await until(lambda: len(heard) == 2)
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
    assert [(each.who, each.action) for each in heard] == [("owner via web", "pause"), ("owner via api", "resume")]
    assert "its turns wait" in heard[0].detail


async def test_all_is_in_the_log_and_no_secret_is(gov: Governed, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "governor.gateway.actions")
    for secret in (ADMIN_TOKEN, gov.keys["alice"]):
        await refused(gov, "set", 400, agent="alice", key="base", value=secret)
        await refused(gov, "set", 400, agent="alice", key=secret, value=1)
        await refused(gov, "cancel", 404, turn=secret)
        await refused(gov, "pause", 404, agent=secret)
    lines = [record.getMessage() for record in caplog.records if record.name == "governor.gateway.actions"]
    assert len(lines) == 8
    assert lines[0].startswith("owner via cli: set alice: refused: ")
    heard = msgspec.json.encode([each.event for each in gov.governor.events.since(0)]).decode()
    for secret in (ADMIN_TOKEN, gov.keys["alice"]):
        assert secret not in "\n".join(lines)
        assert secret not in heard
