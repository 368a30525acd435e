"""Names of ``torchvision.transforms``."""

from ..missing import missing as __getattr__  # noqa: F401
from . import functional as functional
from . import v2 as v2
from .interpolation import InterpolationMode as InterpolationMode
