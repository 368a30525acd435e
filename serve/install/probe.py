"""Checks inside the engine's environment: ``python probe.py CHECK ARGUMENT...``. Exits with 0, or says what is wrong.

A program of its own: it runs in the engine's interpreter, where nothing of the governor can be imported.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import multiprocessing
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

PLUGINS = "sglang.srt.plugins"


class Wrong(Exception):
    """The check failed; the message is for the person who installs."""


def python(*versions: str) -> None:
    """The interpreter is one of these versions (``3.11``)."""
    own = "{}.{}".format(*sys.version_info[:2])
    if own not in versions:
        raise Wrong(f"this is Python {own}; wanted {' or '.join(versions)}")


def packages(*locks: str) -> None:
    """Everything a lock names for this machine is installed in that version."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - not there before the first lock is installed

    missing = []
    for lock in locks:
        for line in Path(lock).read_text().splitlines():
            if not re.match(r"[A-Za-z0-9]", line):
                continue
            wanted = Requirement(line.split(" \\")[0])
            if wanted.marker is None or wanted.marker.evaluate():
                found = _version(wanted.name)
                if found is None or not wanted.specifier.contains(found, prereleases=True):
                    missing.append(f"{wanted} (found: {found or 'none'})")
    if missing:
        raise Wrong(f"{len(missing)} packages are not as the lock says: {', '.join(missing[:5])}")


def torch(version: str, kind: str) -> None:
    """Torch has this version and is built for ``cpu``, ``cuda`` or ``hip``. ``cpu`` takes any build. Does not import
    it."""
    found = _version("torch")
    if found is None or found.partition("+")[0] != version:
        raise Wrong(f"torch is {found or 'not installed'}; wanted {version}")
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Wrong("torch cannot be found")
    built = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    if kind != "cpu" and not built.get(kind):
        raise Wrong(f"torch {found} is not a {kind} build: something has replaced it")


def files(*paths: str) -> None:
    """These exist and are not empty."""
    for path in paths:
        if not Path(path).exists() or (Path(path).is_file() and not Path(path).stat().st_size):
            raise Wrong(f"{path} is missing")


def imports(*modules: str) -> None:
    """These can be imported."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise Wrong(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


def plugins(*names: str) -> None:
    """SGLang finds these plugins, and what they hook into takes hold in a scheduler's process."""
    child = multiprocessing.get_context("spawn").Process(target=_load_plugins, args=(names,))
    child.start()
    child.join()
    if child.exitcode:
        raise Wrong(f"plugins do not load: {', '.join(names)}")


def _load_plugins(names: tuple[str, ...]) -> None:
    """SGLang logs a plugin or a hook that fails and goes on; here that is an error."""
    found = {entry.name: entry for entry in importlib.metadata.entry_points(group=PLUGINS)}
    for name in names:
        if name not in found:
            sys.exit(f"no plugin {name} is installed; there are: {', '.join(sorted(found)) or 'none'}")
        found[name].load()()
    registry = importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry
    registry.apply_hooks()
    failed = sorted(set(registry._hooks) - registry._patched)
    if failed:
        sys.exit(f"hooks that do not fit this SGLang: {', '.join(failed)}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


CHECKS: dict[str, Callable[..., None]] = {
    "python": python,
    "packages": packages,
    "torch": torch,
    "files": files,
    "imports": imports,
    "plugins": plugins,
}


def main() -> None:
    try:
        CHECKS[sys.argv[1]](*sys.argv[2:])
    except Wrong as wrong:
        sys.exit(str(wrong))


if __name__ == "__main__":
    main()
