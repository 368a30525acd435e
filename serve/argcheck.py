"""Asks the installed SGLang's own argument parser whether it takes a command. The last word on what a flag is called.

The parser lives in the engine's environment, so its interpreter is started once; nothing of the engine runs but the
parser, and no GPU is touched.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

import msgspec

TIMEOUT_S = 120.0
"""Importing SGLang takes 4 to 10 s, several times that on a busy machine."""

_PROGRAM = """
import argparse, json, sys
commands = json.load(sys.stdin)
class Refused(Exception): pass
def refuse(self, message): raise Refused(message)
def verdicts():
    try:
        import sglang
        from sglang.srt.server_args import ServerArgs
    except ImportError as error:
        return [{"imported": False, "problem": str(error)} for _ in commands]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    argparse.ArgumentParser.error = refuse
    found = []
    for command in commands:
        try:
            _, unknown = parser.parse_known_args(command)
            problem = "unknown: " + " ".join(unknown) if unknown else None
        except Refused as error:
            problem = str(error)
        found.append({"imported": True, "version": sglang.__version__, "problem": problem})
    return found
print("\\n" + json.dumps(verdicts()))
"""


class ParserVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """``imported`` is false where SGLang cannot be imported; then ``problem`` says why and nothing was checked."""

    imported: bool
    version: str | None = None
    problem: str | None = None
    """What the parser refuses; ``None`` if it takes the command."""


def ask_parser(
    python: str, commands: Sequence[Sequence[str]], env: Mapping[str, str] | None = None
) -> tuple[ParserVerdict, ...]:
    """Let the parser of the SGLang in ``python``'s environment read each command's flags; one verdict each.

    Blocks for seconds; raises nothing. ``env`` is the whole environment of the process; ``None``: our own.
    """
    try:
        done = subprocess.run(
            [python, "-c", _PROGRAM],
            input=msgspec.json.encode(commands).decode(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=env,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return tuple(ParserVerdict(imported=False, problem=str(error)) for _ in commands)
    last = done.stdout.strip().rpartition("\n")[2]
    try:
        return msgspec.json.decode(last, type=tuple[ParserVerdict, ...])
    except msgspec.MsgspecError:
        problem = (done.stderr.strip() or done.stdout.strip())[-500:]
        return tuple(ParserVerdict(imported=False, problem=problem) for _ in commands)
