"""``governor doctor``: what is wrong with this machine and an engine profile, before the engine finds out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from governor.cli.console import Exit, out, print_json, told_errors
from governor.cli.engine_cmd import DEFAULT_ENGINE_PORT
from governor.cli.options import HomeOption, JsonOption
from governor.cli.plan import policy_demands
from serve.doctor import Case, Facts, Finding, LocalSystem, Severity, diagnose, probe_gpus, suggested_profile, survey
from serve.doctor.diagnose import EMBEDDED
from serve.doctor.facts import Gpu
from serve.errors import ServeError
from serve.install import InstalledEngine, engines_folder, find_engine, recipe_for
from serve.model_files import model_facts
from serve.placement import l3_parent
from serve.plan import Plan, PlanInputs, make_plan
from serve.plan.machines import machine_for
from serve.plan.pools import DoesNotFit
from serve.profile import Profile, load_profile, shipped_names
from serve.profile.model import EngineKind, Platform
from serve.sglang_settings import GB

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def doctor(
    home: HomeOption,
    profile: Annotated[
        str | None,
        typer.Option("--profile", "-p", help="A shipped profile, or a file of yours; this machine's, if not given."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="DIR|NAME", help="Weights, over the profile's.")] = None,
    policies: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Policies whose agents are to fit; the home's, if not given.")
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="Interpreter of the engine's environment, over the installed one.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the engine.", min=1, max=65535)] = DEFAULT_ENGINE_PORT,
    as_json: JsonOption = False,
) -> None:
    """Look at GPUs, memory, disk and the profile's settings. Changes nothing and starts nothing.

    \b
    Exit code: 0 nothing to mend, 1 warnings, 2 errors (or a wrong argument).
    governor doctor
    governor doctor --profile rx7900xtx-tp2 --model ~/models/qwen-gptq
    """
    with told_errors():
        system = LocalSystem()
        gpus = probe_gpus(system)
        shipped = [load_profile(name) for name in shipped_names()]
        chosen = load_profile(profile if profile is not None else suggested_profile(gpus, shipped))
        engine = _installed(chosen)
        l3_folder = l3_parent(chosen, home) if chosen.l3.backend is not None else None
        asked = python or (str(engine.python) if engine else None)
        facts = survey(gpus, l3_folder=l3_folder, ports={port: "the engine"}, python=asked, system=system)
        folder = policies or (home.policies if any(home.policies.glob("*.toml")) else None)
        weights = model or (str(engine.model_path) if engine and engine.model_path else None)
        results = [(chosen, diagnose(_case(chosen, facts, weights, folder)))]
        if not gpus.found and chosen.hardware.gpus:
            embedded = load_profile(EMBEDDED)
            results.append((embedded, diagnose(_case(embedded, facts, None, folder))))
    if as_json:
        listed = [{"profile": item.name, "findings": findings} for item, findings in results]
        print_json({"facts": facts, "results": listed, "exit_code": _verdict(results)})
    else:
        _print_facts(facts)
        for item, findings in results:
            _print_findings(item, findings)
    raise SystemExit(int(_verdict(results)))


def _installed(profile: Profile) -> InstalledEngine | None:
    """The engine that ``governor engine install`` made for the profile; ``None`` where there is none."""
    try:
        return find_engine(recipe_for(profile), engines_folder())
    except ServeError:
        return None


def _verdict(results: list[tuple[Profile, tuple[Finding, ...]]]) -> Exit:
    """Of the profile that was asked for; the embedded one is looked at besides."""
    severities = {finding.severity for finding in results[0][1]}
    if Severity.ERROR in severities:
        return Exit.USAGE
    return Exit.FAILED if Severity.WARNING in severities else Exit.OK


def _case(profile: Profile, facts: Facts, model: str | None, policies: Path | None) -> Case:
    case = Case(facts=facts, profile=profile)
    if profile.engine is EngineKind.UPSTREAM:
        return case
    try:
        plan = _plan(case, model, policies)
    except ServeError as error:
        return Case(facts=facts, profile=profile, plan_problem=error.message)
    except DoesNotFit as error:
        return Case(facts=facts, profile=profile, plan_problem=str(error))
    return Case(facts=facts, profile=profile, plan=plan)


def _plan(case: Case, model: str | None, policies: Path | None) -> Plan:
    """With the memory that is really there, where it is."""
    profile = case.profile
    weights = model_facts(profile, model)
    window = profile.model.context_length or weights.shape.window_tokens
    sizes = [gpu.memory_bytes for gpu in case.fitting_gpus if gpu.memory_bytes]
    ram = case.facts.host.ram_bytes
    machine = machine_for(profile.name, weights.shape)
    inputs = PlanInputs(
        gpu_gib=min(sizes) / 2**30 if sizes and profile.hardware.platform is not Platform.CPU else None,
        host_gib=ram / 2**30 if ram else None,
        weight_bytes=weights.weight_bytes,
        weights_assumed=weights.weights_assumed,
        costs=machine.costs if machine else None,
    )
    return make_plan(profile, weights.shape, inputs, policy_demands(policies, window) if policies else ())


def _print_facts(facts: Facts) -> None:
    host, gpus, disk = facts.host, facts.gpus, facts.disk
    if not gpus.found:
        out.print("GPU      none")
    for gpu in gpus.found:
        out.print(f"GPU      {escape(_gpu(gpu))}")
    versions = {"driver": gpus.driver, "CUDA": gpus.cuda, "ROCm": gpus.rocm}
    if any(versions.values()):
        out.print("driver   " + escape(", ".join(f"{name} {text}" for name, text in versions.items() if text)))
    ram = f"{_gb(host.available_bytes)} of {_gb(host.ram_bytes)} free"
    out.print(f"machine  {host.system} {host.machine}, {host.cpus} CPUs, {ram}")
    if disk is not None:
        where = f"{disk.kind}, {disk.filesystem or 'unknown file system'}"
        out.print(
            f"L3       {escape(disk.path)}: {where}, {_gb(disk.free_bytes)} free, {disk.files:,} files", soft_wrap=True
        )
    installed = facts.installed
    names = {
        "Python": installed.python,
        "governor": installed.governor,
        "llama.cpp": installed.llamacpp,
        "SGLang": installed.sglang,
    }
    out.print("versions " + escape(", ".join(f"{name} {text or '-'}" for name, text in names.items())))


def _gpu(gpu: Gpu) -> str:
    memory = f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else "memory unknown"
    link = gpu.link
    if link is None:
        return f"{gpu.name}, {gpu.arch or gpu.platform}, {memory}"
    speed = f" {link.bytes_per_s / GB:.0f} GB/s" if link.bytes_per_s else ""
    generation = f"PCIe {link.generation}.0 " if link.generation else ""
    return f"{gpu.name}, {gpu.arch or gpu.platform}, {memory}, {generation}x{link.width}{speed}"


def _gb(count: int | None) -> str:
    return "unknown" if count is None else f"{count / GB:.1f} GB"


def _print_findings(profile: Profile, findings: tuple[Finding, ...]) -> None:
    out.print(f"\nprofile {escape(profile.name)}: {_summary(findings)}")
    for finding in findings:
        head = Text.assemble((f"{finding.severity:8}", _COLOURS[finding.severity]), f" {finding.what}  [{finding.id}]")
        out.print(head, soft_wrap=True)
        for label, text in (("why", finding.why), ("evidence", finding.evidence), ("cure", finding.cure)):
            out.print(f"         [dim]{label}:[/] {escape(text)}", soft_wrap=True)


def _summary(findings: tuple[Finding, ...]) -> str:
    counts = [
        f"{count} {severity}{'s' if count != 1 else ''}"
        for severity in (Severity.ERROR, Severity.WARNING)
        if (count := sum(finding.severity is severity for finding in findings))
    ]
    return ", ".join(counts) or "nothing to mend"
