"""W64 model-name-paths: a name is looked up in a table. It is never joined into a path, a URL or a log line."""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from governor.redact import RedactingFilter
from serve.scripted import ScriptedEngine
from tests.cases.play import send
from tests.harness import Governed, governed
from tests.rawhttp import answers_in, connected, request_bytes
from tests.scenario import load_case

VARIANT = load_case("W64").variant("names")
GOOD = [row["model"] for row in VARIANT.rows if row["ok"]]
BAD = [row["model"] for row in VARIANT.rows if not row["ok"]]
EXTRA = ["/etc/passwd", "....//x", "org/name/../name", "org%2Fname", "ORG/NAME", "\u202eeman/gro", "x" * 10_000, ""]
LISTING = {"data": [{"id": name} for name in GOOD]}

_opened: list[str] | None = None


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open":
        _opened.append(str(arguments[0]))


sys.addaudithook(_on_audit)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Paths this process opens while inside."""
    global _opened  # noqa: PLW0603 - an audit hook cannot be taken out again
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    assert isinstance(VARIANT.stub, list)
    listing = [{"status": 200, "headers": {"Content-Type": "application/json"}}, {"json": LISTING}]
    async with ScriptedEngine(VARIANT.stub, by_path={"/v1/models": [listing]}) as engine:
        yield engine


@pytest.fixture
async def gov(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Governed]:
    async with governed(engine.url, tmp_path / "home") as gov:
        yield gov


def calls(engine: ScriptedEngine) -> list[str]:
    return [hit.target for hit in engine.hits if hit.method == "POST"]


async def get(gov: Governed, target: str) -> tuple[int, bytes]:
    """GET exactly this target, which a client library would tidy up."""
    async with connected(gov.url) as raw:
        await raw.send(request_bytes(target, method="GET", key=gov.keys["alice"], headers={"connection": "close"}))
        [answer] = answers_in(await raw.read_to_end())
    return answer.status, answer.body


@pytest.mark.parametrize("name", GOOD)
async def test_W64_good_names(gov: Governed, engine: ScriptedEngine, name: str) -> None:
    assert VARIANT.request is not None
    assert (await send(gov, VARIANT.request, model=name)).status_code == 200
    assert calls(engine) == ["/v1/chat/completions"]
    for target in (name, quote(name, safe=""), quote(name)):
        status, body = await get(gov, f"/v1/models/{target}")
        assert status == 200
        assert msgspec.json.decode(body)["id"] == name


@pytest.mark.parametrize("name", BAD + EXTRA, ids=repr)
async def test_W64_bad_names(
    gov: Governed, engine: ScriptedEngine, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert VARIANT.request is not None
    caplog.set_level(logging.DEBUG)
    caplog.handler.addFilter(RedactingFilter(()))
    with opened_files() as opened:
        answer = await send(gov, VARIANT.request, model=name)
        targets = {quote(name, safe=""), quote(quote(name, safe=""), safe="")}
        if name.isascii() and name.isprintable() and not set(name) & {" ", "%"}:
            targets.add(name)
        got = [await get(gov, f"/v1/models/{target}") for target in targets]
    assert answer.status_code == (404 if 0 < len(name) <= 512 else 400)
    assert_says_so(answer)
    for status, body in got:
        assert status == 404
        assert msgspec.json.decode(body)["error"]["code"] in {"model_not_found", "not_found"}
    assert not calls(engine)
    ours = Path(__file__).parents[2] / "governor"
    allowed = (str(gov.home.root), str(ours), "/proc/", "/dev/", sys.prefix, sys.base_prefix)
    assert not [path for path in opened if not path.startswith(allowed) and not path.isdecimal()]
    for record in caplog.records:
        assert record.getMessage().isprintable(), record
    [row] = await gov.rows()
    assert row.closed is not None
    assert (row.closed.model or "").isprintable()
    assert len(row.closed.model or "") <= 1000
    assert (row.closed.reason or "").isprintable()


def assert_says_so(answer: httpx.Response) -> None:
    error = answer.json()["error"]
    assert error["param"] == "model"
    assert error["message"].isprintable()
    assert len(error["message"]) < 1000


async def test_W64_names_in_the_log_have_no_control_bytes(gov: Governed) -> None:
    assert VARIANT.request is not None
    for name in BAD:
        await send(gov, VARIANT.request, model=name)
    await gov.rows()
    with sqlite3.connect(gov.home.database) as database:
        tables = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        texts = [
            value
            for table in tables
            for row in database.execute(f'select * from "{table}"')  # noqa: S608 - names from the database itself
            for value in row
            if isinstance(value, str)
        ]
    database.close()
    assert texts
    assert not [text for text in texts if not text.isprintable()]
