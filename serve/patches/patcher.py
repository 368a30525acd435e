"""Patches carried out on files: found, changed atomically, and put back byte for byte.

The original stays beside a changed file (``NAME.governor-orig``) for as long as a patch of ours is in it. Nothing else
is written down: what has been applied is told from the file, and that nobody else changed it by applying the same
patches to the original again. So a stop at any moment leaves each file with one text or the other, and the same
command, given again, completes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from governor.files import write_atomic
from serve.errors import PatchRefused
from serve.patches.model import Facts, Look, Patch, Place, Status, overall
from serve.patches.shelf import ALL
from serve.patches.tensors import tensor_names

ORIGINAL_SUFFIX = ".governor-orig"
_SOURCE_FOLDERS = ("", "python/sglang/kernels/aot", "sgl-kernel")
"""Where the kernels' sources are: the folder itself, or a checkout of newer or older SGLang."""
_VERSION_FILES = ("_version.py", "sglang/_version.py", "python/sglang/_version.py")
_VERSION = re.compile(r"""^__version__\s*=.*?['"]([^'"]+)['"]""", re.MULTILINE)
_IN_EFFECT = frozenset({Status.APPLIED, Status.FIXED_UPSTREAM, Status.NOT_APPLICABLE})


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    look: Look
    not_revertible: str | None = None
    """Of an applied patch: why it cannot be taken out again; ``None`` if it can."""


class PatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """One patch and all its targets that exist."""

    patch: Patch
    files: tuple[FileReport, ...]

    @property
    def status(self) -> Status:
        return overall(file.look.status for file in self.files)

    @property
    def in_effect(self) -> bool:
        """Nothing is left to be done."""
        return bool(self.files) and self.status in _IN_EFFECT

    @property
    def detail(self) -> str:
        if not self.files:
            return f"none of {', '.join(self.patch.targets)} there"
        return "; ".join(f"{file.path.name}: {file.look.detail}" for file in self.files)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One file's text before and after."""

    path: Path
    before: str
    after: str


