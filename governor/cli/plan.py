"""``governor plan``: what fits, before the first token."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from governor.cli.console import Exit, fail, out, plain_table, print_json, shown, told_errors
from governor.cli.options import JsonOption
from governor.errors import ConfigError
from governor.policy.loader import load_shipped, read_agent, shipped_folder
from serve.model_files import ModelFacts, model_facts
from serve.plan import Demand, Plan, PlanInputs, make_plan
from serve.plan.machines import Measured, machine_for
from serve.plan.pools import DoesNotFit
from serve.profile import Profile, load_profile
from serve.profile.model import EngineKind
from serve.sglang_settings import GB

_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")


def plan(
    profile: Annotated[str, typer.Option("--profile", "-p", help="A shipped profile, or a file of yours by its path.")],
    model: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="Weights: a folder with config.json, or a name.")
    ] = None,
    agents: Annotated[int | None, typer.Option(min=1, max=1000, help="That many agents, with --context.")] = None,
    context: Annotated[
        str | None, typer.Option(metavar="TOKENS|PERCENT%", help="Context of each, or its share of the window.")
    ] = None,
    policies: Annotated[
        Path | None, typer.Option(metavar="DIR", help="One agent for each policy file, with its ceiling and turns.")
    ] = None,
    gpu_memory: Annotated[
        float | None, typer.Option("--gpu-memory", min=1, help="GiB of one GPU, over the profile's.")
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="L1 as your engine prints it (max_total_num_tokens).")
    ] = None,
    state_slots: Annotated[int | None, typer.Option(min=1, help="States of L1 as your engine prints them.")] = None,
    host_kv_tokens: Annotated[int | None, typer.Option(min=1, help="L2 as your engine prints it.")] = None,
    calculated: Annotated[
        bool, typer.Option("--calculated", help="Leave out published measurements of this machine.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what each tier holds, how many agents decode together, who is retained, and what a return costs.

    \b
    governor plan -p rx7900xtx-tp2 --agents 4 --context 65%
    governor plan -p rx7900xtx-tp2 --policies ./policies --model ~/models/qwen-gptq
    """
    with told_errors():
        chosen = load_profile(profile)
        if chosen.engine is EngineKind.UPSTREAM:
            fail("nothing is known of an engine that is not ours; plan for the profile that it runs with", Exit.USAGE)
        facts = model_facts(chosen, model)
        window = chosen.model.context_length or facts.shape.window_tokens
        demands = _demands(agents, context, policies, window)
    machine = None if calculated or gpu_memory else machine_for(chosen.name, facts.shape)
    said = Measured(source="your engine", kv_tokens=kv_tokens, state_slots=state_slots, host_kv_tokens=host_kv_tokens)
    own = any(figure is not None for figure in (kv_tokens, state_slots, host_kv_tokens))
    inputs = PlanInputs(
        gpu_gib=gpu_memory,
        weight_bytes=facts.weight_bytes,
        weights_assumed=facts.weights_assumed and chosen.engine is EngineKind.SGLANG,
        measured=said if own else machine.capacity if machine else None,
        costs=machine.costs if machine else None,
    )
    try:
        made = make_plan(chosen, facts.shape, inputs, demands)
    except DoesNotFit as error:
        fail(f"{_unfitting(chosen, facts)}: {error}", Exit.USAGE)
    if as_json:
        print_json(made)
    else:
        _print(made, chosen)


def _unfitting(profile: Profile, facts: ModelFacts) -> str:
    unset = "" if profile.memory.mem_fraction_static else " (memory.mem_fraction_static is unset; 0.9 is usual)"
    return f"{facts.shape.name} does not fit with profile {profile.name}{unset}"


def _demands(agents: int | None, context: str | None, policies: Path | None, window: int | None) -> tuple[Demand, ...]:
    if policies is not None:
        if agents is not None or context is not None:
            fail("give --policies, or --agents with --context", Exit.USAGE)
        return policy_demands(policies, window)
    if agents is None and context is None:
        return ()
    tokens = _tokens(context, window)
    return tuple(Demand(name=f"agent {number}", ceiling_tokens=tokens) for number in range(1, (agents or 1) + 1))


