"""From a profile to the command that starts its SGLang. Pure: paths and ports come in as a :class:`Site`.

A setting that the engine's version spells otherwise is translated and noted; one that it lacks, and a combination that
is known to break (:mod:`serve.unsafe`), is refused with the reason. What the profile leaves open is not on the command
line, so that the engine's own default holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from serve.errors import ProfileRefused
from serve.profile.model import EngineKind, PriorityOrder, Profile, version_key
from serve.sglang_flags import RENAMED, absence
from serve.sglang_settings import Setting, environment, settings
from serve.unsafe import dangers

_OWNED = frozenset({"--host", "--port", "--model-path", "--model", "--kv-events-config"})
"""Set from the site; in ``[flags]`` they would contradict it."""
_BIND_SINCE = "0.5.22"
"""From here on a publisher can be told to listen on one TCP address; before, it connects unless the address is a
wildcard (``disaggregation/kv_events.py``)."""
_INTERVAL = "--prefill-decode-interval"
_CONSECUTIVE = "--max-consecutive-prefill-batches"


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where this engine runs: what is only known on the machine."""

    port: int
    python: str = "python"
    """Interpreter of the engine's own environment."""
    host: str = "127.0.0.1"
    model_path: str | None = None
    """Over the profile's."""
    revision: str | None = None
    """The commit on the hub that the weights were resolved to (:attr:`serve.l3.Weights.commit`)."""
    l3_folder: Path | None = None
    """Of this engine's L3 identity (:attr:`serve.l3.L3Folder.pages`); needed if the profile has L3."""
    kv_events_endpoint: str | None = None
    """ZMQ address for KV events, best ``ipc://FILE`` in a private folder: events carry the tokens of all prompts, and a
    TCP port shows them to every user of the machine. Needed if the profile has KV events."""
    kv_replay_endpoint: str | None = None
    """ZMQ address on which missed events are asked for."""
    environment: Mapping[str, str] = {}
    """Further variables: over those that the profile's keys imply, under its own."""


class Note(msgspec.Struct, frozen=True):
    """Something about a command that a person should know; nothing is wrong."""

    key: str
    """The profile's key."""
    text: str


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why there is no command."""

    key: str
    """The profile's key."""
    reason: str
    evidence: str = ""
    cure: str = ""

    def __str__(self) -> str:
        evidence = f" ({self.evidence})" if self.evidence else ""
        cure = f"; cure: {self.cure}" if self.cure else ""
        return f"{self.key}: {self.reason}{evidence}{cure}"


class LaunchCommand(msgspec.Struct, frozen=True, kw_only=True):
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """To add to our own."""
    notes: tuple[Note, ...] = ()


def sglang_command(profile: Profile, site: Site, version: str | None = None) -> LaunchCommand:
    """The command for SGLang ``version``, by default the one the profile chooses.

    Raises :class:`~serve.errors.ProfileRefused` with every reason at once.
    """
    version = version or profile.versions.chosen
    refusals = list(_misfits(profile, site, version))
    refusals += (
        Refusal(key=found.key, reason=found.reason, evidence=found.evidence, cure=f"{found.cure} [{found.id}]")
        for found in dangers(profile, version)
    )
    argv = [site.python, "-m", "sglang.launch_server"]
    notes = [Note("scheduling.priority", priority_note(profile))] if priority_note(profile) else []
    for setting in (*_placed(profile, site, version), *settings(profile)):
        fitted = _fitted(setting, version)
        if isinstance(fitted, Refusal):
            refusals.append(fitted)
            continue
        argv += _words(fitted)
        if fitted.flag != setting.flag:
            notes.append(Note(setting.key, f"{setting.flag} is written as {' '.join(_words(fitted))}"))
    if refusals:
        raise ProfileRefused(profile.name, tuple(str(refusal) for refusal in refusals))
    env = {**environment(profile, site.l3_folder), **site.environment, **profile.environment}
    return LaunchCommand(argv=tuple(argv), env=env, notes=tuple(notes))


def priority_note(profile: Profile) -> str:
    """What becomes of the governor's priorities in this engine; empty if they work.

    The adapter sends a priority only where the switch is on, in the direction that ``scheduling.priority`` names.
    """
    if profile.engine is EngineKind.UPSTREAM:
        return "engine-side priority is inactive: the server's switches are not ours; the gateway alone orders turns"
    if profile.engine is EngineKind.LLAMACPP:
        return "engine-side priority is inactive: llama.cpp has none; the gateway alone orders turns"
    if profile.scheduling.priority is PriorityOrder.OFF:
        return "engine-side priority is inactive: scheduling.priority is off; the gateway alone orders turns"
    return ""


