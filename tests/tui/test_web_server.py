"""Who gets into the dashboard that is served to browsers, and who does not. No browser, no dashboard."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from governor.gateway.server import bound_socket
from tui.web.server import COOKIE, DashboardServer, is_loopback, new_code

CODE = "abcdefghjk"
PROGRAM = "echo __GANGLION__; head -c 1 >/dev/null"


@asynccontextmanager
async def server(names: frozenset[str] = frozenset()) -> AsyncIterator[str]:
    """Its address."""
    bound = bound_socket("127.0.0.1", 0)
    serving, stop = DashboardServer(PROGRAM, bound, code=CODE, names=names), asyncio.Event()
    listening = asyncio.Event()
    running = asyncio.create_task(serving.run(stop.wait, listening.set))
    try:
        await listening.wait()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        stop.set()
        await running
        await programs_ended()


async def programs_ended() -> None:
    """textual-serve hears that a view's output has ended, and does not wait for its process."""
    for thread in threading.enumerate():
        if thread.name.startswith("asyncio-waitpid-"):
            await asyncio.to_thread(thread.join)
    await asyncio.sleep(0)


def browser() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))  # cookies of addresses, too


async def test_the_code_lets_in() -> None:
    async with server() as url, browser() as session:
        async with session.get(url + "/") as page:
            text = await page.text()
            assert "/enter" in text
            assert "terminal" not in text.replace("its terminal", "")
        async with session.post(url + "/enter", data={"code": f" {CODE.upper()} "}) as page:
            assert 'data-session-websocket-url="ws://127.0.0.1:' in await page.text()
            assert page.headers["cache-control"] == "no-store"
            assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        async with session.ws_connect(url + "/ws", origin=url) as socket:
            await socket.send_json(["ping", "1"])
            assert (await socket.receive_json(timeout=10)) == ["pong", "1"]
        (cookie,) = session.cookie_jar
        assert cookie.key.startswith(COOKIE)
        assert cookie["httponly"]
        assert cookie["samesite"] == "Strict"


@pytest.mark.parametrize("path", ["/ws", "/static/js/textual.js", "/download/x"])
async def test_nothing_without_the_code(path: str) -> None:
    async with server() as url, browser() as session:
        async with session.post(url + "/enter", data={"code": "wrong"}) as page:
            assert page.status == 403
        async with session.get(url + path) as page:
            assert page.status == 401


async def test_guessing_ends() -> None:
    async with server() as url, browser() as session:
        for _ in range(20):
            async with session.post(url + "/enter", data={"code": "wrong"}) as page:
                assert "That is not the code." in await page.text()
        async with session.post(url + "/enter", data={"code": CODE}) as page:
            assert page.status == 403
            assert "Start governor top --web again" in await page.text()


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"origin": "null"}, {"host": "evil.example"}, {"host": "[::1"}]
)
async def test_other_sites_do_not_get_in(headers: dict[str, str]) -> None:
    async with server() as url, browser() as session:
        await (await session.post(url + "/enter", data={"code": CODE})).read()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url + "/ws", headers=headers)
        assert refused.value.status == 403


async def test_a_cookie_of_any_bytes_is_no_error() -> None:
    async with server() as url:
        host = url.removeprefix("http://")
        name, _, port = host.partition(":")
        reader, writer = await asyncio.open_connection(name, int(port))
        cookie = f"{COOKIE}-{port}=".encode() + b"\xff\xfe"
        writer.write(
            f"GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nCookie: ".encode() + cookie + b"\r\n\r\n"
        )
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()
        await writer.wait_closed()


async def test_a_further_name() -> None:
    name = {"host": "Box.LAN"}
    async with server(frozenset({"boX.lan"})) as url, browser() as session, session.get(url, headers=name) as page:
        assert page.status == 200


def told(*options: str, until: str) -> str:
    """What ``governor top`` says with these options, up to ``until``, or to its end."""
    command = [sys.executable, "-m", "governor", "top", *options]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        late = threading.Timer(20.0, process.kill)
        late.start()
        for line in process.stdout or ():
            lines.append(line)
            if until in line:
                break
        late.cancel()
        process.terminate()
    return "".join(lines)


def test_options_of_the_browser_without_a_browser_are_an_error() -> None:
    assert "--host, --port and --allow-host go with --web" in told("--port", "0", until="--web")


def test_who_listens_to_all_is_told_that_names_are_missing(tmp_path: Path) -> None:
    options = ("--home", str(tmp_path), "--web", "--port", "0", "--host", "0.0.0.0")
    said = told(*options, until="that --allow-host names")
    assert "plain HTTP" in said
    assert "that --allow-host names" in said


def test_codes() -> None:
    assert len({new_code() for _ in range(100)}) == 100
    assert is_loopback("127.0.0.2")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("box.lan")


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    """An interpreter that finds no textual-serve."""
    (tmp_path / "textual_serve.py").write_text("raise ModuleNotFoundError('x', name='textual_serve')\n")
    found = subprocess.run(
        [sys.executable, "-m", "governor", "top", "--web", "--home", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert found.returncode == 2
    assert "textual_serve is missing: pip install 'agent-governor[web]'" in found.stderr
