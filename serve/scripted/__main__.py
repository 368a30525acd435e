"""``python -m serve.scripted``: the scripted engine as a program of its own."""

from __future__ import annotations

import argparse
import asyncio
import base64
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import msgspec

from serve.scripted.ask import CallKind
from serve.scripted.behaviour import WORDS, Knobs
from serve.scripted.connection import Hit
from serve.scripted.engine import ScriptedEngine
from serve.scripted.modes import MODES, ModeOptions
from serve.scripted.script import BadScript
from serve.scripted.sources import Setup, load_setup

_DESCRIPTION = f"""\
An engine that answers as it is told. Prints one JSON line with its URL when it listens.

words for behaviours:
{WORDS}"""

_EXAMPLES = """\
examples:
  # an engine that talks: 65,536-token window, 2,000 tokens/s prefill, 50 tokens/s decode
  python -m serve.scripted --port 9000 --set window_tokens=65536 prefill_tokens_per_s=2000 decode_tokens_per_s=50

  # an agent's turn: a refusal, a tool call, then text; the summary call fails once
  python -m serve.scripted --port 9000 --behave 429/2 'call:terminal:{"command": "ls"}' say --on compaction=503

  # the upstream of a benchmark: nothing costs time, nothing is kept
  python -m serve.scripted --port 9000 --set answer_tokens=500 counting=chars remembered_prompts=0 keep_bodies=false

  # check prompt and output cap against a window, and write down what arrived
  python -m serve.scripted --mode window_check --option window_tokens=4096 --record hits.jsonl

  # an answer written step by step
  python -m serve.scripted --script answer.json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run until interrupted. Exit code 2 for a wrong argument or script, as argparse has it."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        setup = _setup(arguments)
        ScriptedEngine.of(setup)
    except (BadScript, OSError, ValueError) as error:
        parser.error(str(error))
    with arguments.record.open("a", encoding="utf-8") if arguments.record else nullcontext() as record:
        asyncio.run(_serve(setup, arguments.host, arguments.port, record))
    return 0


def _parser() -> argparse.ArgumentParser:
    knobs = ", ".join(f"{name}={_shown(value)}" for name, value in msgspec.to_builtins(Knobs()).items())
    options = ", ".join(f"{name}={_shown(value)}" for name, value in msgspec.to_builtins(ModeOptions()).items())
    parser = argparse.ArgumentParser(
        prog="python -m serve.scripted",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (the default) lets the system choose")
    parser.add_argument("--script", type=Path, metavar="FILE", help="JSON: a list of steps, or a whole set-up")
    parser.add_argument(
        "--mode",
        nargs="+",
        default=[],
        metavar="MODE|WORD",
        help=f"the nth generation call gets the nth, the last repeats; modes: {', '.join(sorted(MODES))}",
    )
    parser.add_argument(
        "--behave", nargs="+", default=[], metavar="WORD", help="behaviours of agent calls, one a call, then ordinary"
    )
    parser.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="KIND=WORD",
        help=f"a behaviour for another kind of call: {', '.join(CallKind)}; may be repeated",
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="KNOB=VALUE", help=f"defaults: {knobs}")
    parser.add_argument("--option", nargs="+", default=[], metavar="NAME=VALUE", help=f"of a mode; defaults: {options}")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append each answered request as a JSON line")
    return parser


def _shown(value: object) -> str:
    return "" if value is None else msgspec.json.encode(value).decode().replace("%", "%%")


def _setup(arguments: argparse.Namespace) -> Setup:
    setup = load_setup(arguments.script) if arguments.script else Setup()
    calls = {kind: list(words) for kind, words in setup.calls.items()}
    calls.setdefault(CallKind.AGENT, []).extend(arguments.behave)
    for pair in arguments.on:
        kind, _, word = pair.partition("=")
        calls.setdefault(CallKind(kind), []).append(word)
    return msgspec.structs.replace(
        setup,
        answers=arguments.mode or setup.answers,
        calls=calls,
        knobs=_updated(setup.knobs, arguments.set),
        options=_updated(setup.options, arguments.option),
    )


def _updated(settings: Any, pairs: Sequence[str]) -> Any:
    fields = msgspec.to_builtins(settings)
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise BadScript(f"{pair!r}: NAME=VALUE is needed")
        fields[name] = text.split(",") if name in ("tokens", "mix") else text
    return msgspec.convert(fields, type(settings), strict=False)


async def _serve(setup: Setup, host: str, port: int, record: IO[str] | None) -> None:
    def write_down(hit: Hit) -> None:
        if record is not None:
            record.write(msgspec.json.encode(_line(hit)).decode() + "\n")
            record.flush()

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with ScriptedEngine.of(setup, host=host, port=port, on_answered=write_down) as engine:
        print(msgspec.json.encode({"url": engine.url}).decode(), flush=True)
        await stopped.wait()


def _line(hit: Hit) -> dict[str, Any]:
    """A request as a JSON line; a body that is no JSON is kept in base64."""
    try:
        body: dict[str, Any] = {"body": msgspec.Raw(msgspec.json.format(hit.body, indent=0))}
    except msgspec.DecodeError:
        body = {"body_base64": base64.b64encode(hit.body).decode()}
    return {
        "method": hit.method,
        "target": hit.target,
        "headers": hit.raw_headers,
        **body,
        "kind": hit.kind,
        "status": hit.status,
        "bytes_sent": hit.bytes_sent,
        "tokens_sent": hit.tokens_sent,
        "received_at": hit.received_at,
        "ended_at": hit.ended_at,
        "peer_closed_at": hit.peer_closed_at,
    }


if __name__ == "__main__":
    sys.exit(main())
