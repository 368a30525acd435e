"""``python -m serve.twin_server``: the twin as a program of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvicorn

from serve.errors import ServeError
from serve.twin.machine import load_machine, machine_names
from serve.twin_server.app import TwinServer
from serve.twin_server.script import BadScript, load_script
from serve.twin_server.settings import TwinServerSettings

_STOP_WITHIN_S = 1
"""What still streams then is cut: a stopped engine does not keep its supervisor waiting."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run until interrupted. Exit code 2 for a wrong argument, machine or script, as argparse has it."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        machine = load_machine(arguments.machine)
        script = None if arguments.script is None else load_script(arguments.script)
        settings = TwinServerSettings(
            speed=arguments.speed,
            seed=arguments.seed,
            served_model_name=arguments.served_model_name,
            kv_events_endpoint=arguments.kv_events_endpoint,
            kv_replay_endpoint=arguments.kv_replay_endpoint,
            plugin_socket=arguments.plugin_socket,
        )
        server = TwinServer(machine, settings, script=script)
    except (ServeError, BadScript, OSError, ValueError) as error:
        parser.error(str(error))
    if arguments.until_stdin_ends:
        threading.Thread(target=_stop_when_stdin_ends, daemon=True).start()
    asyncio.run(_serve(server, arguments.host, arguments.port))
    return 0


def _stop_when_stdin_ends() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    defaults = TwinServerSettings()
    parser = argparse.ArgumentParser(
        prog="python -m serve.twin_server",
        description="SGLang's HTTP surface in front of a model of the engine. Prints its URL in JSON when it listens.",
    )
    known = ", ".join(machine_names())
    parser.add_argument("--machine", required=True, help=f"one of {known}, or a file's path that ends in .toml")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (the default) lets the system choose")
    parser.add_argument("--speed", type=float, default=defaults.speed, help="seconds of the twin in one second")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of what the model writes")
    parser.add_argument("--served-model-name", metavar="NAME", help="over the machine's")
    parser.add_argument("--script", type=Path, metavar="FILE", help="answers and faults; without, answers are made up")
    parser.add_argument("--kv-events-endpoint", metavar="ADDRESS", help="ZMQ address at which KV events are published")
    parser.add_argument(
        "--kv-replay-endpoint", metavar="ADDRESS", help="ZMQ address at which missed ones are to be had"
    )
    parser.add_argument("--plugin-socket", type=Path, metavar="PATH", help="where our plugin in an engine would listen")
    parser.add_argument(
        "--until-stdin-ends", action="store_true", help="end with whoever holds the other end of the standard input"
    )
    return parser


class _Announcing(uvicorn.Server):
    """Says where it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            url = f"http://{self.config.host}:{port}"
            print(msgspec.json.encode({"url": url}).decode(), flush=True)


async def _serve(server: TwinServer, host: str, port: int) -> None:
    config = uvicorn.Config(
        server.app,
        host=host,
        port=port,
        lifespan="on",
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_STOP_WITHIN_S,
    )
    program = _Announcing(config)

    def fail() -> None:
        program.should_exit = program.force_exit = True

    server.on_failed = fail
    await asyncio.sleep(server.loads_s)  # as SGLang, which listens when its model is loaded
    await program.serve()


if __name__ == "__main__":
    sys.exit(main())