def _tokens(context: str | None, window: int | None) -> int:
    if context is None:
        context = "100%"
    share = _SHARE.fullmatch(context)
    if share and window:
        return int(float(share[1]) / 100 * window)
    digits = context.replace(",", "").replace("_", "")
    if not digits.isdigit() or int(digits) == 0:
        fail(f"--context {context}: give tokens (128000) or a share of the window (65%)", Exit.USAGE)
    return int(digits)


def policy_demands(folder: Path, window: int | None) -> tuple[Demand, ...]:
    """One agent a file, in the order of their names. Raises :class:`~governor.errors.ConfigError`."""
    shipped = load_shipped(shipped_folder())
    demands = []
    for path in sorted(folder.glob("*.toml")):
        resolved = read_agent(path, shipped)
        if resolved is None:
            continue
        policy = resolved.policy
        ceiling = policy.context.ceiling_tokens or window
        if ceiling is None:
            raise ConfigError("has no ceiling, and the engine's window is not known", file=str(path))
        ceiling = min(ceiling, window) if window else ceiling
        demands.append(Demand(name=path.stem, ceiling_tokens=ceiling, concurrency=policy.limits.concurrency))
    if not demands:
        raise ConfigError("there are no policy files (*.toml) in this folder", file=str(folder))
    return tuple(demands)


def _print(made: Plan, profile: Profile) -> None:
    unit = made.unit
    state = f", {unit.state_bytes / 2**20:.1f} MiB a state" if unit.state_bytes else ""
    ranks = f" on each of {unit.tp} ranks" if unit.tp > 1 else ""
    out.print(f"{escape(made.profile)}: {escape(made.model)}, {unit.kv_bytes:,} bytes of KV a token{state}{ranks}")
    out.print(_tiers(made))
    if made.demands:
        table = plain_table("agent", "ceiling", "turns at once", "share of L1")
        for demand in made.demands:
            share = f"{demand.ceiling_tokens / made.l1.kv_tokens:.0%}" if made.l1.kv_tokens else "-"
            table.add_row(escape(demand.name), shown(demand.ceiling_tokens), shown(demand.concurrency), share)
        out.print()
        out.print(table)
    out.print()
    table = plain_table("return of", "from", "seconds", "basis")
    for cost in made.returns:
        seconds = "-" if cost.seconds is None else f"{cost.seconds:.2f}"
        table.add_row(shown(made.return_tokens), cost.tier, seconds, escape(cost.basis))
    out.print(table)
    for note in made.notes:
        out.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    out.print()
    out.print(escape(made.verdict), soft_wrap=True)


def _tiers(made: Plan) -> object:
    unit, device, measured = made.unit, made.device, made.measured
    table = plain_table("tier", "KV tokens", "states", "measured", "bytes a rank", "a GB holds")
    rows = [("L1 GPU", device.tier, measured.kv_tokens if measured else None)]
    if made.host is not None:
        rows.append(("L2 RAM", made.host, measured.host_kv_tokens if measured else None))
    for name, tier, seen in rows:
        size = f"{(tier.kv_bytes + tier.state_bytes) / GB:.2f} GB"
        per_gb = f"{made.host_per_gb.kv_tokens:,} tokens"
        if unit.state_bytes:
            per_gb += f", {made.host_per_gb.state_slots} states"
        slots = shown(tier.state_slots if unit.state_bytes else None)
        table.add_row(name, shown(tier.kv_tokens), slots, shown(seen), size, per_gb)
    if made.disk is not None:
        per_gb = f"{made.disk.tokens_per_gb:,} tokens, {made.disk.files_per_gb:,} files"
        table.add_row("L3 disk", shown(made.disk.kv_tokens), "with KV", "-", f"{made.disk.files:,} files", per_gb)
    return table
