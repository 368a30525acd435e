"""Names of ``torchvision.transforms.v2.functional``."""

from ...missing import missing as __getattr__  # noqa: F401
from ..interpolation import InterpolationMode

__all__ = ["InterpolationMode"]
