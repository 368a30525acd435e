"""The rules about MTP layers: which are seen, how they are changed, and what stays as it was."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from serve.patches import Facts, Status
from serve.patches.gptq_mtp import look_at_rules
from serve.patches.jsonspan import exchanged, locate, members
from tests.patch_sources import EXCLUDE_RULE, INCLUDE_RULES, MTP_TENSORS, OTHER_RULES, model_config

PLAIN = Facts(mtp_tensors=MTP_TENSORS)
QUANTISED = Facts(mtp_tensors=("mtp.fc.qweight", "mtp.fc.scales", "mtp.norm.weight"))
FLIPPED: dict[str, Any] = {"-:.*mtp.*": {}, r"-:.*mtp\.fc.*": {}}
ONE_INCLUDE = {"+:.*mtp.*": {"bits": 4}}


@pytest.mark.parametrize(
    ("text", "facts", "status"),
    [
        (model_config(), PLAIN, Status.NEEDED),
        (model_config(indent=None), PLAIN, Status.NEEDED),
        (model_config().replace("\n", "\r\n"), PLAIN, Status.NEEDED),
        (model_config({**OTHER_RULES, **EXCLUDE_RULE}), PLAIN, Status.APPLIED),
        (model_config({**EXCLUDE_RULE, **INCLUDE_RULES}), PLAIN, Status.APPLIED),
        (model_config(FLIPPED), PLAIN, Status.FIXED_UPSTREAM),
        (model_config({"-:.*mtp.*": {}}), PLAIN, Status.FIXED_UPSTREAM),
        (model_config({"-:^mtp": {}}), PLAIN, Status.FIXED_UPSTREAM),
        (model_config({**INCLUDE_RULES, **EXCLUDE_RULE}), PLAIN, Status.UNKNOWN_SHAPE),
        (model_config(ONE_INCLUDE), PLAIN, Status.UNKNOWN_SHAPE),
        (model_config({**INCLUDE_RULES, "+:.*mtp.norm": {}}), PLAIN, Status.UNKNOWN_SHAPE),
        (model_config({"+:.*": {"bits": 8}, **INCLUDE_RULES}), PLAIN, Status.UNKNOWN_SHAPE),
        (model_config({"(": {}, **INCLUDE_RULES}), PLAIN, Status.UNKNOWN_SHAPE),
        (model_config({}), PLAIN, Status.UNKNOWN_SHAPE),
        (model_config(), Facts(), Status.UNKNOWN_SHAPE),
        (model_config(), QUANTISED, Status.NOT_APPLICABLE),
        (model_config(OTHER_RULES), Facts(), Status.NOT_APPLICABLE),
        (model_config(quant_method="awq"), PLAIN, Status.NOT_APPLICABLE),
        ("{}", PLAIN, Status.NOT_APPLICABLE),
        ("[1]", PLAIN, Status.NOT_APPLICABLE),
        ("{", PLAIN, Status.UNKNOWN_SHAPE),
        ("\ufeff{}", PLAIN, Status.UNKNOWN_SHAPE),
    ],
)
def test_shapes(text: str, facts: Facts, status: Status) -> None:
    look = look_at_rules(text, facts)

    assert look.status is status, look.detail
    assert (look.patched is not None) == (status is Status.NEEDED)


@pytest.mark.parametrize("indent", [None, 2, 4])
@pytest.mark.parametrize("first", [True, False])
def test_two_include_rules_become_one_exclude_rule(indent: int | None, first: bool) -> None:
    rules = {**INCLUDE_RULES, **OTHER_RULES} if first else {**OTHER_RULES, **INCLUDE_RULES}

    patched = look_at_rules(model_config(rules, indent=indent), PLAIN).patched

    assert patched is not None
    expected = {**EXCLUDE_RULE, **OTHER_RULES} if first else {**OTHER_RULES, **EXCLUDE_RULE}
    assert patched == model_config(expected, indent=indent)
    assert look_at_rules(patched, PLAIN).status is Status.APPLIED


def test_rules_apart_from_each_other() -> None:
    (one, first), (two, second) = INCLUDE_RULES.items()
    patched = look_at_rules(model_config({one: first, **OTHER_RULES, two: second}), PLAIN).patched

    assert patched == model_config({**EXCLUDE_RULE, **OTHER_RULES})


def test_line_ends_stay() -> None:
    patched = look_at_rules(model_config().replace("\n", "\r\n"), PLAIN).patched

    assert patched == model_config({**OTHER_RULES, **EXCLUDE_RULE}).replace("\n", "\r\n")


def test_a_repeated_rule_is_left_alone() -> None:
    text = model_config().replace('"-:.*visual.*"', '"-:.*linear_attn.*"')

    look = look_at_rules(text, PLAIN)

    assert look.status is Status.UNKNOWN_SHAPE
    assert "repeated key" in look.detail


def _override(dynamic: dict[str, Any], name: str) -> Any:
    """How SGLang reads the rules (0.5.23 ``get_dynamic_override`` without a key)."""
    for pattern, figures in dynamic.items():
        if pattern.startswith("-:"):
            if re.match(pattern.removeprefix("-:"), name):
                return False
        elif re.match(pattern.removeprefix("+:"), name):
            return figures
    return None


def test_the_engine_then_reads_mtp_layers_as_plain_and_all_others_as_before() -> None:
    patched = look_at_rules(model_config(), PLAIN).patched
    assert patched is not None
    before = json.loads(model_config())["quantization_config"]["dynamic"]
    after = json.loads(patched)["quantization_config"]["dynamic"]

    for name in ("mtp.fc", "mtp.layers.0.self_attn.qkv_proj", "mtp.layers.0.mlp.gate_up_proj"):
        assert _override(before, name) == {"bits": 4, "group_size": 64}
        assert _override(after, name) is False
    for name in ("model.layers.0.mlp.down_proj", "model.layers.3.linear_attn.in_proj", "visual.blocks.1"):
        assert _override(before, name) == _override(after, name)


def test_spans_at_any_depth() -> None:
    text = '{"a": {"b,\\"c}": [1, {"x": "}"}], "d" : null}, "e": 1.50}'
    inner = members(text, locate(text, "a"))

    assert [(text[m.start : m.value], text[m.value : m.end]) for m in inner] == [
        ('"b,\\"c}": ', '[1, {"x": "}"}]'),
        ('"d" : ', "null"),
    ]
    assert exchanged(text, inner[1], "f", {"g": 1}) == text.replace('"d" : null', '"f": {"g": 1}')
    assert members("{ }", 0) == ()


def test_a_rule_that_shares_its_line_stays_on_it() -> None:
    text = '{"a": {\n  "b": 1}, "c": 2}'

    assert exchanged(text, members(text, 0)[0], "d", {"e": 1}) == '{"d": {"e": 1}, "c": 2}'


@pytest.mark.parametrize("keys", [("x",), ("a", "x")])
def test_no_such_key(keys: tuple[str, ...]) -> None:
    with pytest.raises(KeyError):
        locate('{"a": {}}', *keys)