class Patcher:
    """Patches on one kernel source tree and one model folder. Blocks on the disk; one at a time on a folder.

    ``patches`` are all that may be in the files, also when only one of them is asked about.
    """

    def __init__(self, *, root: Path | None, model: Path | None, patches: Sequence[Patch] = ALL) -> None:
        self._folders = {Place.KERNEL_SOURCE: root, Place.MODEL: model}
        self._patches = tuple(patches)

    def has_place(self, patch: Patch) -> bool:
        """Whether the folder that the patch is about was given."""
        return self._folders[patch.place] is not None

    def report(self, patch: Patch) -> PatchReport:
        """What there is to say about a patch. Changes nothing. Raises :class:`PatchRefused` for an unreadable file."""
        facts = self._facts(patch)
        files = []
        for path in self._targets(patch):
            text = _read(path)
            look = patch.look(text, facts)
            reason = self._foreign_change(path, text, facts) if look.status is Status.APPLIED else None
            files.append(FileReport(path=path, look=look, not_revertible=reason))
        return PatchReport(patch=patch, files=tuple(files))

    def to_apply(self, patch: Patch) -> tuple[Change, ...]:
        """The changes that applying would make; none where it is in effect. Changes nothing.

        Raises :class:`PatchRefused` at an unknown shape, or when there is no target.
        """
        facts = self._facts(patch)
        changes = []
        for path in self._found_targets(patch):
            text = _read(path)
            look = patch.look(text, facts)
            if look.status is Status.UNKNOWN_SHAPE:
                raise PatchRefused(f"{patch.id}: {path} is not touched: {look.detail}")
            if look.patched is not None:
                if patch.look(look.patched, facts).status is not Status.APPLIED:
                    raise PatchRefused(f"{patch.id}: {path} is not touched: the result would not hold")
                changes.append(Change(path=path, before=text, after=look.patched))
        return tuple(changes)

    def apply(self, patch: Patch) -> tuple[Change, ...]:
        """Make the changes of :meth:`to_apply`, the originals kept beside the files. May be repeated.

        Raises :class:`PatchRefused` before anything is written, :class:`ConfigError` if a file cannot be written.
        """
        facts = self._facts(patch)
        changes = self.to_apply(patch)
        fresh = [change for change in changes if self._needs_original(change, facts)]
        for change in fresh:
            write_atomic(_original(change.path), change.before, mode=change.path.stat().st_mode & 0o777)
        for change in changes:
            write_atomic(change.path, change.after)
        return changes

    def to_revert(self, patch: Patch) -> tuple[Change, ...]:
        """The changes that taking the patch out would make; none where it is not in. Changes nothing.

        Raises :class:`PatchRefused` if a file was changed since, or its original is gone.
        """
        facts = self._facts(patch)
        changes = []
        for path in self._found_targets(patch):
            text = _read(path)
            look = patch.look(text, facts)
            if look.status is Status.UNKNOWN_SHAPE and _original(path).exists():
                raise PatchRefused(f"{patch.id}: {path} is not touched, it was changed since: {look.detail}")
            if look.status is not Status.APPLIED:
                continue
            if (reason := self._foreign_change(path, text, facts)) is not None:
                raise PatchRefused(f"{patch.id}: {path} is not touched: {reason}")
            original = _read(_original(path))
            rest = [other for other in self._added(text, original, facts) if other.id != patch.id]
            changes.append(Change(path=path, before=text, after=_with(original, rest, facts)))
        return tuple(changes)

    def revert(self, patch: Patch) -> tuple[Change, ...]:
        """Make the changes of :meth:`to_revert`; an original that nothing needs any more is removed. May be repeated.

        Raises as :meth:`to_revert`, and :class:`ConfigError` if a file cannot be written.
        """
        changes = self.to_revert(patch)
        for change in changes:
            original = _original(change.path)
            restored = _read(original) == change.after
            write_atomic(change.path, change.after)
            if restored:
                original.unlink()
        return changes

    def _facts(self, patch: Patch) -> Facts:
        folder = self._folders[patch.place]
        if patch.place is Place.MODEL and folder is not None:
            return Facts(mtp_tensors=tensor_names(folder, "mtp."))
        return Facts()

    def _targets(self, patch: Patch) -> tuple[Path, ...]:
        """Links followed: in a hub's cache a model's file is one, and the original belongs beside the real file."""
        folder = self._folders[patch.place]
        if folder is None:
            raise PatchRefused(f"{patch.id} is about a {patch.place.value.replace('_', ' ')} folder; none was given")
        for inner in _SOURCE_FOLDERS if patch.place is Place.KERNEL_SOURCE else ("",):
            found = [path.resolve() for name in patch.targets if (path := folder / inner / name).is_file()]
            if found:
                return tuple(dict.fromkeys(found))
        return ()

    def _found_targets(self, patch: Patch) -> tuple[Path, ...]:
        targets = self._targets(patch)
        if not targets:
            raise PatchRefused(f"{patch.id}: {self._folders[patch.place]} has none of {', '.join(patch.targets)}")
        return targets

    def _added(self, text: str, original: str, facts: Facts) -> list[Patch]:
        """Patches that are in the text and were not in its original."""
        return [
            patch
            for patch in self._patches
            if patch.look(text, facts).status is Status.APPLIED
            and patch.look(original, facts).status is not Status.APPLIED
        ]

    def _foreign_change(self, path: Path, text: str, facts: Facts) -> str | None:
        """Why the text is not its original with our patches; ``None`` if it is."""
        kept = _original(path)
        if not kept.exists():
            return f"there is no original ({kept.name})"
        original = _read(kept)
        if _with(original, self._added(text, original, facts), facts) != text:
            return f"it was changed since it was patched (its original: {kept.name})"
        return None

    def _needs_original(self, change: Change, facts: Facts) -> bool:
        """Whether the present text is to become the original.

        It is not where it holds patches of ours over an original that is there. An original of a file that an upgrade
        has replaced since (no patch of ours in the text) has had its day.
        """
        kept = _original(change.path)
        if not kept.exists():
            return True
        original = _read(kept)
        added = self._added(change.before, original, facts)
        if added and _with(original, added, facts) != change.before:
            raise PatchRefused(f"{change.path} is not touched: it was changed since it was patched ({kept.name})")
        return not added and change.before != original


def engine_version(root: Path) -> str | None:
    """Version of the SGLang in a folder of installed packages or in a checkout; ``None`` if it cannot be told."""
    for name in _VERSION_FILES:
        path = root / name
        if path.is_file() and (found := _VERSION.search(_read(path))):
            return found[1]
    installed = sorted(root.glob("sglang-*.dist-info"))
    return installed[0].name.removeprefix("sglang-").removesuffix(".dist-info") if len(installed) == 1 else None


def _with(text: str, patches: Sequence[Patch], facts: Facts) -> str:
    for patch in patches:
        patched = patch.look(text, facts).patched
        text = text if patched is None else patched
    return text


def _original(path: Path) -> Path:
    return path.with_name(path.name + ORIGINAL_SUFFIX)


def _read(path: Path) -> str:
    """The text with its line ends and byte order mark as they are."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise PatchRefused(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PatchRefused(f"{path} is not touched: it is not UTF-8 (byte {error.start})") from error
