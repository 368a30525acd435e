"""Resolution of policy files and the errors a person gets to see. Pure."""

from __future__ import annotations

import pytest

from governor.errors import ConfigError
from governor.policy.checks import GOVERNED_FIELDS, contradictions
from governor.policy.model import KeepAlive, LimitPolicy, OutputPolicy, Policy, RequestPolicy
from governor.policy.resolve import BUILT_IN, PolicyFile, Resolved, Source, parse, resolve_agent
from governor.types import AgentClass

SHIPPED = {
    "default": parse("[output]\nfinal = 1000\ntitle = 100\n[request.sampling]\ntop_p = 0.9\n", "default.toml"),
    "hermes": parse('class = "background"\n[output]\nfinal = 2000\n', "hermes.toml"),
}


def resolved(text: str) -> Resolved:
    return resolve_agent(parse(text, "a.toml"), SHIPPED)


def problem(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolved(text)
    return caught.value


def test_nearest_file_wins_and_every_value_knows_its_line() -> None:
    it = resolved('base = "hermes"\n\noutput.title = 50\n[request]\nsampling = { temperature = 0.2 }\n')
    assert it.policy.output == OutputPolicy(final=2000, title=50)
    assert it.policy.agent_class is AgentClass.BACKGROUND
    assert it.policy.request.sampling == {"top_p": 0.9, "temperature": 0.2}
    assert it.sources["output.title"] == Source("a.toml", 3)
    assert it.sources["output.final"] == Source("hermes.toml", 3)
    assert it.sources["class"] == Source("hermes.toml", 1)
    assert it.sources["request.sampling.top_p"] == Source("default.toml", 5)
    assert it.sources["request.sampling.temperature"] == Source("a.toml", 5)
    assert it.sources["output.thinking"] == Source(BUILT_IN)
    assert str(it.sources["output.title"]) == "a.toml:3"
    assert str(it.sources["output.thinking"]) == "built-in"


def test_without_a_file_the_default_holds() -> None:
    it = resolve_agent(None, SHIPPED)
    assert it.policy.output.final == 1000
    assert it.policy.base is None


def test_lists_are_replaced_not_merged() -> None:
    shipped = {"default": parse('models = ["a", "b"]\n', "default.toml")}
    assert resolve_agent(parse('models = ["c"]\n', "a.toml"), shipped).policy.models == ("c",)


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("{{{ not valid", 1, None, "not valid TOML"),
        ("class = 'normal'\nx = [1,\n", 2, None, "not valid TOML"),
        ('class = "normal"\n\nmodels = ["a\n', 3, None, "not valid TOML"),
        ("a = 1\na = 2\n", 2, None, "not valid TOML"),
        ("", None, None, "empty"),
        ("x = " + "[" * 5000, None, None, "nested too deeply"),
        ("x = " + "9" * 5000, None, None, "not valid TOML"),
        ("zzz = 5", 1, "zzz", "unknown key; known here: base, models"),
        ("\n[outptu]\nfinal = 3\n", 2, "outptu", "did you mean 'output'?"),
        ("[output]\n# c\nfinl = 3\n", 3, "output.finl", "did you mean 'final'?"),
        ("output.finl = 3\n", 1, "output.finl", "did you mean 'final'?"),
        ("\noutput = { final = 5000, finl = 3 }\n", 2, "output.finl", "did you mean 'final'?"),
        ("keepalive = 'chunk'\n", 1, "keepalive", "did you mean 'stream.keepalive'?"),
        ("agent_class = 'normal'\n", 1, "agent_class", "unknown key"),
        ("[output]\ntitle = 100\nfinal = -1\n", 3, "output.final", ">= 1, got -1"),
        ("[output]\nfinal = 10000000000000000000000\n", 2, "output.final", "got 10000000000000000000000"),
        ("[output]\nfinal = 8.5\n", 2, "output.final", "`int`, got `float`"),
        ("[output]\nfinal = true\n", 2, "output.final", "`int`, got `bool`"),
        ("\n\noutput = 3\n", 3, "output", "got `int`"),
        ("models = [\n 'a',\n 3]\n", 1, "models", "`str`, got `int`"),
        ("models = ['']\n", 1, "models", "length >= 1"),
        ("models = 'a'\n", 1, "models", "got `str`"),
        ("class = 'interactiv'\n", 1, "class", "did you mean 'interactive'?"),
        ("[stream]\nkeepalive = 'x'\n", 2, "stream.keepalive", "expected `comment` or `chunk`, got 'x'"),
        ("[limits]\nhold_s = inf\n", 2, "limits.hold_s", "got inf"),
        ("[limits]\nhold_s = nan\n", 2, "limits.hold_s", "got nan"),
        ("[limits]\nhold_s = 0\n", 2, "limits.hold_s", "> 0"),
        ("[request.sampling]\na = 1\n\nstop = ['x']\n", 4, "request.sampling.stop", "got `array`"),
        ("[request.sampling]\na = 1\ntemperature = nan\n", 3, "request.sampling.temperature", "cannot be sent"),
        ("request.sampling.max_tokens = 9\n", 1, "request.sampling.max_tokens", "no sampling field"),
        ("\nbase = 'hermse'\n", 2, "base", "did you mean 'hermes'?"),
        ("base = 'zzz'\n", 1, "base", "there are: default, hermes"),
        ("base = 3\n", 1, "base", "got `int`"),
        ("[output]\ntitle = 10\n", 2, "output.title", "output.title (10) is below output.floor (16)"),
        ("[output]\nfloor = 30\ndefault = 20\n", 3, "output.default", "output.default (20) is below output.floor (30)"),
        ("[context]\nceiling_tokens = 16\n", 2, "context.ceiling_tokens", "(16) leaves no room"),
        ("[output]\nthinking = 8192\n", 2, "output.thinking", "(8192) uses up output.tool_step (8192)"),
    ],
)
def test_errors_name_file_line_and_key(text: str, line: int | None, key: str | None, words: str) -> None:
    error = problem(text)
    assert (error.file, error.line, error.key) == ("a.toml", line, key)
    assert words in error.reason
    assert str(error).startswith("a.toml")


def test_a_contradiction_across_files_is_reported_where_the_author_can_mend_it() -> None:
    error = problem("# floor above the default's title\n[output]\nfloor = 200\n")
    assert (error.file, error.line, error.key) == ("a.toml", 3, "output.floor")
    assert "output.title (100)" in error.reason
    assert "output.title from default.toml" in error.reason


def test_a_bad_shipped_file_is_named_itself() -> None:
    shipped = {**SHIPPED, "bad": PolicyFile(file="bad.toml", tree={"nope": 1}, lines={("nope",): 7})}
    with pytest.raises(ConfigError) as caught:
        resolve_agent(parse("base = 'bad'\n", "a.toml"), shipped)
    assert (caught.value.file, caught.value.line, caught.value.key) == ("bad.toml", 7, "nope")


def test_model_defaults_agree_with_each_other() -> None:
    assert list(contradictions(Policy())) == []


def test_fields_that_other_keys_govern_are_no_sampling_fields() -> None:
    for name in GOVERNED_FIELDS:
        assert list(contradictions(Policy(request=RequestPolicy(sampling={name: 1}))))


def test_values_reach_the_model_as_its_types() -> None:
    policy = resolved("[stream]\nkeepalive = 'chunk'\n[limits]\nhold_s = 5\nturns_per_minute = 3\n").policy
    assert policy.stream.keepalive is KeepAlive.CHUNK
    assert policy.limits == LimitPolicy(hold_s=5.0, turns_per_minute=3)
