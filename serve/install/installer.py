"""Does the steps of a recipe, one after another, and keeps what is done.

An engine's folder is named after the hash of its recipe and locks. It is built in place, since virtual environments
cannot be moved, under a file lock, and counts only when its marker is written. After a failure or a kill the next run
goes on: finished steps are looked at with their quick checks and not done again.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import filelock

from serve.errors import InstallFailed
from serve.install.base import BasePython, find_base
from serve.install.cures import advice_for
from serve.install.installed import InstalledEngine, described, engine_folder
from serve.install.model import HERE, Command, InstallRecipe, Step
from serve.install.record import Record
from serve.install.runner import Outcome, Runner, Say

_GIB = 2**30
_AGAIN = "Run the same command again: finished steps are kept."


class Installer:
    """For one recipe in one folder of engines. Blocks; one call at a time, other processes wait."""

    def __init__(
        self, recipe: InstallRecipe, engines: Path, runner: Runner, say: Say, base: BasePython | None = None
    ) -> None:
        """``base`` makes the environment; ``None``: found on the machine."""
        self._recipe = recipe
        self._runner = runner
        self._say = say
        self._base = base or find_base(recipe.pythons)
        self._engines = engines
        version = self._base.version if self._base else recipe.pythons[0]
        self.engine: InstalledEngine = described(recipe, engine_folder(recipe, engines, version))
        self._record = Record(self.engine.folder)

    @property
    def is_complete(self) -> bool:
        """Costs a few file reads."""
        return self.engine.python.exists() and self._record.is_complete(self._recipe)

    def install(self, *, check: bool = False) -> InstalledEngine:
        """Do what is not done. ``check``: look at the steps of a finished installation too.

        Raises :class:`InstallFailed`, naming the step, its output and a cure.
        """
        with self._locked():
            if check or not self.is_complete:
                self._do_steps()
        return self.engine

    def filled(self, command: Command) -> tuple[tuple[str, ...], dict[str, str]]:
        """Arguments and environment with this machine's paths."""
        argv = tuple(self._filled(word) for word in command.argv)
        return argv, {name: self._filled(value) for name, value in command.env.items()}

    def _do_steps(self) -> None:
        if self._base is None:
            wanted = self._recipe.pythons
            raise InstallFailed(
                f"The engine needs Python {' or '.join(wanted)}, and there is no such interpreter on PATH. Install one "
                f"(python{wanted[0]} and its venv package) and run the command again."
            )
        if not self.engine.folder.exists():
            self._demand_space()
            self.engine.folder.mkdir()
        steps = self._recipe.steps
        for number, step in enumerate(steps, 1):
            began = time.monotonic()
            head = f"[{number}/{len(steps)}] {step.title}"
            if self._is_done(step):
                self._say(f"{head}: done before")
                continue
            self._say(head)
            self._record.forget(step)
            for command in (*step.commands, step.check):
                self._run(step, command)
            self._record.remember(step)
            self._say(f"      done in {time.monotonic() - began:.0f} s")
        self._record.complete(self._recipe)

    def _is_done(self, step: Step) -> bool:
        return self._record.finished().get(step.id) == step.fingerprint and self._outcome(step.check).ok

    def _run(self, step: Step, command: Command) -> None:
        outcome = self._outcome(command)
        if outcome.ok:
            return
        argv, _ = self.filled(command)
        advice = advice_for(f"{outcome.tail}\n{outcome.how}")
        lines = [f"{step.title}: the command {outcome.how}.", f"  {' '.join(argv)}", outcome.tail, advice or ""]
        lines.append(f"The whole output is in {self._log}. {_AGAIN}")
        raise InstallFailed("\n".join(line for line in lines if line))

    def _outcome(self, command: Command) -> Outcome:
        argv, env = self.filled(command)
        cwd = Path(self._filled(command.cwd))
        return self._runner.run(argv, env=env, cwd=cwd, log=self._log, limit_s=command.limit_s, say=self._say)

    @property
    def _log(self) -> Path:
        return self.engine.folder / "install.log"

    def _filled(self, text: str) -> str:
        places: Mapping[str, Path] = {
            "{engine}": self.engine.folder,
            "{python}": self.engine.python,
            "{base}": self._base.path if self._base else Path(f"python{self._recipe.pythons[0]}"),
            "{governor}": Path(sys.executable),
            "{serve}": HERE.parent,
        }
        for name, path in places.items():
            text = text.replace(name, str(path))
        return text

    def _demand_space(self) -> None:
        free_gib = shutil.disk_usage(self._engines).free / _GIB
        if free_gib < self._recipe.disk_gib:
            raise InstallFailed(
                f"{self._engines} has {free_gib:.1f} GiB free; the engine takes {self._recipe.disk_gib:g} GiB. "
                "Free space, or choose another disk with --engines DIR."
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._engines.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self._engines / f".{self.engine.folder.name}.lock")
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                self._say("Another process installs this engine: waiting for it.")
                lock.acquire()
        except OSError as error:
            raise InstallFailed(
                f"Cannot write to {self._engines}: {error}. Choose another folder with --engines DIR."
            ) from error
        try:
            yield
        finally:
            lock.release()
