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
class Refused(Exception): pass
def refuse(self, message): raise Refused(message)
try:
    from sglang.srt.server_args import ServerArgs
    import sglang
except ImportError as error:
    print("\\n" + json.dumps({"imported": False, "problem": str(error)})); sys.exit(0)
parser = argparse.ArgumentParser(allow_abbrev=False)
ServerArgs.add_cli_args(parser)
argparse.ArgumentParser.error = refuse
try:
    _, unknown = parser.parse_known_args(sys.argv[1:])
    problem = "unknown: " + " ".join(unknown) if unknown else None
except Refused as error:
    problem = str(error)
print("\\n" + json.dumps({"imported": True, "version": sglang.__version__, "problem": problem}))
"""


class ParserVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """``imported`` is false where SGLang cannot be imported; then ``problem`` says why and nothing was checked."""

    imported: bool
    version: str | None = None
    problem: str | None = None
    """What the parser refuses; ``None`` if it takes the command."""


def ask_parser(python: str, flags: Sequence[str], env: Mapping[str, str] | None = None) -> ParserVerdict:
    """Let the parser of the SGLang in ``python``'s environment read ``flags``. Blocks for seconds; raises nothing.

    ``env`` is the whole environment of the process; ``None``: our own.
    """
    try:
        done = subprocess.run(
            [python, "-c", _PROGRAM, *flags], capture_output=True, text=True, timeout=TIMEOUT_S, env=env, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return ParserVerdict(imported=False, problem=str(error))
    try:
        return msgspec.json.decode(done.stdout.rpartition("\n{")[2].join(("{", "")), type=ParserVerdict)
    except msgspec.MsgspecError:
        return ParserVerdict(imported=False, problem=(done.stderr.strip() or done.stdout.strip())[-500:])
