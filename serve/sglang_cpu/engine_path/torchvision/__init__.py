"""Stand-in for torchvision, which SGLang imports for its vision models.

The real one drags the CUDA build of torch along (5.5 GB). Names can be imported; using one raises.
"""

from . import io as io
from . import transforms as transforms

__version__ = "0.0.0"
