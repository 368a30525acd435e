"""``python -m governor.measure.schema``: the JSON Schema of ``result.json``, for ``docs/bench-result.schema.json``."""

from __future__ import annotations

import sys

from governor.measure.result import result_schema

if __name__ == "__main__":
    sys.stdout.buffer.write(result_schema())
