"""Reloading, step by step on a hand-moved clock. Files are real, time is not."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from governor.clock import ManualClock
from governor.errors import ConfigError
from governor.policy.loader import LONGEST_WAIT_S, POLL_S, SETTLE_S, PolicyStore, shipped_folder
from governor.policy.model import Policy
from governor.types import AgentName

OLLIE = AgentName("ollie")
Changes = list[tuple[str, ConfigError | None]]


class Bench:
    """A folder of policies, a store over it, and a clock."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "policies"
        self.folder.mkdir()
        self.file = self.folder / "ollie.toml"
        self.clock = ManualClock()
        self.store = PolicyStore(self.folder, shipped_folder(), self.clock)

    def look(self, after_s: float) -> Changes:
        self.clock.advance(after_s)
        return self.store.poll()

    def settle(self) -> Changes:
        """See a change and let it come to rest."""
        return self.look(POLL_S) + self.look(SETTLE_S)

    @property
    def final(self) -> int:
        return self.store.policy_for(OLLIE).policy.output.final

    @property
    def problem(self) -> str | None:
        found = self.store.problems().get(OLLIE)
        return None if found is None else str(found)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    it = Bench(tmp_path)
    it.file.write_text("output.final = 1000\n")
    it.store.load()
    it.settle()
    return it


def test_loaded_at_the_start(bench: Bench) -> None:
    assert bench.final == 1000
    assert bench.problem is None
    assert bench.store.policy_for(AgentName("nobody")).policy == Policy()


def test_a_quiet_folder_changes_nothing(bench: Bench) -> None:
    before = bench.store.policy_for(OLLIE)
    assert bench.settle() == []
    assert bench.store.policy_for(OLLIE) is before


def test_a_bad_file_stops_the_start_and_leaves_a_running_store_alone(bench: Bench) -> None:
    bench.file.write_text("[output]\nfinl = 3\n")
    with pytest.raises(ConfigError, match=r"ollie\.toml:2: output\.finl: unknown key"):
        bench.store.load()
    assert bench.final == 1000


@pytest.mark.parametrize("name", ["Hermes.toml", "-a.toml", "a b.toml", "x" * 65 + ".toml"])
def test_a_file_that_no_agent_can_have_stops_the_start(bench: Bench, name: str) -> None:
    (bench.folder / name).write_text("# nothing\n")
    with pytest.raises(ConfigError, match="not named after an agent"):
        bench.store.load()


