"""Results of calls that were made again later: the same file read twice, the older output of the same command."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from governor.compress.draft import Draft, Edit
from governor.compress.instead import described, with_line
from governor.compress.messages import size_bytes
from governor.compress.rounds import Call
from governor.policy.model import CompressionStage
from governor.wire.messages import decode

_INCIDENTAL = frozenset({"timeout", "timeout_ms", "timeoutMs", "yieldMs", "description", "explanation"})
"""Arguments that do not change what is looked at."""
_LEAST_SHARE = 0.5
"""A newer result that is much shorter is often an error, or a client's own "unchanged since last read"."""
_SORTED = msgspec.json.Encoder(order="sorted")


def superseded_edits(draft: Draft) -> Iterator[Edit]:
    """Each large result for which a later call with the same name and arguments has another one."""
    results = [index for index in draft.large() if index in draft.rounds.calls]
    keys = {index: _key(draft.rounds.calls[index]) for index in results}
    newest = {keys[index]: index for index in results}
    editable = frozenset(draft.editable)
    for index in results:
        later = newest[keys[index]]
        if later == index or index not in editable:
            continue
        now, then = draft.messages[later].content, draft.messages[index].content
        if size_bytes(now) < _LEAST_SHARE * size_bytes(then):
            continue
        what = f"{described(draft, index)}, {draft.sizes[index]:,} tokens; the same call was made again later"
        edit = with_line(draft, index, CompressionStage.SUPERSEDED, what, "the same call was made again later")
        if edit is not None:
            yield edit


def _key(call: Call) -> tuple[str, bytes]:
    arguments = decode(call.arguments.encode("utf-8", "replace"))
    if not isinstance(arguments, dict):
        return call.name, call.arguments.encode("utf-8", "replace")
    return call.name, _SORTED.encode({name: arguments[name] for name in arguments if name not in _INCIDENTAL})
