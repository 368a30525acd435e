"""Which home a row belongs to, where several governors share one database.

A name kept in the home itself, because the machine's name and the home's path may change while rows are open.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

_FILE = "home-id"


def ensure_home_id(root: Path) -> str:
    """The id of the home at ``root``, made at the first call. Blocks on the disk; raises ``OSError``."""
    path = root / _FILE
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(uuid.uuid4().hex)
    except FileExistsError:
        pass
    known = path.read_text(encoding="ascii").strip()
    if not known:
        # A kill between making and filling the file; the id has been given to nobody yet.
        path.unlink()
        return ensure_home_id(root)
    return known
