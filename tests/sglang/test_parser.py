"""Every profile's command before the real SGLang's own argument parser, in the engine's environment."""

from __future__ import annotations

import os

import pytest

from serve.argcheck import ask_parser
from serve.argv import flag_groups, sglang_command
from serve.profile import load_profile
from serve.sglang_cpu import ENGINE_PATH
from serve.sglang_flags import LAST_KNOWN, RENAMED, added_in, dropped_in
from tests.profiles import SGLANG_PROFILES, site_for
from tests.sglang.engine import installed_engine

pytestmark = pytest.mark.sglang


def test_the_real_parser_takes_every_profiles_command_and_refuses_what_was_dropped() -> None:
    engine = installed_engine()
    profiles = [load_profile(name) for name in SGLANG_PROFILES]
    commands = [sglang_command(profile, site_for(profile)) for profile in profiles]
    flags = [[word for words in flag_groups(command.argv) for word in words] for command in commands]
    gone = [old for old in RENAMED if dropped_in(old) is not None]
    new = sorted({renamed.flag for renamed in RENAMED.values()})
    asked = [*flags, *(["--model-path", "m", old] for old in gone), *(["--model-path", "m", flag] for flag in new)]
    env = {**os.environ, "PYTHONPATH": str(ENGINE_PATH), "SGLANG_USE_CPU_ENGINE": "1"}
    verdicts = ask_parser(str(engine.python), asked, env)
    assert {verdict.version for verdict in verdicts} == {LAST_KNOWN}
    for name, verdict in zip(SGLANG_PROFILES, verdicts, strict=False):
        assert verdict.problem is None, name
    rest = verdicts[len(flags) :]
    for old, verdict in zip(gone, rest, strict=False):
        assert verdict.problem is not None, old
        assert "unknown: " + old in verdict.problem
    for flag, verdict in zip(new, rest[len(gone) :], strict=True):
        assert added_in(flag) is None
        assert not (verdict.problem or "").startswith("unknown"), flag
