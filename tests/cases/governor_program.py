"""A governor as a process of its own, to be killed: ``python -m tests.cases.governor_program ENGINE_URL ROOT``.

Prints its address and alice's key, as JSON, once it serves.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from tests.harness import governed


async def _main(engine_url: str, root: Path) -> None:
    async with governed(engine_url, root) as governor:
        print(msgspec.json.encode({"url": governor.url, "key": governor.keys["alice"]}).decode(), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
