"""Installing an engine: the steps as listed, resumption, failures told with a cure. No engine is installed here."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from governor.cli.engine_install import install
from serve.errors import InstallFailed, NothingToInstall
from serve.install import Command, Installer, InstallRecipe, Step, engines_folder, find_engine, recipe_for
from serve.install.base import BasePython, find_base
from serve.install.model import HERE
from serve.install.runner import Outcome, Runner, Say, SubprocessRunner
from serve.profile import load_profile, shipped_names
from serve.profile.model import Recipe

SNAPSHOTS = Path(__file__).parents[1] / "data" / "install"
BASE = BasePython(Path(sys.executable), "3.11")


class RecordingRunner:
    """A machine on which each command succeeds, unless a test says how it ends. Making the environment makes a file in
    the interpreter's place, as ``venv`` does."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.ends: dict[str, Outcome] = {}
        self.before: Callable[[str], None] = lambda _: None

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, limit_s: float, say: Say
    ) -> Outcome:
        word = argv[-1]
        self.before(word)
        self.ran.append(word)
        if word == "make-venv":
            python = cwd / "venv" / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
        return self.ends.get(word, Outcome(ok=True, how="exited with status 0"))


def step(id_: str, *inputs: Path) -> Step:
    command, check = (Command(argv=("{python}", f"{kind}-{id_}")) for kind in ("make", "check"))
    return Step(id=id_, title=f"Make {id_}", commands=(command,), check=check, inputs=inputs)


def recipe(lock: Path, *inputs: Path, disk_gib: float = 0) -> InstallRecipe:
    steps = (step("venv"), step("packages"), step("model", *inputs), step("proof"))
    return InstallRecipe(
        name="toy", engine_version="1.0", pythons=("3.11",), locks=(lock,), steps=steps, disk_gib=disk_gib
    )


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock.txt"
    path.write_text("a==1\n")
    return path


@pytest.fixture
def runner() -> RecordingRunner:
    return RecordingRunner()


def installer(recipe: InstallRecipe, tmp_path: Path, runner: Runner, said: list[str] | None = None) -> Installer:
    told = [] if said is None else said
    return Installer(recipe, tmp_path / "engines", runner, told.append, BASE)


ALL = ["make-venv", "check-venv", "make-packages", "check-packages", "make-model", "check-model"]
ALL += ["make-proof", "check-proof"]


