"""``governor patch``: what a machine's sources and weights need changed, done and undone."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from governor.cli.console import Exit, fail, out, plain_table, print_json, told_errors
from governor.cli.options import JsonOption
from serve.patches import ALL, GATES, Change, Patch, Patcher, PatchReport, Place, by_id, engine_version, judge

app = typer.Typer(no_args_is_help=True, help="Change kernel sources and model files for this machine, and back.")

_FOLDER_OPTIONS = {Place.KERNEL_SOURCE: "--root", Place.MODEL: "--model"}

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PATCH]...", help="Which ones; all that the folders are about, if none is named."),
]
RootOption = Annotated[
    Path | None,
    typer.Option("--root", exists=True, file_okay=False, help="A checkout of SGLang, or its kernels' source folder."),
]
ModelOption = Annotated[
    Path | None, typer.Option("--model", exists=True, file_okay=False, help="The folder of the model's weights.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what would change.")]


@app.command(name="list")
def list_patches(
    root: RootOption = None,
    model: ModelOption = None,
    engine: Annotated[
        str | None, typer.Option("--engine-version", help="Version of SGLang, where the folder does not say it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the patches and what they find, and the faults that newer versions of SGLang do not have any more."""
    with told_errors():
        patcher = Patcher(root=root, model=model)
        rows = [_patch_row(patcher, patch) for patch in ALL]
        version = engine or (engine_version(root) if root is not None else None)
    rows += [
        {
            "id": gate.id,
            "kind": "fixed upstream",
            "title": gate.title,
            "why": gate.why,
            "evidence": gate.evidence,
            "versions": f"fixed in {gate.fixed_in}",
            "status": str((found := judge(gate, version)).status),
            "detail": found.detail,
        }
        for gate in GATES
    ]
    if as_json:
        print_json(rows)
        return
    table = plain_table("patch", "kind", "status", "title")
    for row in rows:
        table.add_row(row["id"], row["kind"], row["status"] or "-", escape(row["title"]))
    out.print(table)
    for row in rows:
        if row["status"] is not None:
            out.print(f"\n{row['id']}: {escape(row['detail'])}", soft_wrap=True)


@app.command()
def apply(
    ids: IdsArgument = None,
    root: RootOption = None,
    model: ModelOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Apply patches. The original stays beside each changed file; an unknown shape is left alone.

    \b
    governor patch apply --root ~/src/sglang --dry-run
    governor patch apply gptq-mtp-rules --model ~/models/qwen-gptq
    """
    with told_errors():
        patcher = Patcher(root=root, model=model)
        chosen = _chosen(patcher, ids)
        for patch in chosen:
            patcher.to_apply(patch)
        changes = {patch.id: patcher.to_apply(patch) if dry_run else patcher.apply(patch) for patch in chosen}
        reports = [patcher.report(patch) for patch in chosen]
    _print_changes(changes, reports, dry_run, as_json)
    if not as_json and not dry_run:
        for patch in chosen:
            if changes[patch.id]:
                out.print(escape(patch.afterwards))


@app.command()
def revert(
    ids: IdsArgument = None,
    root: RootOption = None,
    model: ModelOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take patches out again, byte for byte. Refuses where a file was changed since."""
    with told_errors():
        patcher = Patcher(root=root, model=model)
        chosen = _chosen(patcher, ids)
        for patch in chosen:
            patcher.to_revert(patch)
        changes = {patch.id: patcher.to_revert(patch) if dry_run else patcher.revert(patch) for patch in chosen}
        reports = [patcher.report(patch) for patch in chosen]
    _print_changes(changes, reports, dry_run, as_json)


@app.command()
def verify(
    ids: IdsArgument = None,
    root: RootOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say of each patch whether it is in effect. Ends with 1 if one is not."""
    with told_errors():
        patcher = Patcher(root=root, model=model)
        reports = [patcher.report(patch) for patch in _chosen(patcher, ids)]
    if as_json:
        print_json([_report(report) for report in reports])
    else:
        table = plain_table("patch", "in effect", "status", "detail")
        for report in reports:
            table.add_row(
                report.patch.id, "yes" if report.in_effect else "NO", str(report.status), escape(_explained(report))
            )
        out.print(table)
    if not all(report.in_effect for report in reports):
        raise SystemExit(int(Exit.FAILED))


def _chosen(patcher: Patcher, ids: list[str] | None) -> list[Patch]:
    if ids:
        try:
            chosen = [by_id(patch_id) for patch_id in dict.fromkeys(ids)]
        except KeyError as error:
            fail(f"there is no patch {error.args[0]!r}; 'governor patch list' shows them", Exit.USAGE)
        for patch in chosen:
            if not patcher.has_place(patch):
                fail(f"{patch.id} needs {_FOLDER_OPTIONS[patch.place]} DIR", Exit.USAGE)
        return chosen
    chosen = [patch for patch in ALL if patcher.has_place(patch)]
    if not chosen:
        fail("give --root DIR, --model DIR, or both", Exit.USAGE)
    return chosen


def _patch_row(patcher: Patcher, patch: Patch) -> dict[str, Any]:
    report = patcher.report(patch) if patcher.has_place(patch) else None
    return {
        "id": patch.id,
        "kind": "patch",
        "title": patch.title,
        "why": patch.why,
        "evidence": patch.evidence,
        "versions": patch.versions,
        "status": None if report is None else str(report.status),
        "detail": f"needs {_FOLDER_OPTIONS[patch.place]}" if report is None else _explained(report),
    }


def _print_changes(
    changes: dict[str, tuple[Change, ...]], reports: list[PatchReport], dry_run: bool, as_json: bool
) -> None:
    if as_json:
        print_json(
            [
                {
                    **_report(report),
                    "dry_run": dry_run,
                    "changed": [str(change.path) for change in changes[report.patch.id]],
                    "diff": "".join(_diff(change) for change in changes[report.patch.id]),
                }
                for report in reports
            ]
        )
        return
    for report in reports:
        made = changes[report.patch.id]
        if not made:
            out.print(f"{report.patch.id}: nothing to do, {report.status}; {escape(report.detail)}", soft_wrap=True)
        for change in made:
            if dry_run:
                typer.echo(_diff(change), nl=False)
            else:
                out.print(f"{report.patch.id}: changed {escape(str(change.path))}", soft_wrap=True)


def _diff(change: Change) -> str:
    """Lines end as they do in the files, so that a diff of one with CRLF can be applied."""
    lines = difflib.unified_diff(
        _lines(change.before), _lines(change.after), fromfile=str(change.path), tofile=str(change.path)
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Only a line feed ends a line, for ``patch`` as for the compiler."""
    *whole, last = text.split("\n")
    return [f"{line}\n" for line in whole] + ([last] if last else [])


def _report(report: PatchReport) -> dict[str, Any]:
    return {
        "id": report.patch.id,
        "status": str(report.status),
        "in_effect": report.in_effect,
        "files": [
            {
                "path": str(file.path),
                "status": str(file.look.status),
                "detail": file.look.detail,
                "not_revertible": file.not_revertible,
            }
            for file in report.files
        ],
    }


def _explained(report: PatchReport) -> str:
    reasons = [f"cannot be reverted: {file.not_revertible}" for file in report.files if file.not_revertible]
    return "; ".join([report.detail, *reasons])
