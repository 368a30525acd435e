"""The twin as a process that ends with us, however we end."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from governor.gateway.sglang_cache import CachePlaces
from governor.settings import Home
from serve.errors import ServeError
from serve.placement import clear_sockets, kv_endpoints, socket_folder
from serve.twin_launcher import TwinOptions, twin_argv

_LISTENS_WITHIN_S = 20.0
"""On the wall."""
_ENDS_WITHIN_S = 3.0


class RunningTwin(msgspec.Struct, frozen=True, kw_only=True):
    """Where it listens and tells of its cache."""

    url: str
    cache: CachePlaces


class _Listening(msgspec.Struct):
    url: str


@asynccontextmanager
async def running_twin(machine: str, home: Home, speed: float) -> AsyncIterator[RunningTwin]:
    """The twin while inside. Its standard input is a pipe that nobody else holds: when we are killed it ends, too.

    The event loop's seconds are the twin's. Raises :class:`~serve.errors.ServeError` when it does not come up.
    """
    clear_sockets(home)
    home.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    events, replay = kv_endpoints(home)
    plugin = socket_folder(home) / "plugin"
    options = TwinOptions(machine=machine, speed=speed)
    argv = twin_argv(options, port=0, kv_events=events, kv_replay=replay, plugin_socket=plugin)
    with (home.logs / "engine.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(*argv, "--until-stdin-ends"), stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True
        )
    try:
        url = await _url(process, _LISTENS_WITHIN_S * speed)
        yield RunningTwin(url=url, cache=CachePlaces(kv_events=events, kv_replay=replay, plugin_socket=plugin))
    finally:
        await _ended(process, _ENDS_WITHIN_S * speed)


async def _url(process: Process, within_s: float) -> str:
    if process.stdout is None:
        raise TypeError("the twin was started without a pipe")
    try:
        async with asyncio.timeout(within_s):
            line = await process.stdout.readline()
    except TimeoutError as error:
        raise ServeError("The twin does not come up.") from error
    if not line:
        raise ServeError("The twin has ended at its start; engine.log in the demo's home says why.")
    return msgspec.json.decode(line, type=_Listening).url


async def _ended(process: Process, within_s: float) -> None:
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
