"""Which home a row belongs to, where several governors share one database.

A name kept in the home itself, because the machine's name and the home's path may change while rows are open.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

_FILE = "home-id"


def _for_the_owner_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def ensure_home_id(root: Path) -> str:
    """The id of the home at ``root``, made at the first call. Blocks on the disk; raises ``OSError``."""
    path = root / _FILE
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="ascii", opener=_for_the_owner_alone) as file:
            file.write(uuid.uuid4().hex)
    except FileExistsError:
        pass
    known = path.read_text(encoding="ascii").strip()
    if not known:
        # A kill between making and filling the file; the id has been given to nobody yet.
        path.unlink()
        return ensure_home_id(root)
    return known