def test_each_step_is_done_and_checked_in_order(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    said: list[str] = []
    toy = recipe(lock)
    assert find_engine(toy, tmp_path / "engines") is None
    engine = installer(toy, tmp_path, runner, said).install()
    assert runner.ran == ALL
    assert [line for line in said if line.startswith("[")] == [
        "[1/4] Make venv",
        "[2/4] Make packages",
        "[3/4] Make model",
        "[4/4] Make proof",
    ]
    assert engine.python.exists()
    assert find_engine(toy, tmp_path / "engines") == engine


def test_a_second_installation_runs_nothing(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    first = installer(recipe(lock), tmp_path, runner).install()
    runner.ran.clear()
    assert installer(recipe(lock), tmp_path, runner).install() == first
    assert runner.ran == []


def test_a_broken_installation_goes_on_where_it_stopped(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    runner.ends["make-model"] = Outcome(ok=False, how="exited with status 1", tail="boom")
    with pytest.raises(InstallFailed):
        installer(recipe(lock), tmp_path, runner).install()
    assert not installer(recipe(lock), tmp_path, runner).is_complete
    runner.ends.clear()
    runner.ran.clear()
    said: list[str] = []
    installer(recipe(lock), tmp_path, runner, said).install()
    assert runner.ran == ["check-venv", "check-packages", "make-model", "check-model", "make-proof", "check-proof"]
    assert "[2/4] Make packages: done before" in said


def test_a_process_that_is_killed_leaves_finished_steps_finished(
    tmp_path: Path, lock: Path, runner: RecordingRunner
) -> None:
    def killed(word: str) -> None:
        if word == "make-model":
            raise KeyboardInterrupt

    runner.before = killed
    with pytest.raises(KeyboardInterrupt):
        installer(recipe(lock), tmp_path, runner).install()
    runner.before = lambda _: None
    runner.ran.clear()
    installer(recipe(lock), tmp_path, runner).install()
    assert runner.ran[:3] == ["check-venv", "check-packages", "make-model"]


def test_a_step_whose_check_fails_is_not_done(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    runner.ends["check-packages"] = Outcome(ok=False, how="exited with status 1", tail="torch is not a hip build")
    with pytest.raises(InstallFailed, match="torch is not a hip build"):
        installer(recipe(lock), tmp_path, runner).install()
    assert "make-model" not in runner.ran


def test_what_went_bad_since_is_done_again_when_asked_to_check(
    tmp_path: Path, lock: Path, runner: RecordingRunner
) -> None:
    installer(recipe(lock), tmp_path, runner).install()
    runner.ran.clear()
    again: list[Outcome] = [Outcome(ok=False, how="exited with status 1")]

    def once(word: str) -> None:
        if word == "check-packages":
            runner.ends[word] = again.pop() if again else Outcome(ok=True, how="exited with status 0")

    runner.before = once
    installer(recipe(lock), tmp_path, runner).install(check=True)
    assert runner.ran == [
        "check-venv",
        "check-packages",
        "make-packages",
        "check-packages",
        "check-model",
        "check-proof",
    ]


def test_only_the_step_whose_file_changed_is_done_again(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    source = tmp_path / "model.py"
    source.write_text("one")
    first = installer(recipe(lock, source), tmp_path, runner).install()
    source.write_text("two")
    runner.ran.clear()
    changed = installer(recipe(lock, source), tmp_path, runner)
    assert not changed.is_complete
    assert changed.install().folder == first.folder
    assert runner.ran == ["check-venv", "check-packages", "make-model", "check-model", "check-proof"]


def test_a_changed_lock_makes_another_installation(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    first = installer(recipe(lock), tmp_path, runner).install()
    lock.write_text("a==2\n")
    second = installer(recipe(lock), tmp_path, runner).install()
    assert second.folder != first.folder
    assert runner.ran == ALL + ALL


def test_the_same_recipe_for_another_python_is_another_installation(lock: Path) -> None:
    assert recipe(lock).key("3.11") != recipe(lock).key("3.12")


@pytest.mark.parametrize("text", ["", "{", '{"fingerprint": 3}', "\xff"])
def test_a_spoilt_record_is_no_record(tmp_path: Path, lock: Path, runner: RecordingRunner, text: str) -> None:
    folder = installer(recipe(lock), tmp_path, runner).install().folder
    (folder / ".complete").write_bytes(text.encode("latin-1"))
    (folder / "steps.json").write_bytes(text.encode("latin-1"))
    runner.ran.clear()
    installer(recipe(lock), tmp_path, runner).install()
    assert runner.ran == ALL


def test_a_failure_names_step_command_output_log_and_cure(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    tail = "Collecting torch\nERROR: Could not install packages: [Errno 28] No space left on device"
    runner.ends["make-packages"] = Outcome(ok=False, how="exited with status 1", tail=tail)
    failing = installer(recipe(lock), tmp_path, runner)
    with pytest.raises(InstallFailed) as caught:
        failing.install()
    folder = failing.engine.folder
    assert caught.value.message == (
        "Make packages: the command exited with status 1.\n"
        f"  {folder}/venv/bin/python make-packages\n"
        f"{tail}\n"
        "The disk is full: free space, or choose another disk with --engines DIR.\n"
        f"The whole output is in {folder}/install.log. Run the same command again: finished steps are kept."
    )


def test_too_small_a_disk_is_told_before_anything_is_made(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    with pytest.raises(InstallFailed, match=r"GiB free; the engine takes 1e\+09 GiB"):
        installer(recipe(lock, disk_gib=1e9), tmp_path, runner).install()
    assert runner.ran == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    (tmp_path / "engines").write_text("a file")
    with pytest.raises(InstallFailed, match="Cannot write to"):
        installer(recipe(lock), tmp_path, runner).install()


def test_two_at_once_install_once(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def hold(word: str) -> None:
        if word == "make-packages":
            begun.set()
            assert may_end.wait(10)

    runner.before = hold
    said: list[str] = []
    first = threading.Thread(target=installer(recipe(lock), tmp_path, runner).install)
    first.start()
    assert begun.wait(10)
    second = threading.Thread(target=installer(recipe(lock), tmp_path, runner, said).install)
    second.start()
    while not said:
        time.sleep(0.01)
    may_end.set()
    first.join(10)
    second.join(10)
    assert said == ["Another process installs this engine: waiting for it."]
    assert runner.ran == ALL


def test_no_fitting_python_is_told(tmp_path: Path, lock: Path, runner: RecordingRunner) -> None:
    old = msgspec.structs.replace(recipe(lock), pythons=("2.6",))
    assert find_base(("2.6",)) is None
    with pytest.raises(InstallFailed, match=r"needs Python 2\.6, and there is no such interpreter"):
        Installer(old, tmp_path / "engines", runner, print).install()
    assert runner.ran == []


def test_a_name_on_path_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in (("python9.8", "exit 127"), ("python9.7", "echo 9.7; echo /opt/python")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_base(("9.8", "9.7")) == BasePython(Path("/opt/python"), "9.7")


# -- real commands


def _ends(pid: int, within_s: float = 5) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


def _run(tmp_path: Path, program: str, limit_s: float = 30, **env: str) -> tuple[Outcome, str]:
    log = tmp_path / "install.log"
    log.write_text("earlier\n")
    argv = [sys.executable, "-c", program]
    outcome = SubprocessRunner().run(argv, env=env, cwd=tmp_path, log=log, limit_s=limit_s, say=print)
    return outcome, log.read_text()


def test_a_real_command_is_logged_and_its_end_told(tmp_path: Path) -> None:
    outcome, log = _run(tmp_path, "print('one'); raise SystemExit('two')")
    assert outcome == Outcome(ok=False, how="exited with status 1", tail="one\ntwo")
    assert log == "earlier\none\ntwo\n"


def test_a_real_command_does_not_inherit_what_reaches_into_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    outcome, _ = _run(tmp_path, "import os; print([os.environ.get(n) for n in ('PYTHONPATH', 'EXTRA')])", EXTRA="x")
    assert outcome == Outcome(ok=True, how="exited with status 0", tail="[None, 'x']")
    outcome, _ = _run(tmp_path, "import sys; print(sys.dont_write_bytecode)")
    assert outcome.tail == "False"


def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    log = tmp_path / "install.log"
    outcome = SubprocessRunner().run(["no-such-program"], env={}, cwd=tmp_path, log=log, limit_s=5, say=print)
    assert not outcome.ok
    assert "could not be started" in outcome.how


def test_a_command_without_an_end_is_ended(tmp_path: Path) -> None:
    child = "import os, time; print('begun', os.getpid(), flush=True); time.sleep(60)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    outcome, _ = _run(tmp_path, program, limit_s=1)
    assert outcome.how == "had not ended after 1 s"
    begun, pid = outcome.tail.split()
    assert begun == "begun"
    assert _ends(int(pid)), "what it started is ended too"


# -- checks inside an environment


def _probe(*arguments: str, path: Path | None = None) -> Outcome:
    argv = [sys.executable, "-P", str(HERE / "probe.py"), *arguments]
    env = {} if path is None else {"PYTHONPATH": str(path)}
    log = Path(os.devnull) if path is None else path / "log"
    return SubprocessRunner().run(argv, env=env, cwd=HERE, log=log, limit_s=60, say=print)


def _torch(folder: Path, version: str, **built: str) -> Path:
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise ImportError('imports are slow')\n")
    (folder / "torch" / "version.py").write_text("".join(f"{name} = {value!r}\n" for name, value in built.items()))
    info = folder / f"torch-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return folder


def test_torch_of_the_right_kind_passes(tmp_path: Path) -> None:
    assert _probe("torch", "2.9.1", "hip", path=_torch(tmp_path, "2.9.1+rocm7.2.1", hip="7.2")).ok


def test_torch_that_pip_replaced_is_found(tmp_path: Path) -> None:
    outcome = _probe("torch", "2.9.1", "hip", path=_torch(tmp_path, "2.9.1", cuda="13.0"))
    assert outcome == Outcome(
        ok=False, how="exited with status 1", tail="torch 2.9.1 is not a hip build: something has replaced it"
    )


def test_torch_of_another_version_is_found(tmp_path: Path) -> None:
    outcome = _probe("torch", "2.9.1", "cpu", path=_torch(tmp_path, "2.14.1"))
    assert outcome.tail == "torch is 2.14.1; wanted 2.9.1"


def test_packages_are_compared_with_the_lock(tmp_path: Path) -> None:
    good = f"typer=={version('typer')} \\\n    --hash=sha256:00\nno-such==1 ; sys_platform == 'win32' \\\n"
    (tmp_path / "good.txt").write_text(good)
    assert _probe("packages", str(tmp_path / "good.txt"), path=tmp_path).ok
    (tmp_path / "bad.txt").write_text(good + "typer==0.0.1\nmissing-one==3\n")
    outcome = _probe("packages", str(tmp_path / "bad.txt"), path=tmp_path)
    assert outcome.tail == (
        f"2 packages are not as the lock says: typer==0.0.1 (found: {version('typer')}), missing-one==3 (found: none)"
    )


def test_what_cannot_be_imported_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("import libamdhip64\n")
    outcome = _probe("imports", "json", "kernels", path=tmp_path)
    assert outcome.tail == "kernels cannot be imported: ModuleNotFoundError: No module named 'libamdhip64'"
    assert _probe("imports", "json", path=tmp_path).ok


def test_missing_files_and_other_pythons_are_told(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert _probe("files", str(tmp_path), path=tmp_path).ok
    assert _probe("files", str(tmp_path / "empty"), path=tmp_path).tail == f"{tmp_path / 'empty'} is missing"
    assert "wanted 2.6" in _probe("python", "2.6", path=tmp_path).tail


_REGISTRY = """
class HookRegistry:
    _hooks, _patched = {}, set()

    @classmethod
    def register(cls, target):
        cls._hooks[target] = []

    @classmethod
    def apply_hooks(cls):
        cls._patched = {target for target in cls._hooks if target.startswith("json.")}
"""
"""What the check uses of SGLang's registry, which passes over what does not fit."""


def _plugin_folder(folder: Path, *targets: str) -> Path:
    registry = folder / "sglang" / "srt" / "plugins" / "hook_registry.py"
    registry.parent.mkdir(parents=True)
    registry.write_text(_REGISTRY)
    lines = [f"    HookRegistry.register({target!r})" for target in targets]
    source = ["from sglang.srt.plugins.hook_registry import HookRegistry", "def register():", *lines]
    (folder / "mine.py").write_text("\n".join(source) + "\n")
    info = folder / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nmine = mine:register\n")
    return folder


def test_a_plugin_that_fits_passes(tmp_path: Path) -> None:
    assert _probe("plugins", "mine", path=_plugin_folder(tmp_path, "json.dumps")).ok


def test_a_hook_that_does_not_fit_is_found(tmp_path: Path) -> None:
    outcome = _probe("plugins", "mine", path=_plugin_folder(tmp_path, "json.dumps", "gone.Scheduler.run"))
    assert not outcome.ok
    assert "hooks that do not fit this SGLang: gone.Scheduler.run" in outcome.tail


def test_a_plugin_that_is_not_installed_is_found(tmp_path: Path) -> None:
    outcome = _probe("plugins", "yours", path=_plugin_folder(tmp_path, "json.dumps"))
    assert not outcome.ok
    assert "no plugin yours is installed; there are: " in outcome.tail


# -- the shipped recipes

INSTALLED = [name for name in shipped_names() if load_profile(name).install.recipe is not Recipe.NONE]


def _listing(profile: str) -> str:
    app = typer.Typer()
    app.command()(install)
    shown = CliRunner().invoke(app, ["--profile", profile, "--dry-run", "--engines", "/engines"])
    assert shown.exit_code == 0, shown.output
    text = re.sub(r"\S+(?= -m venv)", "BASE", shown.output)
    text = text.replace(sys.executable, "PYTHON").replace(str(HERE.parent), "/serve")
    return re.sub(r"(?<=-)[0-9a-f]{16}\b", "KEY", re.sub(r"(?<=tiny-hybrid-)[0-9a-f]{8}", "MADE", text))


@pytest.mark.parametrize("profile", ["sglang-cpu", "rx7900xtx-tp2", "nvidia-tp2"])
def test_the_steps_are_the_ones_that_were_reviewed(profile: str) -> None:
    """After a wanted change: write the new listing into the file."""
    file = SNAPSHOTS / f"{profile}.txt"
    listing = _listing(profile)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(listing)
    assert listing == file.read_text()


@pytest.mark.parametrize("profile", shipped_names())
def test_each_shipped_profile_has_a_recipe_or_says_why_not(profile: str) -> None:
    if profile in INSTALLED:
        made = recipe_for(load_profile(profile))
        assert made.engine_version == load_profile(profile).versions.chosen
        assert len({step.id for step in made.steps}) == len(made.steps)
    else:
        with pytest.raises(NothingToInstall, match="needs no installation"):
            recipe_for(load_profile(profile))


def test_a_version_that_there_is_no_recipe_for_is_refused() -> None:
    profile = load_profile("rx7900xtx-tp2")
    older = msgspec.structs.replace(profile, versions=msgspec.structs.replace(profile.versions, install="0.5.20"))
    with pytest.raises(NothingToInstall, match=r"for SGLang 0\.5\.20; this governor can install 0\.5\.23"):
        recipe_for(older)


def test_a_patch_that_there_is_not_is_refused() -> None:
    profile = load_profile("rx7900xtx-tp2")
    patched = msgspec.structs.replace(profile.install, patches=("no-such-patch",))
    with pytest.raises(InstallFailed, match="no-such-patch"):
        recipe_for(msgspec.structs.replace(profile, install=patched))


@pytest.mark.parametrize("lock", sorted((HERE / "locks").glob("*.txt")), ids=lambda path: path.stem)
def test_locks_pin_and_hash_everything(lock: Path) -> None:
    entries = re.split(r"\n(?=\S)", lock.read_text().strip())
    assert entries
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+==[^\s;]+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_nothing_can_replace_the_torch_of_a_gpu() -> None:
    for name in ("sglang-base.txt", "gfx1100.txt"):
        pinned = re.findall(r"^([a-z0-9-]+)==", (HERE / "locks" / name).read_text(), re.MULTILINE)
        assert not [package for package in pinned if re.match(r"torch|triton|nvidia|cuda|flashinfer", package)]
    for step in recipe_for(load_profile("rx7900xtx-tp2")).steps:
        for command in step.commands:
            if "pip" in command.argv:
                assert {"--no-deps", "--no-index"} & set(command.argv), command.argv


def test_engines_live_where_the_owner_says() -> None:
    assert engines_folder({"GOVERNOR_ENGINES": "/big/disk"}) == Path("/big/disk")
    assert engines_folder({}).name == "engines"
