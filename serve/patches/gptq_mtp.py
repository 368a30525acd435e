"""The change to a GPTQ model's ``config.json`` that says of its MTP layers what is in the weights. Pure.

``quantization_config.dynamic`` is a list of rules, read in order, the first that matches wins: ``-:`` leaves a module
unquantised, any other gives it other figures (SGLang 0.5.23 ``layers/quantization/utils.py:254`` get_dynamic_override).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from serve.patches.jsonspan import exchanged, locate, members
from serve.patches.model import Facts, Look, Patch, Place, Status, unknown

MTP_ID = "gptq-mtp-rules"
_WHERE = ("quantization_config", "dynamic")
_INCLUDE = ("+:.*mtp.*", r"+:.*mtp\.fc.*")
_EXCLUDE = "-:.*mtp.*"
_EXCLUDED_AS = {"bits": 16, "group_size": 128}
_QUANTISED_PARTS = (".qweight", ".qzeros", ".scales", ".g_idx")
_EXPECTED = f"the two rules {_INCLUDE[0]!r} and {_INCLUDE[1]!r} about MTP layers, or a rule that excludes them"


def look_at_rules(text: str, facts: Facts) -> Look:
    """Whether the rules exclude the MTP layers that are not quantised."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        return unknown("JSON", str(error))
    quantisation = config.get(_WHERE[0]) if isinstance(config, dict) else None
    if not isinstance(quantisation, dict) or quantisation.get("quant_method") != "gptq":
        return Look(status=Status.NOT_APPLICABLE, detail="the weights are not GPTQ")
    rules = quantisation.get(_WHERE[1])
    if not isinstance(rules, dict):
        rules = {}
    about_mtp = [pattern for pattern in rules if "mtp" in pattern]
    modules = _modules(facts)
    if not about_mtp and not modules:
        return Look(status=Status.NOT_APPLICABLE, detail="neither rules nor weights of MTP layers")
    if any(name.endswith(_QUANTISED_PARTS) for name in facts.mtp_tensors):
        return Look(status=Status.NOT_APPLICABLE, detail="the MTP layers are quantised, as the rules say")
    try:
        if _excludes_all(rules, modules):
            if rules.get(_EXCLUDE) == _EXCLUDED_AS:
                return Look(status=Status.APPLIED, detail=f"{_EXCLUDE!r} excludes the MTP layers")
            return Look(status=Status.FIXED_UPSTREAM, detail=f"excluded already: {', '.join(about_mtp)}")
        if sorted(about_mtp) != sorted(_INCLUDE) or not all(isinstance(rules[rule], dict) for rule in _INCLUDE):
            return unknown(_EXPECTED, ", ".join(map(repr, about_mtp)) or "no rule about them")
        if not facts.mtp_tensors:
            return unknown("the MTP layers' weights in the folder, to see that they are not quantised", "none")
        patched = _edited(text)
        if patched is None or not _excludes_all(json.loads(patched)[_WHERE[0]][_WHERE[1]], modules):
            return unknown(_EXPECTED, "a repeated key, or an earlier rule that takes the MTP layers first")
    except re.error as error:
        return unknown("rules that are regular expressions", str(error))
    return Look(
        status=Status.NEEDED, detail="the rules call the MTP layers quantised; their weights are not", patched=patched
    )


def _edited(text: str) -> str | None:
    """The exclude rule in the place of the first include rule, the second one gone; ``None`` where a key repeats."""
    try:
        rules = members(text, locate(text, *_WHERE))
    except KeyError:
        return None
    places = [index for index, rule in enumerate(rules) if rule.key in _INCLUDE]
    if len(places) != len(_INCLUDE) or len({rule.key for rule in rules}) != len(rules):
        return None
    first, second = places
    without_second = text[: rules[second - 1].end] + text[rules[second].end :]
    return exchanged(without_second, rules[first], _EXCLUDE, _EXCLUDED_AS)


def _modules(facts: Facts) -> frozenset[str]:
    return frozenset(name.rsplit(".", 1)[0] for name in facts.mtp_tensors)


def _excludes_all(rules: Mapping[str, Any], modules: frozenset[str]) -> bool:
    """Without weights to look at, the two that the field's rules name stand for all."""
    return all(_is_excluded(rules, module) for module in modules or {"mtp.fc", "mtp.layers.0.mlp.down_proj"})


def _is_excluded(rules: Mapping[str, Any], module: str) -> bool:
    for pattern in rules:
        if pattern.startswith("-:"):
            if re.match(pattern.removeprefix("-:"), module):
                return True
        elif re.match(pattern.removeprefix("+:"), module):
            return False
    return False


MTP_RULES = Patch(
    id=MTP_ID,
    title="GPTQ config.json: the MTP layers are not quantised",
    why=(
        "The weights hold the MTP layers as plain bfloat16, while two rules call them 4-bit. The loader believes the "
        "rules, builds quantised layers and finds no weights for them: no speculative decoding."
    ),
    evidence=(
        "field: both machines with 2x RX 7900 XTX, Qwen3.8-27B-W4A16-AutoRound-GPTQ",
        "vllm-project/vllm #47828, #48816, #54456: the same in another engine",
    ),
    versions="every SGLang: the fault is in the weights' configuration",
    place=Place.MODEL,
    targets=("config.json",),
    look=look_at_rules,
    afterwards="Start the engine again.",
)
