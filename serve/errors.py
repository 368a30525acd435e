"""What can go wrong before an engine answers, told to the person at the terminal.

These are not HTTP errors: clients never see them. The command line prints ``message`` and ends with ``exit_code``; the
gateway shows the message as the reason why the engine is unavailable.

::

    ServeError
    ├── WeightsError              weights cannot be had
    │   ├── BadModelSource        ``--model`` cannot be understood, or names no usable file
    │   ├── WeightsCorrupt        a file is not what it should be
    │   └── DownloadFailed        the registry or hub could not be reached, or said no
    ├── ProfileRefused            an engine profile cannot be run like this
    ├── L3Refused                 a folder for pages on disk cannot be used
    ├── PatchRefused              a file is not what a patch is for, or was changed since
    ├── NothingToInstall          the profile's engine is not one that is installed
    ├── InstallFailed             a step of an engine's installation failed
    ├── EngineMissing             no embedded engine for this platform
    ├── AlreadySupervised         another governor runs an engine from this folder
    └── EngineFailed              the engine does not start, or keeps dying
        └── PortTaken             somebody else listens where the engine should

Every message ends with what to do.
"""

from __future__ import annotations

from typing import ClassVar


class ServeError(Exception):
    """Root. ``message`` is for a person and says what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class WeightsError(ServeError):
    exit_code = 3


class BadModelSource(WeightsError):
    exit_code = 2


class WeightsCorrupt(WeightsError):
    pass


class DownloadFailed(WeightsError):
    pass


class ProfileRefused(ServeError):
    """``reasons`` each name the profile's key, the reason and the cure."""

    exit_code = 2

    def __init__(self, profile: str, reasons: tuple[str, ...]) -> None:
        listed = "".join(f"\n  * {reason}" for reason in reasons)
        super().__init__(f"profile {profile} cannot be run like this:{listed}")
        self.reasons = reasons


class L3Refused(ServeError):
    exit_code = 7


class PatchRefused(ServeError):
    pass


class NothingToInstall(ServeError):
    exit_code = 2


class InstallFailed(ServeError):
    exit_code = 8


class EngineMissing(ServeError):
    exit_code = 4


class AlreadySupervised(ServeError):
    exit_code = 5


class EngineFailed(ServeError):
    """``log_tail`` are the engine's last lines, oldest first."""

    exit_code = 6

    def __init__(self, message: str, *, log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.log_tail = log_tail


class PortTaken(EngineFailed):
    pass
