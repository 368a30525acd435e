"""Engine profiles: their typed model and the files they come from."""

from serve.profile.load import load_profile, shipped_names
from serve.profile.model import Profile

__all__ = ["Profile", "load_profile", "shipped_names"]
