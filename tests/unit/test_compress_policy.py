"""The section on compression: what contradicts itself is refused with the key at fault."""

from __future__ import annotations

import pytest

from governor.errors import ConfigError
from governor.policy.keys import all_keys
from governor.policy.loader import load_shipped, shipped_folder
from governor.policy.model import CompressionMode, CompressionStage
from governor.policy.resolve import parse, resolve_agent

SHIPPED = load_shipped(shipped_folder())


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("target = 0.8", "target", "target (0.8) is not below compression.trigger (0.8): it would be due again"),
        ("trigger = 9000\ntarget = 9000", "target", "target (9000) is not below compression.trigger (9000)"),
        ("gain = 0.4", "gain", "gain (0.4) is more than lies between compression.trigger (0.8) and compression.target"),
        ("recent = 0.5", "recent", "recent (0.5) is not below compression.target (0.5)"),
        ("oversized = 0.6", "oversized", "oversized (0.6) is not below compression.target (0.5)"),
        ("trim_target_tokens = 2000", "trim_target_tokens", "a trimmed result would be trimmed again"),
        ('stages = ["trim", "stub", "trim"]', "stages", "names a stage twice"),
        ('stages = ["trim", "gzip"]', "stages", "expected list of `reasoning`, `repeated`"),
        ("trigger = 0", "trigger", "Expected `float` > 0"),
        ("recall_tool = true", "recall_tool", 'needs compression.mode = "enforce", not "off": nothing else takes'),
        ('recall_tool = true\nmode = "observe"', "recall_tool", 'not "observe"'),
        ('mode = "enfoce"', "mode", "did you mean 'enforce'?"),
    ],
)
def test_contradictions(text: str, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_agent(parse(f"[compression]\n{text}\n", "a.toml"), SHIPPED)
    assert f"compression.{key}: " in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["trigger = 60000", "target = 40000", "trigger = 1.0", "stages = []", "gain = 4000"])
def test_what_only_the_window_can_tell_is_let_through(text: str) -> None:
    resolve_agent(parse(f"[compression]\n{text}\n", "a.toml"), SHIPPED)


def test_off_until_asked_for_and_least_loss_first() -> None:
    it = resolve_agent(None, SHIPPED).policy.compression
    assert it.mode is CompressionMode.OFF
    assert it.stages == tuple(CompressionStage)
    assert it.stages[0] is CompressionStage.REASONING
    assert it.stages[-1] is CompressionStage.DROP


def test_a_list_of_choices_tells_them() -> None:
    key = next(key for key in all_keys() if key.dotted == "compression.stages")
    assert key.type_text.startswith("list of `reasoning`, `repeated`")
