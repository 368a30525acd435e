"""A bench of a twin, fitted, is that twin again."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from governor.cli.twin_cmd import app
from governor.measure import Result, write_result
from governor.measure.errors import MeasureFailed, NotComparable
from governor.measure.options import Options
from governor.measure.to_twin import measured_from
from serve.twin.fit import fit
from serve.twin.machine import load_machine
from tests.measuring import machine_named, measured_on_twin

TP2 = "rx7900xtx-tp2"


@cache
def bench() -> Result:
    return measured_on_twin(
        machine_named(TP2),
        "fit",
        Options(contexts=(4096, 16_384, 65_536, 131_072), output_tokens=256, requests=(1, 2, 4)),
    )


def test_the_fitted_machine_costs_what_the_measured_one_costs() -> None:
    machine, again = load_machine(TP2), fit(measured_from([bench()]))
    cost, fitted = machine.cost, again.cost
    assert again.residuals
    assert max(abs(each.error) for each in again.residuals) < 0.06
    for prompt in (4096, 65_536, 131_072):
        assert fitted.prefill_s(0, prompt) == pytest.approx(cost.prefill_s(0, prompt), rel=0.02)
        assert fitted.host_read_time(prompt) == pytest.approx(cost.host_read_time(prompt), rel=0.1)
        assert fitted.storage_read_time(prompt) == pytest.approx(cost.storage_read_time(prompt), rel=0.1)
    for requests in (1, 2, 4):
        assert fitted.decode_s(requests, 24_576 * requests) == pytest.approx(
            cost.decode_s(requests, 24_576 * requests), rel=0.04
        )


def test_it_has_the_measured_engines_settings() -> None:
    engine, again = machine_named(TP2).engine, measured_from([bench()]).engine
    assert again.accept_length == pytest.approx(engine.accept_length, rel=0.03)
    theirs, ours = (msgspec.to_builtins(each) for each in (engine, again))
    for settings in (theirs, ours):
        del settings["accept_length"]
        for name in ("storage_tokens", "storage_state_tokens", "prefetch_timeout_base_s", "window_tokens"):
            del settings["tiers"][name]
    different = {name for name in theirs["tiers"] if theirs["tiers"][name] != ours["tiers"][name]}
    assert {name for name in theirs if theirs[name] != ours[name]} <= {"tiers"}
    assert different == set()


def test_the_command_takes_the_result_and_the_twin_runs_on_what_it_makes(tmp_path: Path) -> None:
    write_result(bench(), tmp_path / "result.json")
    target = tmp_path / "my-box.toml"
    done = CliRunner().invoke(
        app, ["fit", str(tmp_path / "result.json"), "--name", "my-box", "--out", str(target)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "L2 hit" in done.stdout
    assert load_machine(str(target)).name == "my-box"


def test_results_of_several_suites_are_put_together_if_they_are_of_one_engine() -> None:
    result = bench()
    replace = msgspec.structs.replace
    hits = tuple(each for each in result.measures if each.case.name != "decode")
    writes = tuple(each for each in result.measures if each.case.name == "decode")
    parts = [replace(result, measures=hits), replace(result, measures=writes)]
    assert fit(measured_from(parts)).cost == fit(measured_from([result])).cost
    other = replace(result, engine=replace(result.engine, device_tokens=1000))
    with pytest.raises(NotComparable, match="another pool of L1"):
        measured_from([result, other])


def test_another_engine_is_no_twin() -> None:
    result = bench()
    llama = msgspec.structs.replace(result, engine=msgspec.structs.replace(result.engine, kind="llamacpp"))
    with pytest.raises(MeasureFailed, match="one of SGLang"):
        measured_from([llama])
