"""``governor canary`` before an SGLang-shaped server: table, JSON, exit codes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import typer
from typer.testing import CliRunner, Result

from governor import instance
from governor.cli.canary import canary
from governor.settings import Home, Secret
from serve.canary.model import Checkpoints, Report, Tier, Verdict
from serve.launcher import free_port
from tests.canary_engine import Faults, TierEngine, facts_of
from tests.canary_server import SglangShaped
from tests.up import up

FACTS = facts_of(Checkpoints.EXTRA_BUFFER)


def run(home: Path, *arguments: str) -> Result:
    app = typer.Typer()
    app.command()(canary)
    return CliRunner().invoke(app, [*arguments, "--quick"], env={"GOVERNOR_HOME": str(home)})


def test_an_engine_whose_tiers_serve(tmp_path: Path) -> None:
    with SglangShaped(TierEngine(FACTS)).running() as url:
        done = run(tmp_path, "--url", url)
    assert done.exit_code == 0, done.output
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[1].split()[:3] == ["tier", "shape", "prompt"]
    l3 = next(line for line in lines if line.startswith("L3 ") and "continuation" in line)
    assert "560" in l3
    assert "L3 512" in l3
    assert l3.endswith("SERVED")
    assert [line.split()[:2] for line in lines if line.startswith(("L1 S", "L2 S", "L3 S"))] == [
        ["L1", "SERVED"],
        ["L2", "SERVED"],
        ["L3", "SERVED"],
    ]


def test_a_wrong_tier_is_named_with_what_to_switch_off(tmp_path: Path) -> None:
    with SglangShaped(TierEngine(FACTS, Faults(garbled={Tier.L3: 2.0}))).running() as url:
        shown, json = run(tmp_path, "--url", url), run(tmp_path, "--url", url, "--json")
    assert shown.exit_code == json.exit_code == 1
    assert "L3 WRONG" in shown.stdout
    assert "--hicache-storage-backend" in shown.stdout
    report = msgspec.json.decode(json.stdout, type=Report)
    assert {tier.tier: tier.verdict for tier in report.tiers}[Tier.L3] is Verdict.WRONG


def test_no_engine_there(tmp_path: Path) -> None:
    done = run(tmp_path, "--url", f"http://127.0.0.1:{free_port()}")
    assert done.exit_code == 6
    assert "does not answer" in done.stderr


def test_no_room(tmp_path: Path) -> None:
    with SglangShaped(TierEngine(facts_of(Checkpoints.ATTENTION, device_tokens=512))).running() as url:
        done = run(tmp_path, "--url", url)
    assert done.exit_code == 6
    assert "too small" in done.stderr


def test_no_governor_runs(tmp_path: Path) -> None:
    assert run(tmp_path).exit_code == 3


async def test_the_running_governors_engine_is_taken(tmp_path: Path) -> None:
    with SglangShaped(TierEngine(FACTS)).running() as url:
        async with up(Home(tmp_path), "--upstream", url) as governor:
            assert (await governor.state()).cache.canary is None
            done = await asyncio.to_thread(run, tmp_path)
            found = (await governor.state()).cache.canary
    assert done.exit_code == 0, done.output
    assert "L3 SERVED" in done.stdout
    assert found is not None
    assert found.passed
    assert {tier.tier: tier.verdict for tier in found.tiers} == {"L1": "SERVED", "L2": "SERVED", "L3": "SERVED"}


async def test_an_engine_that_is_still_coming_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    async with up(Home(tmp_path), "--upstream", f"http://127.0.0.1:{port}"):
        asked = asyncio.create_task(asyncio.to_thread(run, tmp_path))
        await asyncio.sleep(0.5)
        with SglangShaped(TierEngine(FACTS)).running(port):
            done = await asked
    assert done.exit_code == 0, done.output
    assert "waiting for the engine" in done.stderr
    assert "L3 SERVED" in done.stdout


def test_a_governor_that_does_not_say_where_its_engine_is(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with instance.only_instance(home):
        instance.write_note(home, "http://127.0.0.1:1", 0.0, Secret("t"))
        done = run(tmp_path)
    assert done.exit_code == 2
    assert "--url" in done.stderr
