"""``governor engine``: engine profiles, and the exact command that a profile stands for."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from governor.cli import engine_install, engine_ops
from governor.cli.console import Exit, err, fail, out, plain_table, print_json, told_errors
from governor.cli.options import HomeOption, JsonOption, WithoutOption
from governor.settings import Home
from serve.argcheck import ask_parser
from serve.argv import LaunchCommand, Note, command_diff, flag_groups, priority_note, sglang_command
from serve.embedded.config import EmbeddedConfig
from serve.launcher import DEFAULT_CONTEXT_TOKENS, embedded_argv
from serve.placement import place
from serve.profile import Profile, load_profile, shipped_names
from serve.profile.model import EngineKind
from serve.profile.tiers import without as without_tiers

DEFAULT_ENGINE_PORT = 30000

app = typer.Typer(no_args_is_help=True, help="Show, install and describe engines by profile.")
app.command()(engine_install.install)
app.command()(engine_ops.systemd)
app.command()(engine_ops.retry)


@app.command()
def profiles(as_json: JsonOption = False) -> None:
    """List the engine profiles that come with the program."""
    with told_errors():
        found = [load_profile(name) for name in shipped_names()]
    if as_json:
        print_json([_described(profile) for profile in found])
        return
    table = plain_table("profile", "engine", "versions", "summary")
    for profile in found:
        versions = f"{profile.versions.oldest} - {profile.versions.newest}" if _is_sglang(profile) else "-"
        table.add_row(profile.name, profile.engine, versions, escape(profile.summary))
    out.print(table)


@app.command()
def command(
    home: HomeOption,
    profile: Annotated[
        str | None, typer.Option("--profile", "-p", help="A shipped profile, or a file of yours by its path.")
    ] = None,
    diff: Annotated[tuple[str, str] | None, typer.Option(help="Compare the commands of two profiles.")] = None,
    model: Annotated[str | None, typer.Option(help="Weights: a folder or a hub name, over the profile's.")] = None,
    port: Annotated[int, typer.Option(help="Port of the engine.", min=1, max=65535)] = DEFAULT_ENGINE_PORT,
    python: Annotated[str, typer.Option(help="Interpreter of the engine's environment.")] = "python",
    version: Annotated[
        str | None, typer.Option(help="SGLang version to write the command for; the profile's, if not given.")
    ] = None,
    without: WithoutOption = None,
    check: Annotated[bool, typer.Option("--check", help="Ask the parser of the SGLang in --python's place.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the exact command and environment of a profile. Starts nothing.

    \b
    governor engine command --profile rx7900xtx-tp2 --model ~/models/qwen-gptq
    governor engine command --profile nvidia-single --without l3
    governor engine command --diff rtx4090-48g rtx5090-32g
    """
    if (profile is None) == (diff is None):
        fail("give --profile P, or --diff P1 P2", Exit.USAGE)
    with told_errors():
        names = (profile,) if profile is not None else diff or ()
        asked = [without_tiers(load_profile(name), without or ()) for name in names]
        made = [_command(chosen, home, model, port, python, version) for chosen in asked]
    if diff is not None:
        _print_diff(made, diff, as_json)
        return
    problem = _parser_problem(python, made[0]) if check else None
    if as_json:
        print_json({"profile": profile, **msgspec.to_builtins(made[0]), "parser_problem": problem})
    else:
        _print_command(made[0])
    if problem is not None:
        fail(problem, Exit.ENGINE)


def _command(
    profile: Profile, home: Home, model: str | None, port: int, python: str, version: str | None
) -> LaunchCommand:
    match profile.engine:
        case EngineKind.SGLANG:
            site = place(profile, home, port=port, python=python, model_path=model, version=version)
            return sglang_command(profile, site, version)
        case EngineKind.LLAMACPP:
            config = EmbeddedConfig(
                model_path=model or profile.model.path or str(home.models / "MODEL.gguf"),
                model_id=profile.model.served_name or "",
                port=port,
                parent_pid=os.getpid(),
                context_tokens=profile.model.context_length or DEFAULT_CONTEXT_TOKENS,
                slots=profile.llamacpp.slots,
                cache_ram_mib=profile.llamacpp.cache_ram_mib,
                slot_save_path=str(home.root / "kv"),
            )
            note = Note("model.path", "the weights are fetched, and their path is filled in, at the start")
            notes = (*(() if model or profile.model.path else (note,)), *_priority(profile))
            return LaunchCommand(argv=embedded_argv(config), env=profile.environment, notes=notes)
        case EngineKind.UPSTREAM:
            note = Note("engine", "nothing is launched: governor up --upstream URL points at the server")
            return LaunchCommand(argv=(), env={}, notes=(note, *_priority(profile)))


def _priority(profile: Profile) -> tuple[Note, ...]:
    return (Note("scheduling.priority", priority_note(profile)),)


def _parser_problem(python: str, made: LaunchCommand) -> str | None:
    flags = [word for words in flag_groups(made.argv) for word in words]
    (verdict,) = ask_parser(python, [flags], {**os.environ, **made.env})
    if not verdict.imported:
        return f"SGLang cannot be imported by {python}: {verdict.problem}"
    return None if verdict.problem is None else f"SGLang {verdict.version} refuses the command: {verdict.problem}"


def _print_command(made: LaunchCommand) -> None:
    """One flag a line, to read and to paste into a shell."""
    program = list(made.argv[: _program_length(made)])
    lines = [f"{name}={shlex.quote(value)}" for name, value in sorted(made.env.items())]
    lines += [shlex.join(program)] if program else []
    lines += [f"  {shlex.join(words)}" for words in flag_groups(made.argv[len(program) :])]
    if lines:
        typer.echo(" \\\n".join(lines))
    for note in made.notes:
        err.print(f"[dim]note:[/] {escape(f'{note.key}: {note.text}')}")


def _program_length(made: LaunchCommand) -> int:
    return next((at for at, word in enumerate(made.argv) if word.startswith("--")), len(made.argv))


def _print_diff(made: list[LaunchCommand], names: tuple[str, str], as_json: bool) -> None:
    lines = command_diff(made[0], made[1])
    if as_json:
        print_json({"profiles": names, "differences": lines})
        return
    for line in (f"--- {names[0]}", f"+++ {names[1]}", *lines):
        typer.echo(line)


def _described(profile: Profile) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(profile)
    return tree


def _is_sglang(profile: Profile) -> bool:
    return profile.engine is EngineKind.SGLANG
