"""Functions that can be imported and not called."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def missing(name: str) -> Callable[..., NoReturn]:
    """A function that raises. Dunder names do not exist: the import system asks for some.

    Raises :class:`AttributeError` for these.
    """
    if name.startswith("__"):
        raise AttributeError(name)

    def call(*args: object, **options: object) -> NoReturn:
        raise NotImplementedError(f"torchvision.{name}: there is no torchvision here")

    return call