def command_diff(one: LaunchCommand, other: LaunchCommand) -> tuple[str, ...]:
    """What differs, by flag and variable: ``- `` as the first has it, ``+ `` as the second has it."""
    left, right = _by_name(one), _by_name(other)
    lines: list[str] = []
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            lines += [f"- {left[name]}"] if name in left else []
            lines += [f"+ {right[name]}"] if name in right else []
    return tuple(lines)


def flag_groups(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Each flag of a command with its values; the program itself is left out."""
    words: tuple[str, ...] = ()
    for word in argv:
        if word.startswith("--"):
            if words:
                yield words
            words = (word,)
        elif words:
            words = (*words, word)
    if words:
        yield words


def _by_name(command: LaunchCommand) -> dict[str, str]:
    flags = {words[0]: " ".join(words) for words in flag_groups(command.argv)}
    return flags | {name: f"{name}={value}" for name, value in command.env.items()}


def _misfits(profile: Profile, site: Site, version: str) -> Iterator[Refusal]:
    if profile.engine is not EngineKind.SGLANG:
        yield Refusal(key="engine", reason=f"{profile.engine} is not SGLang")
    if not profile.versions.covers(version):
        span = f"{profile.versions.oldest} to {profile.versions.newest}"
        yield Refusal(key="versions", reason=f"the profile is for SGLang {span}, not {version}")
    if not (site.model_path or profile.model.path):
        yield Refusal(key="model.path", reason="the profile names no weights", cure="--model DIR, or set model.path")
    if profile.l3.backend is not None and site.l3_folder is None:
        yield Refusal(key="l3.backend", reason="no folder was given for L3")
    if profile.reporting.kv_events and site.kv_events_endpoint is None:
        yield Refusal(key="reporting.kv_events", reason="no address was given for KV events")
    elif site.kv_events_endpoint and _connects(site.kv_events_endpoint, version):
        reason = f"SGLang {version} would connect to {site.kv_events_endpoint} instead of listening there"
        yield Refusal(key="reporting.kv_events", reason=reason, cure="an ipc:// address")
    for flag in sorted(_OWNED & profile.flags.keys()):
        yield Refusal(key=f"flags.{flag}", reason="is set by the governor")


def _connects(endpoint: str, version: str) -> bool:
    one_address = endpoint.startswith("tcp://") and not any(wild in endpoint for wild in ("*", "::", "0.0.0.0"))  # noqa: S104
    return one_address and version_key(version) < version_key(_BIND_SINCE)


def _placed(profile: Profile, site: Site, version: str) -> Iterator[Setting]:
    """Settings that need the site."""
    profile_revision = None if site.model_path else profile.model.revision
    yield Setting("model.path", "--model-path", site.model_path or profile.model.path)
    yield Setting("model.revision", "--revision", site.revision or profile_revision)
    yield Setting("", "--host", site.host)
    yield Setting("", "--port", site.port)
    if profile.reporting.kv_events and site.kv_events_endpoint:
        publisher: dict[str, str | bool] = {"publisher": "zmq", "endpoint": site.kv_events_endpoint}
        if site.kv_events_endpoint.startswith("tcp://") and version_key(version) >= version_key(_BIND_SINCE):
            publisher["bind"] = True
        if site.kv_replay_endpoint:
            publisher["replay_endpoint"] = site.kv_replay_endpoint
        yield Setting("reporting.kv_events", "--kv-events-config", msgspec.json.encode(publisher).decode())


def _fitted(setting: Setting, version: str) -> Setting | Refusal:
    """The setting as this version spells it, or why it cannot have it."""
    if not _is_written(setting):
        return setting
    flag, value = setting.flag, setting.value
    if flag == _CONSECUTIVE and value == 1 and absence(_INTERVAL, version) is None:
        # One prefill batch in a row is one decode round after each; for more there is no equal.
        return Setting(setting.key, _INTERVAL, 1)
    renamed = RENAMED.get(flag)
    if renamed is not None:
        flag, value = renamed.flag, renamed.value or value
    reason = absence(flag, version)
    if reason is not None:
        return Refusal(key=setting.key, reason=reason)
    return Setting(setting.key, flag, value)


def _is_written(setting: Setting) -> bool:
    return setting.value is not None and setting.value is not False and setting.value != ()


def _words(setting: Setting) -> tuple[str, ...]:
    if not _is_written(setting):
        return ()
    match setting.value:
        case True:
            return (setting.flag,)
        case tuple():
            return (setting.flag, *setting.value)
        case _:
            return (setting.flag, str(setting.value))
