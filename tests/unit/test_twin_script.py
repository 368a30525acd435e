"""Files of rules: which one decides, and what is wrong with a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve.twin_server.faults import Cut, SlowStart
from serve.twin_server.script import Asked, BadScript, load_script, parse_script
from serve.twin_server.wishes import Wish, WishedCall

_SCRIPT = """\
[[rule]]
name = "weather"
match = { last_user = "weather", agent = "hermes" }
[rule.answer]
reasoning = "Which city?"
calls = [{ name = "get_weather", arguments = { city = "Oslo" } }]
[[rule.faults]]
kind = "cut"
after_tokens = 3
every = 5

[[rule]]
match = { turn = 2 }
answer = { tokens = 40 }

[[rule]]
answer = { text = "Yes." }

[[faults]]
kind = "slow_start"
seconds = 2.5
"""


def test_the_first_rule_that_matches_decides() -> None:
    script = parse_script(_SCRIPT, "s.toml")
    weather, second, rest = script.rules
    assert script.rule_for(Asked(last_user="the weather?", agent="hermes", turn=2)) is weather
    assert script.rule_for(Asked(last_user="the weather?", agent="other", turn=2)) is second
    assert script.rule_for(Asked(last_user="Weather", agent="hermes")) is rest
    assert [rule.name for rule in script.rules] == ["weather", "rule 2", "rule 3"]


def test_what_a_rule_says() -> None:
    script = parse_script(_SCRIPT, "s.toml")
    call = WishedCall(name="get_weather", arguments={"city": "Oslo"})
    assert script.rules[0].answer == Wish(reasoning="Which city?", calls=(call,))
    assert script.rules[0].faults == (Cut(after_tokens=3, every=5),)
    assert script.rules[1].answer == Wish(tokens=40)
    assert script.faults == (SlowStart(seconds=2.5),)


def test_no_rule_may_match() -> None:
    script = parse_script('[[rule]]\nmatch = { agent = "a" }', "s.toml")
    assert script.rule_for(Asked(last_user="")) is None
    assert parse_script("", "s.toml").rule_for(Asked(last_user="")) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[rule]]\nmatch = { user = 'x' }", "unknown field `user` - at `rule[0].match`"),
        ("[[rule]]\n[[rule]]\nmatch = { turn = '2' }", "Expected `int | null`, got `str` - at `rule[1].match.turn`"),
        ("[[rules]]", "unknown field `rules`"),
        ("[[rule]]\nanswer = { tokens = 3, text = 'a' }", "either tokens or text - at `rule[0].answer`"),
        ("[[rule]]\n[[rule.faults]]\nkind = 'slow_start'\nseconds = 3", "'slow_start' - at `rule[0].faults[0].kind`"),
        ("[[faults]]\nkind = 'delay'", "missing required field `seconds` - at `faults[0]`"),
        ("[[rule]]\nname = 'a'\n[[rule]]\nname = 'a'", "rule: more than one is named a"),
        ("[[rule]\n", "is not TOML"),
    ],
)
def test_a_bad_script_is_named(text: str, says: str) -> None:
    with pytest.raises(BadScript) as caught:
        parse_script(text, "s.toml")
    assert str(caught.value).startswith("s.toml: ")
    assert says in str(caught.value)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    with pytest.raises(BadScript, match="cannot be read"):
        load_script(path)
    path.write_text(_SCRIPT)
    assert len(load_script(path).rules) == 3
    path.write_bytes(b"\xff")
    with pytest.raises(BadScript, match="cannot be read"):
        load_script(path)
