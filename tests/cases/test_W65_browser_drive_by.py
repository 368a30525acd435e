"""W65 browser-drive-by: a web page that the owner opens cannot use this server, nor can others reach it unasked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from governor.errors import ConfigError
from governor.gateway.server import check_bind
from governor.runtime import RuntimeConfig
from governor.types import AgentName
from serve.engine import Endpoint
from serve.scripted import ScriptedEngine
from tests.harness import ADMIN_TOKEN, Governed, governed
from tests.rawhttp import Answer, answers_in, connected, request_bytes
from tests.scenario import load_case

VARIANT = load_case("W65").variant("rows")
PAGES = ["/v1/models", "/v1/models/m", "/health", "/ready", "/metrics", "/governor/state", "/governor/events"]
FOREIGN = {
    "origin": {"origin": "https://evil.example"},
    "origin null": {"origin": "null"},
    "origin file": {"origin": "file://"},
    "origin without scheme": {"origin": "localhost"},
    "origin like ours": {"origin": "http://127.0.0.1.evil.example"},
    "origin with user": {"origin": "http://localhost@evil.example"},
    "host": {"host": "evil.example:8000"},
    "host like ours": {"host": "localhost.evil.example"},
    "host of the lan": {"host": "192.168.1.7"},
    "host as a number": {"host": "2130706433"},
    "host broken": {"host": "[::1"},
    "no host": {"host": ""},
}


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with VARIANT.engine() as engine:
        yield engine


@pytest.fixture
async def gov(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Governed]:
    """With the loopback agent on: the key, which a web page has not got, shall not be all that protects."""
    config = RuntimeConfig(loopback_agent=AgentName("alice"), hosts=("box.lan",))
    async with governed(engine.url, tmp_path, config=config) as gov:
        yield gov


async def ask(gov: Governed, path: str, method: str = "POST", **headers: str) -> Answer:
    body = VARIANT.request.body if VARIANT.request and method == "POST" else None
    content = b"" if body is None else VARIANT.request.content()  # type: ignore[union-attr]
    async with connected(gov.url) as raw:
        await raw.send(request_bytes(path, content, method=method, headers={"connection": "close", **headers}))
        [answer] = answers_in(await raw.read_to_end())
    return answer


@pytest.mark.parametrize("number", range(len(VARIANT.rows)))
async def test_W65(gov: Governed, engine: ScriptedEngine, number: int) -> None:
    row = VARIANT.rows[number]
    answer = await ask(gov, "/v1/chat/completions", **{name.lower(): value for name, value in row["headers"].items()})
    assert answer.status in row["status"]
    assert len(engine.hits) == (1 if row["status"] == [200] else 0)
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("name", FOREIGN)
async def test_W65_every_page_is_closed_to_foreign_pages(gov: Governed, engine: ScriptedEngine, name: str) -> None:
    headers = FOREIGN[name] | {"authorization": f"Bearer {ADMIN_TOKEN}"}
    for page in PAGES:
        assert (await ask(gov, page, "GET", **headers)).status == 403, page
    for endpoint in Endpoint:
        assert (await ask(gov, endpoint, **FOREIGN[name])).status == 403, endpoint
    assert not engine.hits
    assert not await gov.rows()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/metrics", "/governor/state"])
async def test_W65_a_preflight_is_refused(gov: Governed, path: str) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    for origin in ("https://evil.example", "http://localhost:3000"):
        answer = await ask(gov, path, "OPTIONS", origin=origin, **asked)
        assert answer.status in {403, 405}
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"]
)
async def test_W65_what_a_form_can_send_is_not_json(gov: Governed, engine: ScriptedEngine, content_type: str) -> None:
    for endpoint in Endpoint:
        assert (await ask(gov, endpoint, **{"content-type": content_type})).status == 415
    assert not engine.hits


@pytest.mark.parametrize("page", ["/governor/state", "/governor/events"])
async def test_W65_owners_pages_need_the_owners_token(gov: Governed, page: str) -> None:
    assert (await ask(gov, page, "GET")).status == 401
    assert (await ask(gov, page, "GET", authorization=f"Bearer {gov.keys['alice']}")).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "LOCALHOST", "127.8.8.8", "box.lan", "Box.LAN"])
async def test_W65_our_own_names_work(gov: Governed, host: str) -> None:
    port = urlsplit(gov.url).port
    for spelled in (host, f"{host}:{port}"):
        assert (await ask(gov, "/v1/chat/completions", host=spelled)).status == 200
        assert (await ask(gov, "/health", "GET", host=spelled, origin=f"http://{spelled}")).status == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_W65_loopback_may_be_bound_as_one_likes(host: str) -> None:
    check_bind(host, None)
    check_bind(host, "alice", ["box.lan"])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "box.lan", ""])
def test_W65_other_addresses_need_names_and_a_key_for_every_request(host: str) -> None:
    check_bind(host, None, ["box.lan"])
    with pytest.raises(ConfigError, match="--allow-host"):
        check_bind(host, None)
    with pytest.raises(ConfigError, match="loopback"):
        check_bind(host, "alice", ["box.lan"])
