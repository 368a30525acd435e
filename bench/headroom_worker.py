"""Runs in Headroom's own environment: compresses what comes in on stdin, one JSON object a line, as Headroom's page on
PyPI says, and returns what its store keeps. Imports nothing of ours."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
import time
from typing import Any

_NAME = re.compile(r"(?<![0-9a-f])[0-9a-f]{12,24}(?![0-9a-f])")


def main() -> None:
    logging.disable(logging.CRITICAL)
    compress: Any = importlib.import_module("headroom").compress
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.process_time()
        made = compress(asked["messages"], **asked["options"])
        cpu_ms = (time.process_time() - began) * 1000
        answer = {"messages": made.messages, "cpu_ms": cpu_ms, "kept": _kept(made.messages)}
        print(json.dumps(answer), flush=True)


def _kept(messages: list[dict[str, Any]]) -> dict[str, str]:
    """What the store returns for each name in the messages, and for each in that."""
    store: Any = importlib.import_module("headroom.cache.compression_store").get_compression_store()
    kept: dict[str, str] = {}
    unread = [json.dumps(messages, ensure_ascii=False)]
    while unread:
        for name in set(_NAME.findall(unread.pop())) - set(kept):
            entry = store.retrieve(name)
            if entry is not None:
                kept[name] = entry.original_content
                unread.append(entry.original_content)
    return kept


if __name__ == "__main__":
    main()
