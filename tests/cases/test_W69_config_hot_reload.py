"""W69 config-hot-reload: no save, however broken, crashes the loader, loosens limits or leaves the watch dead.

Real files, the real watch, real time. Each bad write must leave the old limits in force and show why; the next good
write must apply in less than 2 s.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from governor.clock import SystemClock
from governor.errors import ConfigError
from governor.policy.loader import PolicyStore, shipped_folder
from governor.types import AgentName

OLLIE = AgentName("ollie")
LIMIT_S = 2.0
OLD = "output.final = 1000\n"
GOOD = "output.final = 2000\n"


async def until(reached: Callable[[], bool]) -> None:
    """Wait for it, as long as the case allows."""
    async with asyncio.timeout(LIMIT_S):
        while not reached():  # noqa: ASYNC110 - what is waited for is the disk
            await asyncio.sleep(0.02)


class Running:
    """A store under watch, with one agent whose cap is 1000."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "policies"
        self.folder.mkdir(parents=True)
        self.file = self.folder / "ollie.toml"
        self.file.write_text(OLD)
        self.store = PolicyStore(self.folder, shipped_folder(), SystemClock())
        self.store.load()
        self.told: list[tuple[str, ConfigError | None]] = []
        self.watch = asyncio.create_task(self.store.watch(lambda agent, problem: self.told.append((agent, problem))))

    @property
    def final(self) -> int:
        return self.store.policy_for(OLLIE).policy.output.final

    async def problem(self) -> ConfigError:
        await until(lambda: "ollie" in self.store.problems())
        assert self.final == 1000
        await until(lambda: self.told[-1:] == [("ollie", self.store.problems()["ollie"])])
        return self.store.problems()["ollie"]

    async def stop(self) -> None:
        assert not self.watch.done()
        self.watch.cancel()
        await asyncio.gather(self.watch, return_exceptions=True)


BAD_WRITES = {
    "syntax": ("{{{ not valid", 1, None),
    "contradiction": ("# floor above cap\noutput.floor = 900\noutput.final = 800\n", 3, "output.final"),
    "unknown key": ("[output]\nmax_tokns = 5\n", 2, "output.max_tokns"),
    "negative cap": ("\n[output]\nfinal = -1\n", 3, "output.final"),
    "cut off": ("[output]\nfinal = 10\nfin", 3, None),
    "emptied": ("", None, None),
}


async def _bad_write(running: Running, text: str, line: int | None, key: str | None) -> None:
    running.file.write_text(text)
    problem = await running.problem()
    assert (problem.file, problem.line, problem.key) == (str(running.file), line, key)
    running.file.write_text(GOOD)
    await until(lambda: running.final == 2000)
    assert running.store.problems() == {}
    await until(lambda: running.told[-1] == ("ollie", None))
    await running.stop()


async def test_W69_bad_write_keeps_old_limits_and_shows_file_line_and_key(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as together:
        for name, (text, line, key) in BAD_WRITES.items():
            together.create_task(_bad_write(Running(tmp_path / name), text, line, key), name=name)


async def _two_halves(running: Running) -> None:
    """The first half is good TOML by itself, and would lift the cap."""
    running.file.write_text("# caps\noutput.tool_step = 500\n")
    for _ in range(15):
        await asyncio.sleep(0.02)
        assert running.final == 1000
    with running.file.open("a") as stream:
        stream.write(GOOD)


async def _rename_over(running: Running) -> None:
    scratch = running.folder / "ollie.toml.tmp"
    scratch.write_text(GOOD)
    scratch.replace(running.file)


async def _delete_then_create(running: Running) -> None:
    running.file.unlink()
    problem = await running.problem()
    assert "is gone" in problem.reason
    running.file.write_text(GOOD)


async def _link_swap(running: Running) -> None:
    """As mounted settings are updated: the file is a link into a folder that is itself a link."""
    for version, text in (("v1", OLD), ("v2", GOOD)):
        (running.root / version).mkdir()
        (running.root / version / "ollie.toml").write_text(text)
    current, swap = running.root / "current", running.root / "swap"
    current.symlink_to("v1")
    running.file.unlink()
    running.file.symlink_to(current / "ollie.toml")
    await asyncio.sleep(1.2)
    assert running.final == 1000
    swap.symlink_to("v2")
    swap.replace(current)


async def _fifty_saves_in_a_second(running: Running) -> None:
    for number in range(49):
        running.file.write_text("{{{" if number % 3 == 0 else f"output.final = {1001 + number}\n")
        await asyncio.sleep(0.02)
    running.file.write_text(GOOD)


async def _folder_replaced(running: Running) -> None:
    shutil.rmtree(running.folder)
    await running.problem()
    running.folder.mkdir()
    running.file.write_text(GOOD)


SAVES = [_two_halves, _rename_over, _delete_then_create, _link_swap, _fifty_saves_in_a_second, _folder_replaced]


async def _save(running: Running, save: Callable[[Running], Awaitable[None]]) -> None:
    began_with = running.store.policy_for(OLLIE)
    await save(running)
    await until(lambda: running.final == 2000)
    assert running.store.problems() == {}
    running.file.write_text("output.final = 3000\n")
    await until(lambda: running.final == 3000)
    assert began_with.policy.output.final == 1000
    await running.stop()


async def test_W69_every_form_of_save_applies_and_leaves_the_watch_alive(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as together:
        for save in SAVES:
            together.create_task(_save(Running(tmp_path / save.__name__), save), name=save.__name__)


async def test_W69_watch_survives_an_observer_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = Running(tmp_path)
    await running.stop()

    def fails(agent: str, problem: ConfigError | None) -> None:
        raise ValueError(agent)

    running.watch = asyncio.create_task(running.store.watch(fails))
    for final in (2000, 3000):
        running.file.write_text(f"output.final = {final}\n")
        await until(lambda expected=final: running.final == expected)  # type: ignore[misc]
    assert "policies in force stay" in caplog.text
    await running.stop()
