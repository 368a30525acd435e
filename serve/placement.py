"""From a profile to its :class:`~serve.argv.Site` on this machine: folders, sockets, which weights there are."""

from __future__ import annotations

import hashlib
from pathlib import Path

import platformdirs

from governor.settings import Home
from serve.argv import Site
from serve.errors import L3Refused
from serve.l3 import L3Folder, claim_l3, l3_folder, l3_identity, resolve_weights
from serve.profile.model import Profile

UNKNOWN_L3 = "FINGERPRINT"
"""Stands for the L3 folder's name in a command that is only shown, while the weights are not on this machine."""
_KV_SOCKETS = ("kv-events", "kv-replay")
_MAX_SOCKET_PATH = 100
"""The kernel takes 107 bytes (``sockaddr_un``); ours have a few more letters."""


def place(
    profile: Profile, home: Home, *, port: int, python: str, model_path: str | None = None, version: str | None = None
) -> Site:
    """Where the engine will run, for showing. Reads the weights' small files, makes nothing."""
    folder = None
    revision = None
    weights_path = model_path or profile.model.path
    if profile.l3.backend is not None:
        folder = L3Folder(l3_parent(profile, home) / UNKNOWN_L3).pages
        try:
            weights = resolve_weights(profile, weights_path) if weights_path else ()
        except L3Refused:
            weights = ()
        identity = l3_identity(profile, version or profile.versions.chosen, weights)
        if weights and identity.is_resolved:
            folder = l3_folder(l3_parent(profile, home), identity).pages
            revision = weights[0].commit
    return _site(profile, home, port, python, model_path, revision, folder)


def prepare(
    profile: Profile, home: Home, *, port: int, python: str, model_path: str | None = None, version: str | None = None
) -> Site:
    """The same for a start: the L3 folder is made and checked, old sockets are cleared away.

    Blocks for file operations. Raises :class:`~serve.errors.L3Refused`.
    """
    folder = None
    revision = None
    weights_path = model_path or profile.model.path
    if profile.l3.backend is not None and weights_path:
        weights = resolve_weights(profile, weights_path)
        identity = l3_identity(profile, version or profile.versions.chosen, weights)
        folder = claim_l3(l3_parent(profile, home), identity).pages
        revision = weights[0].commit
    clear_sockets(home)
    return _site(profile, home, port, python, model_path, revision, folder)


def l3_parent(profile: Profile, home: Home) -> Path:
    """Under it each identity has a folder."""
    return Path(profile.l3.dir).expanduser() if profile.l3.dir else home.root / "l3"


def socket_folder(home: Home) -> Path:
    """For sockets that only this user may open. In the home, or in the runtime folder where the home's path is longer
    than a socket's may be."""
    if len(str(home.run)) <= _MAX_SOCKET_PATH - len("kv-events"):
        return home.run
    own = hashlib.sha256(str(home.root).encode()).hexdigest()[:12]
    return Path(platformdirs.user_runtime_dir("agent-governor")) / own


def kv_endpoints(home: Home) -> tuple[str, str]:
    """ZMQ addresses of KV events and of their replay."""
    events, replay = (f"ipc://{socket_folder(home) / name}" for name in _KV_SOCKETS)
    return events, replay


def clear_sockets(home: Home) -> None:
    """Make their folder, and remove what an engine before has left in it."""
    sockets = socket_folder(home)
    sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in _KV_SOCKETS:
        (sockets / name).unlink(missing_ok=True)


def _site(
    profile: Profile,
    home: Home,
    port: int,
    python: str,
    model_path: str | None,
    revision: str | None,
    folder: Path | None,
) -> Site:
    events = replay = None
    if profile.reporting.kv_events:
        events, replay = kv_endpoints(home)
    return Site(
        port=port,
        python=python,
        model_path=model_path,
        revision=revision,
        l3_folder=folder,
        kv_events_endpoint=events,
        kv_replay_endpoint=replay,
    )
