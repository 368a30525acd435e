"""W66 secrets-in-logs: canaries go through every flow, then everything that was written or answered is searched."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import httpx
import pytest

from governor.redact import MASK, RedactingFilter, Redactor
from governor.settings import Secret
from governor.tokens.counter import EstimateCounter
from governor.tokens.model import PromptParts
from governor.types import TokenCount
from serve.scripted import Behaviour, Knobs, ScriptedEngine
from serve.scripted.sources import Source
from tests.harness import ADMIN_TOKEN, Governed, governed

PROMPT = "words-of-a-person"
WRONG_KEY = "gov-" + "wrongKey_" * 4 + "wrongKe"
JSON_HEAD = {"Content-Type": "application/json"}
ENGINE_KEYS = {"usual": "sk-engine-canary-0123456789", "short": "q7!z", "odd": 'sk-"odd\\key/%20+<x>&'}


class CrashingCounter(EstimateCounter):
    """Fails as a bug would, with a secret and a prompt at hand, when a prompt asks for it."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self._secret = secret

    def count(self, prompt: PromptParts) -> TokenCount:
        if any(b"please crash" in message for message in prompt.messages):
            raise RuntimeError(f"could not reach {self._secret}") from ValueError({"key": self._secret})
        return super().count(prompt)


def forms(value: str) -> set[bytes]:
    """Spellings of a secret under which it could be found."""
    texts = {value, json.dumps(value)[1:-1], quote(value, safe=""), quote_plus(value), repr(value)[1:-1]}
    return {text.encode() for text in texts}


def echoes(key: str) -> list[Source]:
    """Engines that tell their key, in every way an error can be told."""
    error = {"message": f"bad key {key}", "type": key, "code": key, "param": {"key": key}}
    plain: list[Source] = [
        [{"status": status, "headers": JSON_HEAD}, {"json": {"error": error}}] for status in (400, 401, 429, 500, 503)
    ]
    overflow = {"error": {"message": f"maximum context length is 10 tokens, says {key}", "type": "x"}}
    sse = {"status": 200, "headers": {"Content-Type": "text/event-stream"}}
    text = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    return [
        *plain,
        [{"status": 400, "headers": JSON_HEAD}, {"json": overflow}],
        [{"status": 500, "headers": {"Content-Type": "text/plain"}}, {"text": f"Traceback: Bearer {key}"}],
        [{"status": 200, "headers": JSON_HEAD}, {"json": {"error": error}}],
        [sse, {"sse": {"error": error}}],
        [sse, {"sse": text}, {"sse": {"error": error}}, {"close": "fin"}],
    ]


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[tuple[Path, logging.Handler]]:
    """Everything that is logged, at the most talkative level, as the command line has it written."""
    handler = logging.FileHandler(tmp_path / "governor.log", encoding="utf-8")
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield tmp_path / "governor.log", handler
    root.setLevel(level)
    root.removeHandler(handler)
    handler.close()


async def all_flows(gov: Governed, engine: ScriptedEngine, count: int) -> AsyncIterator[httpx.Response]:
    """An answer from every kind of exchange there is."""
    messages = [{"role": "user", "content": PROMPT}]
    key = gov.keys["alice"]
    for number in range(count):
        yield await gov.chat(messages=messages, stream=number >= count - 2)
    yield await gov.chat(messages=messages)
    yield await gov.chat(messages=messages, stream=True)
    yield await gov.chat(messages=[{"role": "user", "content": "please crash " + PROMPT}])
    yield await gov.chat(messages="wrong", user=PROMPT)
    async with gov.client(None) as client:
        body: dict[str, Any] = {"model": "m", "messages": messages}
        path = "/v1/chat/completions"
        yield await client.post(path, json=body)
        yield await client.post(f"{path}?api_key={key}", json=body, headers={"x-api-key": key})
        yield await client.post(f"{path}?api_key={WRONG_KEY}", json=body, headers={"x-api-key": WRONG_KEY})
        yield await client.post(path, json=body, headers={"authorization": f"Bearer {WRONG_KEY}"})
        yield await client.post(path, content=key, headers={"authorization": f"Bearer {key}"})
        yield await client.post(f"/v1/{key}", json=body)
        for token in (ADMIN_TOKEN, ADMIN_TOKEN + "x", key):
            yield await client.get("/governor/state", headers={"authorization": f"Bearer {token}"})
        yield await client.get("/metrics")
        yield await client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        yield await client.get(f"/v1/models/{key}", headers={"authorization": f"Bearer {WRONG_KEY}"})
    yield await events(gov)


