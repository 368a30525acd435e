"""Names of ``torchvision.io``."""

from enum import Enum

from ..missing import missing as __getattr__  # noqa: F401


class ImageReadMode(Enum):
    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4