def test_a_link_to_nothing_or_a_folder_that_cannot_be_listed_stops_the_start(bench: Bench) -> None:
    """Taken for "no file", either would lift the agent's limits."""
    (bench.folder / "ada.toml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="link to nothing"):
        bench.store.load()
    shutil.rmtree(bench.folder)
    bench.folder.write_text("not a folder")
    with pytest.raises(ConfigError, match="cannot be listed"):
        bench.store.load()
    bench.settle()
    assert bench.final == 1000
    assert "is gone" in str(bench.problem)


def test_use_before_load_is_a_mistake(tmp_path: Path) -> None:
    store = PolicyStore(tmp_path, shipped_folder(), ManualClock())
    with pytest.raises(RuntimeError):
        store.policy_for(OLLIE)


def test_a_missing_folder_means_defaults(tmp_path: Path) -> None:
    store = PolicyStore(tmp_path / "none", shipped_folder(), ManualClock())
    store.load()
    assert store.policy_for(OLLIE).policy == Policy()


def test_a_save_applies_when_it_is_quiet(bench: Bench) -> None:
    bench.file.write_text("output.final = 2000\n")
    assert bench.look(POLL_S) == []
    assert bench.look(SETTLE_S / 2) == []
    assert bench.final == 1000
    assert bench.look(SETTLE_S / 2) == [("ollie", None)]
    assert bench.final == 2000


def test_the_first_half_of_a_save_never_applies(bench: Bench) -> None:
    """The half is good TOML by itself, and would lift the cap."""
    bench.file.write_text("# limits\n")
    assert bench.look(POLL_S) == []
    assert bench.look(SETTLE_S * 0.9) == []
    bench.file.write_text("# limits\noutput.final = 500\n")
    assert bench.look(SETTLE_S * 0.2) == []
    assert bench.final == 1000
    assert bench.look(SETTLE_S) == [("ollie", None)]
    assert bench.final == 500


def test_a_file_that_never_rests_is_read_all_the_same(bench: Bench) -> None:
    seen = set()
    for final in range(2000, 2040):
        bench.file.write_text(f"output.final = {final}\n# {'x' * final}\n")
        bench.look(SETTLE_S / 5)
        seen.add(bench.final)
    assert len(seen) >= 40 * SETTLE_S / 5 / LONGEST_WAIT_S
    bench.settle()
    assert bench.final == 2039


def test_a_bad_save_keeps_the_last_good_and_says_why_once(bench: Bench) -> None:
    bench.file.write_text("[output]\nfinal = -1\n")
    (change,) = bench.settle()
    assert change[0] == "ollie"
    assert str(change[1]).endswith("ollie.toml:2: output.final: Expected `int` >= 1, got -1")
    assert bench.final == 1000
    assert bench.settle() == []
    bench.file.write_text("output.final = 1000\n")
    assert bench.settle() == [("ollie", None)]
    assert bench.problem is None


def test_a_new_comment_moves_lines_but_is_no_change(bench: Bench) -> None:
    bench.file.write_text("# a comment\noutput.final = 1000\n")
    assert bench.settle() == []
    assert bench.store.policy_for(OLLIE).sources["output.final"].line == 2


def test_deleting_keeps_the_limits_and_shows_it(bench: Bench) -> None:
    bench.file.unlink()
    assert [name for name, _ in bench.settle()] == ["ollie"]
    assert bench.final == 1000
    assert "is gone" in str(bench.problem)
    bench.file.write_text("# all from the default\n")
    assert bench.settle() == [("ollie", None)]
    assert bench.final == Policy().output.final
    assert bench.problem is None


def test_emptying_keeps_the_limits_and_shows_it(bench: Bench) -> None:
    bench.file.write_text("")
    bench.settle()
    assert bench.final == 1000
    assert "is empty" in str(bench.problem)


def test_delete_and_create_between_two_looks_is_a_save(bench: Bench) -> None:
    bench.file.unlink()
    assert bench.look(POLL_S) == []
    bench.file.write_text("output.final = 7000\n")
    assert bench.settle() == [("ollie", None)]
    assert bench.final == 7000


def test_rename_over(bench: Bench) -> None:
    other = bench.folder / ".ollie.toml.new"
    other.write_text("output.final = 3000\n")
    other.replace(bench.file)
    bench.settle()
    assert bench.final == 3000


def test_links_swapped_and_edited_behind(bench: Bench, tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ollie.toml").write_text(f"output.final = {version[1]}000\n")
    bench.file.unlink()
    bench.file.symlink_to(tmp_path / "v1" / "ollie.toml")
    bench.settle()
    assert bench.final == 1000
    swap = bench.folder / ".swap"
    swap.symlink_to(tmp_path / "v2" / "ollie.toml")
    swap.replace(bench.file)
    bench.settle()
    assert bench.final == 2000
    (tmp_path / "v2" / "ollie.toml").write_text("output.final = 4000\n")
    bench.settle()
    assert bench.final == 4000
    (tmp_path / "v2" / "ollie.toml").unlink()
    bench.settle()
    assert bench.final == 4000
    assert "is gone" in str(bench.problem)


def test_the_folder_vanishes_and_comes_back(bench: Bench) -> None:
    shutil.rmtree(bench.folder)
    bench.settle()
    assert bench.final == 1000
    assert "is gone" in str(bench.problem)
    bench.folder.mkdir()
    bench.file.write_text("output.final = 6000\n")
    assert bench.settle() == [("ollie", None)]
    assert bench.final == 6000


def test_new_agents_come_good_or_bad_and_go(bench: Bench) -> None:
    ada = bench.folder / "ada.toml"
    ada.write_text("class = 'interactive'\n")
    (bench.folder / "bob.toml").write_text("x = 1\n")
    assert [(name, problem is None) for name, problem in sorted(bench.settle())] == [("ada", True), ("bob", False)]
    assert bench.store.policy_for(AgentName("bob")).policy == Policy()
    (bench.folder / "bob.toml").unlink()
    assert bench.settle() == [("bob", None)]
    assert bench.store.problems() == {}


def test_scratch_files_of_editors_are_no_policies(bench: Bench) -> None:
    for name in (".ollie.toml.swp", "ollie.toml~", "#ollie.toml#", ".#ollie.toml", "4913", ".ollie.toml.lock"):
        (bench.folder / name).write_text("{{{")
    assert bench.settle() == []
    bench.store.load()


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "binary", "huge"])
def test_things_that_are_no_text_files_are_problems(bench: Bench, kind: str) -> None:
    bench.file.unlink()
    if kind == "folder":
        bench.file.mkdir()
    elif kind == "pipe":
        os.mkfifo(bench.file)
    elif kind == "loop":
        bench.file.symlink_to(bench.file)
    elif kind == "binary":
        bench.file.write_bytes(b"class = 'normal'\n# \xff\n")
    else:
        bench.file.write_bytes(b"#" * 2_000_000)
    (change,) = bench.settle()
    assert change[1] is not None
    assert change[1].file == str(bench.file)
    assert bench.final == 1000


def test_a_request_keeps_the_policy_it_began_with(bench: Bench) -> None:
    began_with = bench.store.policy_for(OLLIE)
    bench.file.write_text("output.final = 10\noutput.floor = 1\n")
    bench.settle()
    assert began_with.policy.output.final == 1000
    assert bench.final == 10


def test_whose_file_is_read_at_once_and_whose_is_not(bench: Bench) -> None:
    other = bench.folder / "other.toml"
    other.write_text("# caps\n")
    bench.settle()
    bench.file.write_text("output.final = 2000\n")
    other.write_text("output.final = 7000\n")
    assert bench.store.poll(lambda name: name == OLLIE) == [("ollie", None)]
    assert bench.final == 2000
    assert bench.store.policy_for(AgentName("other")).policy.output.final != 7000, "it may be half a save"
    assert bench.settle() == [("other", None)]
    assert bench.store.poll(lambda _: True) == []


def test_what_was_read_at_once_is_read_again_when_it_is_quiet(bench: Bench) -> None:
    bench.file.write_text("output.tool_step = 500\n")
    assert bench.store.poll(lambda _: True) == [("ollie", None)]
    with bench.file.open("a") as stream:
        stream.write("output.final = 3000\n")
    assert bench.settle() == [("ollie", None)]
    assert bench.final == 3000


async def test_lookers_take_turns(bench: Bench) -> None:
    bench.file.write_text("output.final = 2000\n")
    told: Changes = []
    looks = [bench.store.look(lambda agent, why: told.append((agent, why)), lambda _: True) for _ in range(5)]
    await asyncio.gather(*looks)
    assert told == [("ollie", None)]
