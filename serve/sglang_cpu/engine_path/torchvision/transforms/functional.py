"""Names of ``torchvision.transforms.functional``."""

from ..missing import missing as __getattr__  # noqa: F401
from .interpolation import InterpolationMode

__all__ = ["InterpolationMode"]
