"""What the tests of profiles share: a machine that is the same everywhere."""

from __future__ import annotations

from pathlib import Path

from serve.argv import Site
from serve.profile import Profile, load_profile, shipped_names
from serve.profile.model import EngineKind

SITE = Site(
    port=30000,
    python="python",
    l3_folder=Path("/l3/0123456789abcdef01234567/pages"),
    kv_events_endpoint="ipc:///run/governor/kv-events",
    kv_replay_endpoint="ipc:///run/governor/kv-replay",
)
OWN_WEIGHTS = Site(
    port=SITE.port,
    python=SITE.python,
    model_path="/models/mine",
    l3_folder=SITE.l3_folder,
    kv_events_endpoint=SITE.kv_events_endpoint,
    kv_replay_endpoint=SITE.kv_replay_endpoint,
)
SGLANG_PROFILES = tuple(name for name in shipped_names() if load_profile(name).engine is EngineKind.SGLANG)


def site_for(profile: Profile) -> Site:
    """With weights of one's own where the profile names none."""
    return SITE if profile.model.path else OWN_WEIGHTS