async def events(gov: Governed) -> httpx.Response:
    """What the dashboard was sent of all of it."""
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}", "last-event-id": "0"}
    async with gov.client(None) as client, client.stream("GET", "/governor/events", headers=headers) as answer:
        seen = b""
        with_deadline = asyncio.timeout(0.5)
        try:
            async with with_deadline:
                async for piece in answer.aiter_raw():
                    seen += piece
        except TimeoutError:
            pass
    assert b"TurnEnded" in seen
    return httpx.Response(200, content=seen)


@pytest.mark.parametrize("name", ENGINE_KEYS)
async def test_W66(tmp_path: Path, log_file: tuple[Path, logging.Handler], name: str) -> None:
    engine_key = ENGINE_KEYS[name]
    path, handler = log_file
    handler.addFilter(RedactingFilter([Secret(engine_key), Secret(ADMIN_TOKEN)]))
    scripts = echoes(engine_key)
    answers: list[httpx.Response] = []
    home = tmp_path / "home"
    async with ScriptedEngine(*scripts, Behaviour(say="fine"), knobs=Knobs(model="m")) as engine:
        async with governed(engine.url, home, engine_key=engine_key, counter=CrashingCounter(engine_key)) as gov:
            answers = [answer async for answer in all_flows(gov, engine, len(scripts))]
            statuses = {answer.status_code for answer in answers}
            assert {200, 400, 401, 403, 404, 429, 500, 502, 503} <= statuses
            await gov.assert_idle()
            rows = await gov.rows()
            keys = gov.keys
        handler.flush()
        for hit in [*engine.hits, *engine.probes]:
            told = repr(hit.raw_headers).encode() + hit.target.encode() + hit.body
            for canary in (keys["alice"], WRONG_KEY, ADMIN_TOKEN):
                assert canary.encode() not in told
            assert hit.headers["authorization"] == f"Bearer {engine_key}"
    places = {file.name: file.read_bytes() for file in files_under(tmp_path)}
    written = places[path.name].decode()
    assert "Traceback" in written
    assert "could not reach " + MASK in written
    places |= {f"answer {number}": _all_of(answer) for number, answer in enumerate(answers)}
    places["rows"] = repr(rows).encode()
    canaries = {ADMIN_TOKEN, WRONG_KEY, engine_key, *keys.values()}
    for place, data in places.items():
        for canary in canaries:
            for form in forms(canary):
                assert form not in data, f"{canary} in {place}"
    for place in [file for file in places if not file.startswith("answer")]:
        assert PROMPT.encode() not in places[place], place


def files_under(root: Path) -> list[Path]:
    return [file for file in root.rglob("*") if file.is_file()]


def _all_of(answer: httpx.Response) -> bytes:
    return repr(answer.headers.raw).encode() + answer.content


async def test_W66_files_are_the_owners_alone(tmp_path: Path) -> None:
    async with ScriptedEngine(knobs=Knobs(model="m")) as engine, governed(engine.url, tmp_path / "home") as gov:
        await gov.chat()
        await gov.rows()
        files = files_under(gov.home.root)
        assert {"agents.json", "turns.db"} <= {file.name for file in files}
        open_to_others = [str(file) for file in files if stat.S_IMODE(file.stat().st_mode) & 0o077]
        assert not open_to_others


@pytest.mark.parametrize("value", [*ENGINE_KEYS.values(), "ключ", "a b", "x"])
def test_W66_a_secret_is_found_in_every_spelling(value: str) -> None:
    redactor = Redactor([Secret(value), Secret("")])
    for spelled in (value, json.dumps(value), repr(value), quote(value), quote_plus(value), f"http://u:{value}@host"):
        assert value not in redactor.text(spelled)
        assert json.dumps(value)[1:-1] not in redactor.text(spelled)
        assert value.encode() not in redactor.data(spelled.encode())
    assert redactor.text("nothing here" if value not in "nothing here" else "") in {"nothing here", ""}


def test_W66_an_agents_key_is_found_by_its_form() -> None:
    key = "gov-" + "aB3_-" * 8 + "xyz"
    assert Redactor([]).text(f"GET /?key={key}&x") == f"GET /?key={MASK}&x"
