"""Fitting: the solver, what rows can tell, what is assumed, the shipped machines, and what is said of a bad file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import ServeError
from serve.twin.cost import Cost
from serve.twin.engine_model import EngineSettings
from serve.twin.fit import fit
from serve.twin.least_squares import Equation, relative_fit
from serve.twin.machine import load_machine, machine_names, machine_toml
from serve.twin.measured import (
    Assumption,
    DecodeRow,
    GapKind,
    GapRow,
    HitRow,
    HitTier,
    Measured,
    PrefillRow,
    parse_measured,
    read_measured,
    shipped_measured,
)
from serve.twin.tiers_model import TierSettings

ENGINE = EngineSettings(
    tiers=TierSettings(device_tokens=65_536, host_tokens=131_072, storage_tokens=1_000_000),
    context_tokens=65_536,
    accept_length=2.0,
)
TRUE = Cost(
    prefill_token_s=5e-4,
    prefill_square_s=4e-9,
    decode_step_s=0.02,
    decode_request_s=0.005,
    decode_kv_token_s=1e-7,
    request_s=0.1,
    request_token_s=4e-6,
    host_read_token_s=2e-6,
    host_read_s=0.03,
    storage_read_token_s=5e-5,
    storage_read_s=0.2,
)
MINIMAL = """
name = "box"
summary = "A box"
[engine]
context_tokens = 4096
[engine.tiers]
device_tokens = 4096
[[prefill]]
context = 1024
seconds = 1.0
[[decode]]
context = 512
output = 64
rate = 40.0
"""


def measured(**rows: object) -> Measured:
    return msgspec.convert({"name": "box", "summary": "", "engine": msgspec.to_builtins(ENGINE)} | rows, Measured)


def true_prefill(context: int) -> PrefillRow:
    seconds = TRUE.arrival_s(context) + TRUE.prefill_s(0, context)
    return PrefillRow(context=context, seconds=seconds)


def true_hit(tier: HitTier, context: int, tail: int = 64) -> HitRow:
    found = context - tail
    seconds = TRUE.arrival_s(context) + TRUE.prefill_s(found, tail)
    seconds += TRUE.host_read_time(found) if tier is not HitTier.DEVICE else 0
    seconds += TRUE.storage_read_time(found) if tier is HitTier.STORAGE else 0
    return HitRow(tier=tier, context=context, tail=tail, seconds=seconds)


def true_decode(requests: int, context: int) -> DecodeRow:
    step = TRUE.decode_s(requests, requests * (context + 32))
    return DecodeRow(requests=requests, context=context, output=64, rate=2.0 * requests / step)


ALL_ROWS = msgspec.structs.replace(
    measured(),
    prefill=tuple(true_prefill(context) for context in (4096, 16_384, 60_000)),
    hit=tuple(true_hit(tier, context) for tier in HitTier for context in (8192, 50_000)),
    decode=tuple(true_decode(requests, context) for requests in (1, 2, 4) for context in (0, 16_000, 60_000)),
)


def assert_same(found: Cost, true: Cost, besides: tuple[str, ...] = ()) -> None:
    for field, value in msgspec.structs.asdict(true).items():
        if field not in besides:
            assert msgspec.structs.asdict(found)[field] == pytest.approx(value, rel=1e-3), field


# The solver


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=3))
def test_the_solver_finds_what_made_the_rows(true: list[float]) -> None:
    rows = [[1.0, x, x * x] for x in (0.5, 1.0, 2.0, 3.0, 5.0)]
    equations = [Equation(row, sum(a * b for a, b in zip(row, true, strict=True))) for row in rows]
    assert relative_fit(equations, 3) == pytest.approx(true, rel=1e-4)


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0.1, 10)), min_size=2, max_size=6),
    st.tuples(st.floats(0, 20), st.floats(0, 20)),
)
def test_no_other_coefficients_above_zero_fit_better(
    rows: list[tuple[float, float, float]], other: tuple[float, float]
) -> None:
    equations = [Equation((a, b), total) for a, b, total in rows]

    def error(x: float, y: float) -> float:
        return sum(((a * x + b * y) / total - 1) ** 2 for a, b, total in rows)

    best = relative_fit(equations, 2)
    assert min(best) >= 0
    assert error(*best) <= error(*other) + 1e-6


def test_an_unknown_that_would_be_negative_is_zero() -> None:
    equations = [Equation((1.0, x), 10.0 - x) for x in (1.0, 2.0, 3.0)]
    base, slope = relative_fit(equations, 2)
    assert slope == 0
    assert base == pytest.approx(8, rel=0.1)


def test_what_is_known_is_taken_off_first() -> None:
    assert relative_fit([Equation((2.0,), 10.0, known=4.0)], 1) == pytest.approx([3.0])


# What rows tell


def test_rows_made_of_a_cost_give_that_cost() -> None:
    machine = fit(ALL_ROWS)
    assert_same(machine.cost, TRUE)
    assert max(abs(each.error) for each in machine.residuals) < 2e-3
    assert len(machine.residuals) == 3 + 6 + 9


def test_a_file_in_rates_says_the_same_as_one_in_seconds() -> None:
    rates = msgspec.structs.replace(
        ALL_ROWS,
        prefill=tuple(PrefillRow(context=row.context, rate=row.context / row.measured_s) for row in ALL_ROWS.prefill),
        decode=tuple(
            DecodeRow(
                requests=row.requests,
                context=row.context,
                output=row.output,
                request_rate=row.measured_rate / row.requests,
            )
            for row in ALL_ROWS.decode
        ),
    )
    assert_same(fit(rates).cost, TRUE)


def test_what_no_row_tells_is_assumed_and_listed() -> None:
    few = msgspec.structs.replace(
        ALL_ROWS,
        hit=(),
        assume=(Assumption(field="host_read_token_s", value=3e-6, reason="a guess from the link"),),
    )
    machine = fit(few)
    assert machine.cost.host_read_token_s == 3e-6
    assert machine.cost.request_s == 0
    assert "host_read_token_s = 3e-06: a guess from the link" in machine.assumed
    assert any(text.startswith("request_s = 0: no row tells it") for text in machine.assumed)
    assert not any(text.startswith("decode_step_s") for text in machine.assumed)


def test_an_assumption_is_not_used_where_a_row_tells_better() -> None:
    wrong = Assumption(field="host_read_token_s", value=1.0, reason="wrong")
    machine = fit(msgspec.structs.replace(ALL_ROWS, assume=(wrong,)))
    assert_same(machine.cost, TRUE)
    assert not any("wrong" in text for text in machine.assumed)


def test_an_assumption_counts_in_the_rows_that_it_is_part_of() -> None:
    """One hit in L1 and one of another length in L2 cannot tell the copy from the request."""
    rows = msgspec.structs.replace(
        ALL_ROWS,
        hit=(true_hit(HitTier.DEVICE, 50_000), true_hit(HitTier.HOST, 8192)),
        assume=(
            Assumption(field="host_read_token_s", value=TRUE.host_read_token_s, reason="the sister machine"),
            Assumption(field="host_read_s", value=TRUE.host_read_s, reason="the sister machine"),
        ),
    )
    machine = fit(rows)
    assert_same(machine.cost, TRUE, besides=("storage_read_token_s", "storage_read_s"))
    assert any("the sister machine" in text for text in machine.assumed)


def test_what_the_machine_does_not_have_is_not_called_assumed() -> None:
    no_host = msgspec.structs.replace(ENGINE, tiers=TierSettings(device_tokens=65_536))
    assumed = fit(msgspec.structs.replace(ALL_ROWS, hit=(), engine=no_host)).assumed
    assert not any(text.startswith(("host_", "storage_")) for text in assumed)


def test_a_row_that_is_only_checked_changes_nothing_but_is_shown() -> None:
    odd = PrefillRow(name="odd", context=4096, seconds=100.0, fitted=False)
    machine = fit(msgspec.structs.replace(ALL_ROWS, prefill=(*ALL_ROWS.prefill, odd)))
    assert machine.cost == fit(ALL_ROWS).cost
    assert next(each for each in machine.residuals if each.what == "odd").error < -0.9


def test_one_row_of_each_is_enough_for_a_machine() -> None:
    machine = fit(parse_measured(MINIMAL.encode(), "box.toml"))
    assert machine.cost.prefill_token_s == pytest.approx(1 / 1024, rel=1e-3)
    assert machine.cost.decode_step_s == pytest.approx(1 / 40)
    assert machine.cost.decode_kv_token_s == 0
    assert [each.error for each in machine.residuals] == pytest.approx([0, 0], abs=1e-3)


def test_speculation_makes_a_step_longer_for_the_same_rate() -> None:
    row = DecodeRow(context=0, output=64, rate=100.0, accept_length=4.0)
    machine = fit(msgspec.structs.replace(ALL_ROWS, decode=(row,)))
    assert machine.cost.decode_step_s == pytest.approx(0.04)


def test_gaps_are_checked_against_what_is_not_interrupted() -> None:
    gaps = tuple(GapRow(kind=kind, context=60_000, seconds=1.0) for kind in GapKind)
    residuals = fit(msgspec.structs.replace(ALL_ROWS, gap=gaps)).residuals
    told = {each.what: each.twin for each in residuals}
    assert told["gap, plain, 60,000, s"] == pytest.approx(TRUE.prefill_s(0, 60_000), rel=1e-3)
    last_whole = 13 * 4096
    assert told["gap, interval, 60,000, s"] == pytest.approx(
        TRUE.prefill_s(last_whole, 4096) + TRUE.decode_s(1, 0), rel=2e-3
    )
    assert told["gap, mixed, 60,000, s"] < told["gap, interval, 60,000, s"]


# The shipped machines


@pytest.mark.parametrize("name", machine_names())
def test_a_shipped_machine_is_what_its_measurements_give(name: str) -> None:
    assert fit(shipped_measured(name)) == load_machine(name), f"fit serve/twin/machines/measured/{name}.toml again"


@pytest.mark.parametrize("name", machine_names())
def test_a_machine_file_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    machine = load_machine(name)
    path = tmp_path / "again.toml"
    path.write_text(machine_toml(machine), "utf-8")
    assert load_machine(str(path)) == machine


@pytest.mark.parametrize("name", machine_names())
def test_a_shipped_machine_holds_together(name: str) -> None:
    machine = load_machine(name)
    tiers = machine.engine.tiers
    assert machine.name == name
    for tokens in (tiers.device_tokens, tiers.host_tokens):
        assert tokens % tiers.page_tokens == 0
    assert machine.engine.max_running_requests * 5 <= tiers.device_slots, "SGLang would run fewer (3 + 2 states each)"
    assert machine.assumed, "nobody has measured everything"


def test_the_depth_assumed_for_the_users_of_one_machine_fits_best() -> None:
    rows = shipped_measured("rx7900xtx-epyc")
    assumed = 24_576

    def squares(depth: int) -> float:
        moved = [msgspec.structs.replace(row, context=depth) if row.context == assumed else row for row in rows.decode]
        residuals = fit(msgspec.structs.replace(rows, decode=tuple(moved))).residuals
        return sum(each.error**2 for each in residuals if each.what.startswith("decode"))

    assert min(range(0, 65_536, 4096), key=squares) == assumed


# Files


def test_json_and_toml_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(msgspec.json.encode(ALL_ROWS))
    assert read_measured(path) == ALL_ROWS


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("rate = 40.0", "rate = -1.0", "decode[0].rate: Expected `float` > 0.0"),
        ("context = 1024", 'context = "64K"', "prefill[0].context: Expected `int`, got `str`"),
        ("seconds = 1.0", "seconds = 1.0\nrate = 3.0", "prefill[0]: give either seconds or rate"),
        ("seconds = 1.0", "", "prefill[0]: give either seconds or rate"),
        ("rate = 40.0", "speed = 40.0", "decode[0]: Object contains unknown field `speed`"),
        (
            "device_tokens = 4096",
            "device_tokens = 4096\npage = 1",
            "engine.tiers: Object contains unknown field `page`",
        ),
        ('name = "box"', 'name = "A box"', "name: Expected `str` matching regex"),
        ("[engine.tiers]", "[engine.tier]", "engine: Object contains unknown field `tier`"),
        ("rate = 40.0", "rate = ", "Invalid value"),
    ],
)
def test_a_bad_file_is_told_with_file_and_field(before: str, after: str, said: str) -> None:
    with pytest.raises(ServeError) as failure:
        parse_measured(MINIMAL.replace(before, after).encode(), "box.toml")
    assert failure.value.message.startswith(f"box.toml: {said}")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="cannot be read"):
        read_measured(tmp_path / "none.toml")


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_what_nothing_can_stand_in_for_is_asked_for(kind: str) -> None:
    with pytest.raises(ServeError, match=rf"no \[\[{kind}\]\] row"):
        fit(msgspec.structs.replace(ALL_ROWS, **{kind: ()}))


def test_a_copy_needs_a_nearer_tier_to_be_compared_with() -> None:
    with pytest.raises(ServeError, match="tier device"):
        fit(msgspec.structs.replace(ALL_ROWS, hit=(true_hit(HitTier.HOST, 8192),)))
