"""The canary before the real SGLang: each tier serves, and a page that was tampered with is caught."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from serve.canary import Report, Tier, Verdict, run_canary
from serve.canary.cases import Case, make_plan
from serve.canary.http import SglangCanary
from serve.canary.model import Checkpoints, EngineFacts, Probe, Question, Shape, Stage, Written
from tests.sglang.server import SglangServer

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

PAGE_TOKENS = 64

Tamper = Callable[[Case], None]


class Moving:
    """The canary's engine, whose server another one takes over from when it is restarted."""

    def __init__(self, server: SglangServer, stack: AsyncExitStack) -> None:
        self._folder = server.l3.parent
        self._stack = stack
        self._engine = SglangCanary(server.url)
        stack.push_async_callback(self._engine.aclose)

    async def facts(self) -> EngineFacts:
        return await self._engine.facts()

    async def ask(self, question: Question) -> Probe:
        return await self._engine.ask(question)

    async def settle(self) -> Written:
        return await self._engine.settle()

    async def flush(self) -> None:
        await self._engine.flush()

    async def restart(self) -> None:
        successor = self._stack.enter_context(SglangServer(self._folder))
        self._engine = SglangCanary(successor.url)
        self._stack.push_async_callback(self._engine.aclose)


async def test_each_tier_serves_and_a_new_process_finds_what_the_old_one_left(sglang_server: SglangServer) -> None:
    async with AsyncExitStack() as stack:
        engine = Moving(sglang_server, stack)
        report = await run_canary(engine, restart=engine.restart)
    assert report.passed, report
    assert report.facts.checkpoints is Checkpoints.EXTRA_BUFFER
    assert {tier.tier: tier.verdict for tier in report.tiers} == dict.fromkeys(Tier, Verdict.SERVED)
    asked = [row for row in report.rows if row.stage is not Stage.COLD]
    assert {(row.stage, row.shape) for row in asked} == {
        (stage, shape) for stage in Stage if stage is not Stage.COLD for shape in Shape
    }
    for row in asked:
        assert row.served is not None
        assert row.stage.tier is not None
        assert row.served.of(row.stage.tier) == row.expected_tokens, row
    # On a CPU equal computations are equal to the last bit: whatever a tier changes shows.
    assert report.noise == 0.0
    assert [row.max_dlogprob for row in asked if row.against is Stage.L1 and row.max_dlogprob] == []


async def run_with(server: SglangServer, tamper: Tamper, stage: Stage, seed: str) -> Report:
    """The quick canary; its case's bytes are tampered with just before ``stage`` is asked."""
    async with aclosing(SglangCanary(server.url)) as engine:
        (case,) = make_plan(await engine.facts(), seed, quick=True).cases

        def on_step(step: str) -> None:
            if step.startswith(f"{stage}:"):
                tamper(case)

        return await run_canary(engine, seed=seed, quick=True, on_step=on_step)


@pytest.mark.parametrize(
    "what", ["page, all bits", "page, 64 bytes", "another prompt's page", "another prompt's state"]
)
async def test_bytes_on_disk_that_are_not_what_was_written_are_caught(sglang_server: SglangServer, what: str) -> None:
    def tamper(case: Case) -> None:
        digests = page_digests(case)
        kind = ".mamba" if what.endswith("state") else ""
        victim = file_of(sglang_server.l3, digests[-1] if kind else digests[3], kind)
        data = victim.read_bytes()
        match what:
            case "page, all bits":
                data = flipped(data, 0, len(data))
            case "page, 64 bytes":
                data = flipped(data, 1024, 64)
            case _:
                own = {file_of(sglang_server.l3, digest, kind) for digest in (digests[-1:] if kind else digests)}
                files = sorted(sglang_server.l3.glob("*.bin"))
                data = next(f for f in files if (".mamba" in f.name) == bool(kind) and f not in own).read_bytes()
        victim.write_bytes(data)

    report = await run_with(sglang_server, tamper, Stage.L3, f"disk {what}")
    verdicts = {tier.tier: tier.verdict for tier in report.tiers}
    assert verdicts == {Tier.L1: Verdict.SERVED, Tier.L2: Verdict.SERVED, Tier.L3: Verdict.WRONG}, report
    assert "hicache-storage-backend" in report.tiers[-1].switch_off


async def test_a_page_in_host_memory_that_is_not_what_was_written_is_caught(sglang_server: SglangServer) -> None:
    pid = scheduler_of(sglang_server)

    def tamper(case: Case) -> None:
        page = file_of(sglang_server.l3, page_digests(case)[3]).read_bytes()
        keys = page[: len(page) // 2]  # the host pool keeps keys and values apart
        assert overwrite(pid, keys, flipped(keys, 0, len(keys))) > 0

    try:
        report = await run_with(sglang_server, tamper, Stage.L2, "host page")
    except PermissionError:
        pytest.skip("this system lets nobody write into the memory of a process of theirs")
    verdicts = {tier.tier: tier.verdict for tier in report.tiers}
    assert verdicts[Tier.L1] is Verdict.SERVED, report
    assert verdicts[Tier.L2] is Verdict.WRONG, report


def page_digests(case: Case) -> list[str]:
    """SGLang's names of the pages: SHA-256 over the digest before and the page's ids as 32-bit words."""
    digest, names = b"", []
    for start in range(0, case.depth_tokens, PAGE_TOKENS):
        words = array("I", case.prompt[start : start + PAGE_TOKENS]).tobytes()
        digest = hashlib.sha256(digest + words).digest()
        names.append(digest.hex())
    return names


def file_of(l3: Path, digest: str, kind: str = "") -> Path:
    (path,) = l3.glob(f"{digest}{kind}_*.bin")
    return path


def flipped(data: bytes, start: int, count: int) -> bytes:
    return data[:start] + bytes(byte ^ 0xFF for byte in data[start : start + count]) + data[start + count :]


def scheduler_of(server: SglangServer) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "comm").read_text()
            if name.startswith("sglang::sched") and os.getpgid(int(folder.name)) == server.pid:
                return int(folder.name)
        except OSError:
            continue
    raise LookupError("the server has no scheduler")


def overwrite(pid: int, old: bytes, new: bytes) -> int:
    """Wherever ``old`` lies in the process's writable memory. How often it did."""
    found = 0
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        for start, end in writable(pid):
            try:
                memory.seek(start)
                held = memory.read(end - start) or b""
            except (OSError, OverflowError):
                continue  # mapped, but not readable from outside
            at = held.find(old)
            while at >= 0:
                memory.seek(start + at)
                memory.write(new)
                found += 1
                at = held.find(old, at + len(old))
    return found


def writable(pid: int) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        if rights.startswith("rw"):
            start, end = span.split("-")
            yield int(start, 16), int(end, 16)
