"""Names of ``torchvision.transforms.v2``."""

from ...missing import missing as __getattr__  # noqa: F401
from ..interpolation import InterpolationMode as InterpolationMode
from . import functional as functional
