"""The plan against what people measured: capacities, the incident, what decodes together, what a return takes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serve.plan import Demand, Plan, PlanInputs, make_plan
from serve.plan.cost import fit_line, fit_prefill
from serve.plan.known import QWEN_27B, TINY_HYBRID
from serve.plan.machines import BY_PROFILE, machine_for
from serve.plan.pools import DoesNotFit, default_mem_fraction
from serve.plan.shape import UnknownShape, bits_named, shape_of
from serve.profile import Profile, load_profile
from serve.sglang_settings import GB
from tests.profiles import SGLANG_PROFILES

DATA = Path(__file__).parents[1] / "data" / "capacity.toml"
ROWS: list[dict[str, Any]] = tomllib.loads(DATA.read_text())["row"]
WINDOW = 196_608


def row_profile(row: dict[str, Any]) -> Profile:
    """The published engine as a profile."""
    assumed = row["assumed"]
    hicache = {key: row[key] for key in ("size_gb", "ratio") if key in row}
    tree: dict[str, Any] = {
        "summary": row["id"],
        "engine": "sglang",
        "model": {"hybrid": True, **({"kv_cache_dtype": "fp8_e4m3"} if row.get("kv_bytes") == 1 else {})},
        "parallel": {"tp_size": row["tp"]},
        "memory": {
            "page_size": row["page"],
            "max_running_requests": assumed["max_running"],
            "chunked_prefill_size": row.get("chunk", 4096),
            **({"mem_fraction_static": assumed["mem_fraction"]} if "mem_fraction" in assumed else {}),
        },
        "mamba": {
            **({"max_cache_size": assumed["slots"]} if "slots" in assumed else {}),
            **({"ssm_dtype": row["ssm"]} if "ssm" in row else {}),
        },
        "hicache": {"enabled": True, **hicache} if hicache else {},
    }
    if row["draft_tokens"]:
        tree["speculative"] = {"algorithm": "NEXTN", "num_draft_tokens": row["draft_tokens"]}
    return msgspec.convert(tree, Profile)


def row_plan(row: dict[str, Any]) -> Plan:
    weights = QWEN_27B.weight_bytes(row["weight_bits"])
    return make_plan(row_profile(row), QWEN_27B, PlanInputs(gpu_gib=row["gpu_gib"], weight_bytes=weights))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_published_capacities_are_met(row: dict[str, Any]) -> None:
    made = row_plan(row)
    found = {"kv_tokens": float(made.device.tier.kv_tokens)}
    if made.host is not None:
        found["host_kv_tokens"] = made.host.kv_tokens
        found["host_kv_gb"] = made.host.kv_bytes / GB
        found["host_state_gb"] = made.host.state_bytes / GB
    assert row["published"]
    for name, published in row["published"].items():
        assert found[name] == pytest.approx(published, rel=0.1), name


@pytest.mark.parametrize("row", [r for r in ROWS if "size_gb" in r or "ratio" in r], ids=lambda row: row["id"])
def test_the_host_pool_follows_from_the_device_pool_closely(row: dict[str, Any]) -> None:
    """Given the published L1, nothing of L2 is assumed but the number of states."""
    profile = row_profile(row)
    memory = msgspec.structs.replace(profile.memory, max_total_tokens=row["published"]["kv_tokens"])
    slots = row_plan(row).device.tier.state_slots
    mamba = msgspec.structs.replace(profile.mamba, max_cache_size=slots)
    made = make_plan(msgspec.structs.replace(profile, memory=memory, mamba=mamba), QWEN_27B)
    assert made.host is not None
    assert made.host.kv_tokens == pytest.approx(row["published"]["host_kv_tokens"], rel=0.015)


def test_the_pools_are_those_that_a_real_engine_printed() -> None:
    """SGLang 0.5.23 with the tiny model on a processor, 8192 tokens, 32 states, ratio 2: it allocated 16,448 tokens
    and 65 states of host memory and set max_running_requests to 4."""
    profile = load_profile("sglang-cpu")
    replace = msgspec.structs.replace
    small = replace(
        profile,
        memory=replace(profile.memory, max_total_tokens=8192),
        mamba=replace(profile.mamba, max_cache_size=32),
    )
    made = make_plan(small, TINY_HYBRID)
    assert (made.device.tier.kv_tokens, made.device.tier.state_slots, made.device.requests) == (8192, 32, 4)
    assert made.host is not None
    assert (made.host.kv_tokens, made.host.state_slots) == (16_448, 65)


def test_a_page_and_a_state_are_as_large_as_the_files_that_a_real_engine_wrote() -> None:
    """SGLang 0.5.23 with the tiny model: 16,384 bytes a page of 64 tokens, 53,760 a state."""
    assert 64 * TINY_HYBRID.kv_bytes_per_token() == 16_384
    assert TINY_HYBRID.state_bytes() == 53_760


def test_a_state_costs_as_many_tokens_as_measured() -> None:
    """21 states and 158,116 tokens became 10 and 182,901 (noonghunna/club-3090, pull request 1331): 2,253.2 each."""
    kv = QWEN_27B.kv_bytes_per_token(itemsize=1, with_draft=True)
    assert QWEN_27B.state_bytes(ssm_itemsize=2) / kv == pytest.approx((182_901 - 158_116) / 11, abs=0.1)


def test_the_shape_of_the_27b_is_the_published_one() -> None:
    assert QWEN_27B.parameters == pytest.approx(27.78e9, rel=0.001)
    assert QWEN_27B.weight_bytes(16) == pytest.approx(55.56e9, rel=0.001)
    assert QWEN_27B.state_bytes() == 153_944_064


def incident(*, agents: int = 4) -> Plan:
    machine = BY_PROFILE["rx7900xtx-tp2"]
    inputs = PlanInputs(weight_bytes=QWEN_27B.weight_bytes(4.156), measured=machine.capacity, costs=machine.costs)
    demands = [Demand(name=f"agent {at}", ceiling_tokens=int(0.65 * WINDOW)) for at in range(agents)]
    return make_plan(load_profile("rx7900xtx-tp2"), QWEN_27B, inputs, demands)


def test_the_incident() -> None:
    made = incident()
    assert made.fit is not None
    assert made.fit.need_tokens == 4 * 127_795 == 511_180
    assert made.l1.kv_tokens == 231_914
    assert made.fit.active == 2
    # Two contexts of 65 % are 255,590: both cannot be at their thresholds at once.
    assert made.fit.decode_at_ceiling == 1
    assert made.fit.active_each_tokens == 115_957
    assert made.fit.retained_l2 == 3
    for figure in ("511,180", "231,914", "two can be active", "115,957 each", "L2 keeps three of the four"):
        assert figure in made.verdict


@pytest.mark.parametrize(
    ("agents", "context", "fits"),
    [(2, 114_000, True), (3, 74_000, True), (2, 120_000, False), (3, 80_000, False)],
)
def test_what_was_seen_to_decode_together(agents: int, context: int, fits: bool) -> None:
    machine = BY_PROFILE["rx7900xtx-tp2"]
    demands = [Demand(name=str(at), ceiling_tokens=context) for at in range(agents)]
    inputs = PlanInputs(weight_bytes=QWEN_27B.weight_bytes(4.156), measured=machine.capacity)
    found = make_plan(load_profile("rx7900xtx-tp2"), QWEN_27B, inputs, demands).fit
    assert found is not None
    assert (found.decode_at_ceiling == agents) is fits


def test_agents_that_fit_are_told_so() -> None:
    made = incident(agents=1)
    assert "all fit" in made.verdict
    assert made.fit is not None
    assert made.fit.decode_at_ceiling == 1


def test_an_agent_larger_than_l1_is_named() -> None:
    demands = [Demand(name="hog", ceiling_tokens=400_000), Demand(name="small", ceiling_tokens=1000)]
    made = make_plan(load_profile("sglang-cpu"), TINY_HYBRID, demands=demands)
    assert made.fit is not None
    assert made.fit.too_large == ("hog",)
    assert "hog can grow past L1 alone" in made.verdict


@pytest.mark.parametrize(
    ("tokens", "cold", "l1", "l2"), [(65_536, 50.78, 0.431, 0.546), (122_880, 121.49, 0.711, 0.896)]
)
def test_returns_are_as_measured(tokens: int, cold: float, l1: float, l2: float) -> None:
    machine = BY_PROFILE["rx7900xtx-tp2"]
    inputs = PlanInputs(weight_bytes=QWEN_27B.weight_bytes(4.156), costs=machine.costs)
    made = make_plan(load_profile("rx7900xtx-tp2"), QWEN_27B, inputs, [Demand(name="a", ceiling_tokens=tokens)])
    seconds = {cost.tier: cost.seconds for cost in made.returns}
    assert seconds["cold"] == pytest.approx(cold, rel=0.02)
    assert seconds["l1"] == pytest.approx(l1, rel=0.05)
    assert seconds["l2"] == pytest.approx(l2, rel=0.05)
    assert seconds["l3"] is not None
    assert seconds["l2"] is not None
    assert seconds["l2"] < seconds["l3"] < cold


def test_the_fit_of_the_prefill_is_the_published_one() -> None:
    a, b = fit_prefill([(65_536, 50.78), (122_880, 121.49), (196_608, 243.81)])
    assert a == pytest.approx(5.42e-4, rel=0.02)
    assert b == pytest.approx(3.55e-9, rel=0.03)
    assert fit_line([(10, 3.0), (20, 5.0)]) == pytest.approx((1.0, 0.2))
    assert fit_prefill([(50_000, 5.0)]) == (1e-4, 0.0)


def test_a_fraction_left_to_sglang_is_told() -> None:
    profile = load_profile("nvidia-single")
    assert default_mem_fraction(profile, QWEN_27B, 80) < default_mem_fraction(profile, QWEN_27B, 141)
    plain = msgspec.structs.replace(QWEN_27B, vision=None)
    assert default_mem_fraction(profile, QWEN_27B, 80) < default_mem_fraction(profile, plain, 80)
    unset = msgspec.structs.replace(profile, memory=msgspec.structs.replace(profile.memory, mem_fraction_static=None))
    made = make_plan(unset, QWEN_27B, PlanInputs(gpu_gib=141, weight_bytes=31 * GB))
    assert any("mem_fraction_static is unset" in note for note in made.notes)


def test_weights_that_do_not_fit_are_refused_with_figures() -> None:
    with pytest.raises(DoesNotFit, match=r"27\.8 GB a GPU leave nothing"):
        make_plan(load_profile("rx7900xtx-tp2"), QWEN_27B, PlanInputs(weight_bytes=QWEN_27B.weight_bytes(16)))


@pytest.mark.parametrize("name", [n for n in SGLANG_PROFILES if n != "sglang-cpu"])
def test_every_profile_has_a_plan_with_ample_memory(name: str) -> None:
    made = make_plan(load_profile(name), QWEN_27B, PlanInputs(gpu_gib=141, weight_bytes=31 * GB))
    assert made.l1.kv_tokens > 0
    assert made.verdict.endswith(".")


def test_an_embedded_engine_has_a_window_for_each_slot() -> None:
    made = make_plan(load_profile("embedded"), msgspec.structs.replace(TINY_HYBRID, linear_layers=0))
    assert made.l1.kv_tokens == 2 * 131_072
    assert made.device.requests == 2


HYBRID_CONFIG = {
    "text_config": {
        "num_hidden_layers": 8,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
    },
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128},
}


def test_a_shape_is_read_from_a_configuration() -> None:
    shape = shape_of(HYBRID_CONFIG, "x")
    assert (shape.full_layers, shape.linear_layers, shape.head_dim) == (2, 6, 16)
    assert shape.kv_bytes_per_token(with_draft=True) == 3 * 2 * 16 * 2 * 2
    assert shape.state_bytes() == 6 * (4 * 16 * 16 * 4 + (2 * 2 * 16 + 4 * 16) * 3 * 2)
    assert shape.weight_bits == pytest.approx(4.156, abs=0.001)


def test_more_ranks_than_kv_heads_hold_one_head_each() -> None:
    assert QWEN_27B.kv_bytes_per_token(tp=8) == QWEN_27B.kv_bytes_per_token(tp=4)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ({}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"layer_types": ["full_attention"] * 2}, "lists 2 layers and counts 1"),
        ({"quantization_config": 5}, "quantization_config"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ({"layer_types": ["linear_attention"], "linear_num_value_heads": 0}, "1 layers without full attention"),
    ],
)
def test_what_a_configuration_lacks_is_named(text: dict[str, Any], missing: str) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "vocab_size": 2}
    config = {**sizes, **text} if text else {"hidden_size": 8}
    with pytest.raises(UnknownShape, match=missing):
        shape_of(config, "x")


def test_measurements_are_of_the_model_that_ran() -> None:
    quantised = msgspec.structs.replace(QWEN_27B, name="my-gptq", weight_bits=4.156)
    assert machine_for("rx7900xtx-tp2", quantised) is BY_PROFILE["rx7900xtx-tp2"]
    assert machine_for("rx7900xtx-tp2", TINY_HYBRID) is None
    assert machine_for("sglang-cpu", TINY_HYBRID) is None


def test_bits_are_known_by_name() -> None:
    found = [bits_named(n) for n in ("a-NVFP4", "b-GPTQ", "c-FP8", "plain")]
    assert found == [4.5, pytest.approx(4.156, abs=0.001), 8.0, None]
